"""Notices that a model does nothing any more but repeat what it wrote last."""

from __future__ import annotations

import numpy as np

LONGEST_PERIOD = 64
REPEATS = 10
SHORTEST_LOOP = 256
"""Tokens. A table's rule, a row of zeros or some equal lines of code are shorter than that."""


class LoopDetector:
    """Watches an answer token by token for a loop: a passage of up to `LONGEST_PERIOD` tokens that
    came `REPEATS` times in a row, to the token, and for at least `SHORTEST_LOOP` tokens."""

    def __init__(self) -> None:
        periods = np.arange(1, LONGEST_PERIOD + 1)
        self._needed = np.maximum(SHORTEST_LOOP, REPEATS * periods) - periods
        self._last = np.full(LONGEST_PERIOD, -1)
        """The last tokens, the newest first."""
        self._run = np.zeros(LONGEST_PERIOD, np.int64)
        """By period - 1: how many of the last tokens each equal the one a period before them."""

    def advance(self, token: int) -> bool:
        """Take in the next token; True when the answer is in a loop."""
        self._run = np.where(self._last == token, self._run + 1, 0)
        self._last[1:] = self._last[:-1].copy()
        self._last[0] = token
        return bool((self._run >= self._needed).any())

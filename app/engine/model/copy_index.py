"""Where the last tokens of an answer occurred before: what followed there may follow here, too.

Prompt lookup: answers about documents copy names, clauses, code. Also what was skipped is looked
at, since it needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHORTEST, LONGEST = 2, 16
"""Tokens of a match that are looked for, and looked at."""
CANDIDATES = 64
"""Places of which the one with the longest match is taken: the last ones."""
_BITS = 21
"""Of a token id; three are one key."""


@dataclass(frozen=True, slots=True)
class Match:
    """`ids` followed the last `length` tokens where they occurred before: those from `start` on of
    the prompt and the answer, as one text."""

    ids: tuple[int, ...]
    start: int
    length: int


class CopyIndex:
    """Of `prompt` int32 (M,), and of the answer as it is written. Building it takes milliseconds at
    128K tokens, a search some microseconds."""

    def __init__(self, prompt: NDArray[np.int32]) -> None:
        wide = np.pad(prompt.astype(np.int64), (0, 2))
        keys = _key(wide[:-2], wide[1:-1], wide[2:])
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._ids = prompt.copy()
        self._length = self._prompt_length = len(prompt)
        self._written: dict[tuple[int, ...], int] = {}
        """After which token two or three of the answer occurred last."""

    def append(self, token: int) -> None:
        """The answer's next token."""
        if self._length == len(self._ids):
            self._ids = np.pad(self._ids, (0, max(self._length // 8, 1024)))
        for count in (2, 3):  # those before it: nothing has followed the last ones yet
            start = self._length - count
            if start >= self._prompt_length:
                key = tuple(self._ids[start : self._length].tolist())
                self._written[key] = self._length
        self._ids[self._length] = token
        self._length += 1

    def find(self, count: int) -> Match | None:
        """Up to `count` tokens that may come next."""
        if self._length < SHORTEST or count < 1:
            return None
        recent = self._ids[max(self._length - LONGEST, 0) : self._length][::-1]
        places = [*self._in_prompt(recent[2::-1]), *self._in_answer(recent[2::-1])]
        if not places:
            places = [*self._in_prompt(recent[1::-1]), *self._in_answer(recent[1::-1])]
        if not places:
            return None
        ends = np.array(places)
        back = ends[:, None] - 1 - np.arange(len(recent))
        same = (self._ids[np.maximum(back, 0)] == recent) & (back >= 0)
        lengths = np.where(same.all(axis=1), len(recent), np.argmin(same, axis=1))
        best = len(ends) - 1 - int(np.argmax(lengths[::-1]))  # the last of the longest
        start = int(ends[best])
        ahead = self._length - start  # what repeats does so again
        ids = tuple(self._ids[start + np.arange(count) % ahead].tolist())
        return Match(ids, start, int(lengths[best]))

    def _in_prompt(self, last: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int64]:
        """After which tokens of the prompt these (two or three) came, that something follows."""
        ids = [int(token) for token in last]
        if len(ids) < SHORTEST:
            return np.zeros(0, np.int64)
        missing = 3 - len(ids)
        first = _key(*ids, *[0] * missing)
        span = 1 << (_BITS * missing)
        low, high = np.searchsorted(self._keys, [first, first + span])
        found = np.sort(self._order[low:high])[-CANDIDATES:] + len(ids)
        return found[found < self._prompt_length]

    def _in_answer(self, last: Sequence[int] | NDArray[np.int32]) -> list[int]:
        place = self._written.get(tuple(int(token) for token in last))
        return [] if place is None else [place]


def _key(first: Any, second: Any, third: Any) -> Any:
    """Of numbers, or of arrays."""
    return (first << 2 * _BITS) | (second << _BITS) | third

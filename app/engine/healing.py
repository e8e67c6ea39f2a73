"""Reads, while nothing else is to be done, what sparse reading left out.

It works on a fork of the conversation's cache, from the first token on that was left out, and takes
its place when it has everything. Until then it only costs memory; progress is kept.
"""

from __future__ import annotations

import numpy as np

from app.engine import memory
from app.engine.held import Held
from app.engine.loader import LoadedModel
from app.engine.reading import Remembered
from app.engine.reserve import reserved


class Healing:
    """Heals one conversation, step by step."""

    def __init__(self, target: LoadedModel, remembered: Remembered) -> None:
        """Raises NotEnoughMemory."""
        self._target, self._remembered = target, remembered
        left = len(remembered.target) - remembered.target.exact
        memory.check_fits(f"Reading {left:,} tokens", target.cache_size.bytes(left))
        self._held: Held = remembered.target.fork()
        self._held.rewind(self._held.exact)
        self._held.retain(False)

    @property
    def done(self) -> int:
        return len(self._held)

    @property
    def total(self) -> int:
        return len(self._remembered.target)

    def step(self) -> bool:
        """Read on for about half a second. True when everything is read, and in place."""
        sick, held = self._remembered.target, self._held
        held.rewind(held.shared(sick.ids))
        end = min(len(held) + self._target.step.tokens, len(sick))
        positions = np.arange(len(held), end, dtype=np.int32)
        if len(positions):
            model, step = self._target.model, self._target.step
            with reserved(held.cache, len(sick) - len(held)):
                held.take_in(model, sick.ids, positions, step, lambda done: None)
        if len(held) < len(sick):
            return False
        held.borders = held.borders or sick.borders[:1]
        self._remembered.target = held
        return True


def is_sick(remembered: Remembered) -> bool:
    """Whether something was left out, or was read too late for what comes after it."""
    return remembered.target.exact < len(remembered.target)

"""Reads, while nothing else is to be done, what sparse reading left out.

It works on a fork of the conversation's cache, from the first token on that was left out, and takes
its place when it has everything. Until then it only costs memory: where that is short, it is the
first to go. Otherwise progress is kept.
"""

from __future__ import annotations

import numpy as np

from app.engine import memory
from app.engine.cache_check import disagreement
from app.engine.cache_growth import reserved
from app.engine.loader import LoadedModel
from app.engine.prefix_cache import Held
from app.engine.prompt_reader import Remembered


class Healing:
    """Heals one conversation, step by step."""

    def __init__(self, target: LoadedModel, remembered: Remembered) -> None:
        """Raises NotEnoughMemory."""
        self._target, self._remembered = target, remembered
        total = len(remembered.target)
        memory.check_fits(f"Reading {total:,} tokens", self.needed(target, remembered))
        self._held: Held = remembered.target.fork()
        self._begun = False
        self._held.rewind(self._held.exact)
        self._held.retain(False)

    @staticmethod
    def needed(target: LoadedModel, remembered: Remembered) -> float:
        """Bytes that it takes in the end: what is shared at first is copied by the first step."""
        return target.cache_size.bytes(len(remembered.target))

    @property
    def nbytes(self) -> int:
        """Bytes that it takes now."""
        return self._held.nbytes if self._begun else 0

    @property
    def done(self) -> int:
        return len(self._held)

    @property
    def total(self) -> int:
        return len(self._remembered.target)

    def step(self) -> bool:
        """Read on for about half a second. True when everything is read, and in place."""
        sick, held = self._remembered.target, self._held
        self._begun = True
        held.rewind(held.shared(sick.ids))
        end = min(len(held) + self._target.step.tokens, len(sick))
        positions = np.arange(len(held), end, dtype=np.int32)
        if len(positions):
            model, step = self._target.model, self._target.step
            with reserved(held.cache, len(sick) - len(held)):
                held.take_in(model, sick.ids, positions, step, lambda done: None)
        if len(held) < len(sick):
            return False
        if (problem := disagreement(held)) is not None:
            raise RuntimeError(f"its cache was damaged, {problem}")
        held.borders = held.borders or sick.borders[:1]
        self._remembered.target = held
        return True


def is_sick(remembered: Remembered) -> bool:
    """Whether something was left out, or was read too late for what comes after it."""
    return remembered.target.exact < len(remembered.target)

"""Reads, while nothing else is to be done, what sparse reading left out.

It works on a fork of the conversation's cache, from the first token on that was left out, and takes
its place when it has everything. Until then it only costs memory: where that is short, it is the
first to go. Otherwise progress is kept.
"""

from __future__ import annotations

import numpy as np

from app.engine import memory
from app.engine.cache_check import find_mismatch
from app.engine.cache_growth import reserve_capacity
from app.engine.conversation_cache import ConversationCache
from app.engine.loader import LoadedModel
from app.engine.prefix_cache import PrefixCache


class BackgroundPrefill:
    """Heals one conversation, step by step."""

    def __init__(self, target: LoadedModel, remembered: ConversationCache) -> None:
        """Raises NotEnoughMemory."""
        self._target, self._conversation = target, remembered
        total = len(remembered.target)
        memory.check_fits(f"Reading {total:,} tokens", self.required_bytes(target, remembered))
        self._fork: PrefixCache = remembered.target.fork()
        self._started = False
        self._fork.rewind(self._fork.dense_prefix_len)
        self._fork.set_retain_all(False)

    @staticmethod
    def required_bytes(target: LoadedModel, remembered: ConversationCache) -> float:
        """Bytes that it takes in the end: what is shared at first is copied by the first step."""
        return target.cache_size.bytes(len(remembered.target))

    @property
    def nbytes(self) -> int:
        """Bytes that it takes now."""
        return self._fork.nbytes if self._started else 0

    @property
    def done(self) -> int:
        return len(self._fork)

    @property
    def total(self) -> int:
        return len(self._conversation.target)

    def step(self) -> bool:
        """Read on for about half a second. True when everything is read, and in place."""
        sick, held = self._conversation.target, self._fork
        self._started = True
        held.rewind(held.common_prefix_len(sick.ids))
        end = min(len(held) + self._target.step.tokens, len(sick))
        positions = np.arange(len(held), end, dtype=np.int32)
        if len(positions):
            model, step = self._target.model, self._target.step
            with reserve_capacity(held.cache, len(sick) - len(held)):
                held.prefill_at(model, sick.ids, positions, step, lambda done: None)
        if len(held) < len(sick):
            return False
        if (problem := find_mismatch(held)) is not None:
            raise RuntimeError(f"its cache was damaged, {problem}")
        held.checkpoints = held.checkpoints or sick.checkpoints[:1]
        self._conversation.target = held
        return True


def has_gaps(remembered: ConversationCache) -> bool:
    """Whether something was left out, or was read too late for what comes after it."""
    return remembered.target.dense_prefix_len < len(remembered.target)

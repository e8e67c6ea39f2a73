"""Reads, while the engine is idle, what a sparse prefill skipped.

It extends a fork of the conversation's cache, from the first skipped token on, and replaces the
cache when everything is read. Until then it only costs memory, so it is cancelled first when memory
is tight. Otherwise its progress stays.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.engine.backend import memory
from app.engine.cache.check import find_mismatch
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.model.loader import LoadedModel


class BackgroundPrefill:
    """Of one conversation, step by step."""

    def __init__(self, target: LoadedModel, conversation: ConversationCache) -> None:
        """Raises NotEnoughMemory."""
        self._target, self._conversation = target, conversation
        needed = self.required_bytes(target, conversation)
        if needed > (free := target.free_memory()):
            raise memory.NotEnoughMemory({"reading": self.total}, needed, free)
        self._fork = conversation.target.fork()
        self._started = False
        self._fork.rewind(self._fork.dense_prefix_len)
        self._fork.set_retain_all(False)

    @staticmethod
    def required_bytes(target: LoadedModel, conversation: ConversationCache) -> float:
        """Bytes at the end: the first step copies the arrays that are shared until then."""
        return target.cache_size.bytes(len(conversation.target))

    @property
    def nbytes(self) -> int:
        """Bytes now."""
        return self._fork.nbytes if self._started else 0

    @property
    def done(self) -> int:
        return len(self._fork)

    @property
    def total(self) -> int:
        return len(self._conversation.target)

    def step(self, check_stop: Callable[[], None] = lambda: None) -> bool:
        """Read one step. True when everything is read, and the cache replaced. `check_stop` is
        called about twice a second, and raises to leave a long step, which is not read then."""
        sparse, fork = self._conversation.target, self._fork
        self._started = True
        fork.rewind(fork.common_prefix_len(sparse.ids))
        model, step = self._target.model, self._target.step
        end = min(len(fork) + step.tokens, len(sparse))
        positions = np.arange(len(fork), end, dtype=np.int32)
        if len(positions):
            with fork.reserved(len(sparse) - len(fork)):
                fork.prefill_at(
                    model,
                    sparse.ids,
                    positions,
                    step,
                    lambda done: None,
                    lambda done: check_stop(),
                )
        if len(fork) < len(sparse):
            return False
        if (problem := find_mismatch(fork)) is not None:
            raise RuntimeError(f"its cache was damaged, {problem}")
        fork.borrow_checkpoint(sparse)
        self._conversation.replace_target(fork)
        return True

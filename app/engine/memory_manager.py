"""Makes room for what comes next, and says what was given up for it.

In this order, and no more than needed: buffers kept for reuse, what is being read in the
background, other conversations' caches (saved where they are to be), the weights of the model that
is not at work, and, once it has scored, what the draft has read. Models that do not fit together so
take turns. The last two cost time in every turn, so they are not given up for larger steps alone.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import mlx.core as mx

from app.engine import memory, memory_estimates
from app.engine.cache_pool import CachePool
from app.engine.conversation_cache import ConversationCache
from app.engine.loader import LoadedModel, Pair
from app.engine.memory import NotEnoughMemory
from app.engine.memory_estimates import Need
from app.engine.memory_monitor import Watch
from app.engine.pressure_levels import SHARES
from app.engine.progress import Cancelled, Progress
from app.protocol.events import Event, MemoryFreed, Reloaded, Unloaded
from app.protocol.memory import PressureLevel, format_bytes
from app.protocol.stats import FinishReason, Phase


class Room:
    """Belongs to one loaded pair. All of it runs on the engine's thread."""

    def __init__(
        self,
        pair: Pair,
        emit: Callable[[Event], None],
        residents: CachePool | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._pair, self._emit = pair, emit
        self._residents, self._watch = residents, watch

    def check_step(self, model: LoadedModel, seen: int, reserved: bool = False) -> None:
        """Raise Cancelled when the next step, after so many tokens, would go where memory counts as
        nearly used up: what was foreseen may have been wrong, dared, or overtaken by others."""
        need, most = (
            memory_estimates.next_step(model, seen, reserved),
            SHARES[PressureLevel.CRITICAL],
        )
        if need > memory.left(most):
            _release()
            if need > memory.left(most):
                raise Cancelled(FinishReason.MEMORY)

    def scored(self, remembered: ConversationCache) -> None:
        """The draft has done its work: where memory is tight, it and what it has read go."""
        if self._watch is not None and self._watch.rung.severity >= PressureLevel.TIGHT.severity:
            self.drop_draft_cache(remembered)
            self.park_draft()

    def make(
        self, need: Need, remembered: ConversationCache, progress: Progress, dare: bool
    ) -> None:
        """Make room, bring the model into memory and choose its step. Raises NotEnoughMemory,
        unless it is to `dare` what does not fit, and LoadError."""
        for wanted, give_up in self._sacrifices(need, remembered):
            if wanted + need.weights <= memory.free():
                break
            give_up()
            progress.check_cancel()
        least, free = need.least + need.weights, memory.free()
        if least > free and not dare:
            raise NotEnoughMemory(need.what, least, free)
        if not need.model.here:
            self._unpark(need.model, progress)

    def most(self, model: LoadedModel, remembered: ConversationCache) -> float:
        """The most that could be free for a phase of this model, its own weights left in or brought
        in, when everything else is given up."""
        there = memory.free() - (0 if model.here else model.info.weight_bytes)
        if self._residents is not None:
            there += self._residents.idle_bytes
        other = self._other(model)
        if other is not None and other.here:
            there += other.info.weight_bytes
        if model is self._pair.target and remembered.draft is not None:
            there += remembered.draft.nbytes
        return there

    def park_draft(self) -> None:
        draft = self._pair.draft
        if draft is not None and draft.here:
            self._park(draft, "because memory is tight")

    def drop_idle(self, everything: bool = False) -> None:
        """Let go of what was read of conversations, but for the one that was used last."""
        if self._residents is None:
            return
        self.drop_healing()
        before = self._residents.nbytes
        saved = self._residents.evict_idle(everything)
        if not (freed := before - self._residents.nbytes):
            return
        _release()
        which = "conversations" if everything else "other conversations"
        where = "saved and dropped" if saved else "dropped"
        sentence = f"What was read of {which} was {where} to make room, {format_bytes(freed)}."
        self._emit(MemoryFreed(freed, sentence))

    def drop_healing(self) -> None:
        """Give up what is being read in the background: it begins again once there is room."""
        if self._residents is None or not (freed := self._residents.cancel_background()):
            return
        _release()
        sentence = f"Background reading was stopped to make room, {format_bytes(freed)}."
        self._emit(MemoryFreed(freed, sentence))

    def drop_draft_cache(self, remembered: ConversationCache) -> None:
        """What the draft has read of a conversation; a later question makes it read again."""
        if remembered.draft is None or not (held := remembered.draft.nbytes):
            return
        remembered.draft.clear()
        _release()
        sentence = f"What the draft has read was dropped to make room, {format_bytes(held)}."
        self._emit(MemoryFreed(held, sentence))

    # ------------------------------------------------------------------------------ inside

    def _sacrifices(
        self, need: Need, remembered: ConversationCache
    ) -> Iterator[tuple[float, Callable[[], None]]]:
        """What can be given up, each with the bytes for which it is."""
        yield need.usual, _release
        yield need.usual, self.drop_healing
        yield need.usual, self.drop_idle
        other = self._other(need.model)
        if other is not None and other.here:
            yield need.least, lambda: self._park(other, f"so that {need.model.info.name} has room")
        if need.model is self._pair.target:
            yield need.least, lambda: self.drop_draft_cache(remembered)

    def _other(self, model: LoadedModel) -> LoadedModel | None:
        return self._pair.draft if model is self._pair.target else self._pair.target

    def _park(self, model: LoadedModel, why: str) -> None:
        model.park()
        _release()
        freed = model.info.weight_bytes
        sentence = f"{model.info.name} left memory, {format_bytes(freed)}, {why}."
        self._emit(Unloaded(model.info.name, freed, sentence))

    def _unpark(self, model: LoadedModel, progress: Progress) -> None:
        begun = time.perf_counter()
        loaded = progress.report(Phase.LOAD, 1)
        with progress.timed(Phase.LOAD):
            model.unpark()
        seconds = time.perf_counter() - begun
        self._emit(Reloaded(model.info.name, model.info.weight_bytes, seconds))
        loaded(1)


def _release() -> None:
    gc.collect()
    mx.clear_cache()

"""Frees memory for the next phase of a turn and reports what was evicted.

It frees, in this order and only as much as needed: MLX's buffer cache, background prefill, caches
of other conversations (saved first if snapshots are on), the weights of the other model, and after
scoring the draft's cache. So models that do not fit in memory together are loaded alternately. The
last two slow down every turn, so they are not evicted just for larger prefill steps.
`PressureResponse` frees memory when the system's memory pressure rises.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx

from app.engine.backend import memory
from app.engine.backend.memory import NotEnoughMemory
from app.engine.backend.memory_probes import MemorySample
from app.engine.memory.cache_pool import CachePool
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.memory.pressure import HYSTERESIS, SWAP_RATE_WARNING, THRESHOLDS, MemoryMonitor
from app.engine.model.loader import LoadedModel, ModelPair
from app.engine.model.text_encoder import TextEncoder, drop_built_in_encoders, encoding_bytes
from app.engine.progress import TurnCancelled, TurnClock
from app.estimate.memory import MIN_CHECKPOINTS, SMALLEST_STEP
from app.protocol.events import (
    Event,
    MemoryFreed,
    MemoryReport,
    PressureChanged,
    Reloaded,
    Unloaded,
)
from app.protocol.memory import PressureLevel
from app.protocol.reasons import Data, Reason, ReasonCode
from app.protocol.stats import FinishReason, Phase


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a phase needs: `model` loaded, plus `preferred` bytes, or at least `minimum` bytes.
    `task` describes the phase for `NotEnoughMemory`."""

    task: Data
    model: LoadedModel
    preferred: float
    minimum: float

    @property
    def weight_bytes(self) -> int:
        return 0 if self.model.is_loaded else self.model.info.weight_bytes


def prefill_need(
    target: LoadedModel,
    count: int,
    context: int,
    retain_all: bool = False,
    checkpoints: int = MIN_CHECKPOINTS,
) -> MemoryNeed:
    """Memory to prefill `count` tokens, after which `context` are cached. With `retain_all`,
    sliding windows evict nothing. `checkpoints`: maximum number of new checkpoints."""
    size = target.cache_size
    cache = size.bytes(count, retain_all) + checkpoints * size.state_bytes
    preferred, minimum = (cache + transient_bytes(target, step, context) for step in _steps(target))
    return MemoryNeed({"reading": count}, target, preferred, minimum)


def _steps(model: LoadedModel) -> tuple[int, int]:
    """The preferred and the smallest prefill step, in tokens."""
    return model.step.backend.first_step, SMALLEST_STEP


def transient_bytes(model: LoadedModel, step: int, context: int, forced: bool = True) -> float:
    """Bytes that a step needs in addition to its cache entries. `forced`: attention is fused
    wherever possible. While a layer's buffer grows, before the first step and while decoding, it
    exists twice; on a CPU also during its attention."""
    copy = model.cache_size.largest_layer_bytes * context
    during_attention = copy if model.transient.on_cpu else 0.0
    return max(copy, during_attention + model.transient.bytes(step, context, forced))


def next_step_bytes(model: LoadedModel, context: int, reserved: bool = False) -> float:
    """Bytes that the next step after `context` tokens needs. Unless its capacity is `reserved`, the
    cache grows, and one layer's buffer exists twice meanwhile."""
    step = model.step.tokens
    transient = transient_bytes(model, step, context + step, model.step.forces_fused(step))
    if reserved:
        return transient
    size = model.cache_size
    return size.bytes(step, retain_all=True) + size.largest_layer_bytes * context + transient


def scoring_need(draft: LoadedModel, count: int, total: int) -> MemoryNeed:
    """Memory for the draft to prefill `count` tokens and score all `total`."""
    cache, scores = draft.cache_size.bytes(count), draft.transient.scoring(total)
    preferred, minimum = (
        cache + max(transient_bytes(draft, step, total), scores) for step in _steps(draft)
    )
    return MemoryNeed({"scoring": count}, draft, preferred, minimum)


def encoding_need(target: LoadedModel, encoder: TextEncoder | None, tokens: int) -> MemoryNeed:
    """Memory to score `tokens` tokens with a text encoder; None: the built-in one."""
    needed = encoding_bytes(encoder)
    return MemoryNeed({"scoring": tokens}, target, needed, needed)


class MemoryManager:
    """Frees memory of one loaded model pair. Runs on the engine thread."""

    def __init__(
        self,
        pair: ModelPair,
        emit: Callable[[Event], None],
        caches: CachePool | None = None,
        monitor: MemoryMonitor | None = None,
    ) -> None:
        self._pair, self._emit = pair, emit
        self._caches, self._monitor = caches, monitor
        self.scoring = False
        """Whether the draft is running, so that its weights must stay."""

    @property
    def is_tight(self) -> bool:
        level = PressureLevel.NORMAL if self._monitor is None else self._monitor.level
        return level.severity >= PressureLevel.TIGHT.severity

    def ensure_free(
        self, need: MemoryNeed, cache: ConversationCache, clock: TurnClock, force: bool
    ) -> None:
        """Free memory for a phase and load its model. Raises NotEnoughMemory (not with `force`) and
        LoadError."""
        for useful_bytes, evict in self._eviction_steps(need, cache):
            if useful_bytes + need.weight_bytes <= need.model.free_memory():
                break
            evict()
            clock.check_cancel()
        minimum, free = need.minimum + need.weight_bytes, need.model.free_memory()
        if minimum > free and not force:
            raise NotEnoughMemory(need.task, minimum, free)
        if not need.model.is_loaded:
            self._reload(need.model, clock)
        self.scoring = need.model is self._pair.draft

    def max_available(self, model: LoadedModel, cache: ConversationCache) -> float:
        """Bytes that would be free for a phase of this model with the model loaded and everything
        else evicted."""
        available = model.free_memory() - (0 if model.is_loaded else model.info.weight_bytes)
        if self._caches is not None:
            available += self._caches.idle_bytes
        other = self._other_model(model)
        if other is not None and other.is_loaded:
            available += other.info.weight_bytes
        if model is self._pair.target and cache.draft is not None:
            available += cache.draft.nbytes
        return available

    def unload_draft(self) -> None:
        """Unload the draft, unless it is scoring; `TurnMemory.end_scoring` does it then."""
        draft = self._pair.draft
        if draft is not None and draft.is_loaded and not self.scoring:
            self._unload(draft, Reason(ReasonCode.UNLOADED_UNDER_PRESSURE))

    def drop_idle(self, everything: bool = False) -> None:
        """Drop the caches of all conversations, but not the most recently used one unless
        `everything`."""
        if self._caches is None:
            return
        self.stop_background_prefill()
        before = self._caches.nbytes
        saved = self._caches.evict_idle(everything)
        if not (freed := before - self._caches.nbytes):
            return
        _free_buffers()
        reason = Reason(ReasonCode.CACHES_DROPPED, {"all": everything, "saved": bool(saved)})
        self._emit(MemoryFreed(freed, reason))

    def stop_background_prefill(self) -> None:
        """Drop the background prefill. It restarts once memory is free."""
        if self._caches is None or not (freed := self._caches.cancel_background()):
            return
        _free_buffers()
        self._emit(MemoryFreed(freed, Reason(ReasonCode.BACKGROUND_FREED)))

    def drop_draft_cache(self, cache: ConversationCache) -> None:
        """Drop the draft's cache. For a later question it has to read the prompt again."""
        if cache.draft is None or not (freed := cache.draft.nbytes):
            return
        cache.draft.clear()
        _free_buffers()
        self._emit(MemoryFreed(freed, Reason(ReasonCode.DRAFT_CACHE_DROPPED)))

    # ------------------------------------------------------------------------------ inside

    def _eviction_steps(
        self, need: MemoryNeed, cache: ConversationCache
    ) -> Iterator[tuple[float, Callable[[], None]]]:
        """Pairs (bytes, evict): run `evict` if less than these bytes are free."""
        yield need.preferred, _free_buffers
        yield need.preferred, self.stop_background_prefill
        yield need.preferred, self.drop_idle
        other = self._other_model(need.model)
        if other is not None and other.is_loaded:
            reason = Reason(ReasonCode.UNLOADED_FOR_OTHER, {"other": need.model.info.name})
            yield need.minimum, lambda: self._unload(other, reason)
        if need.model is self._pair.target:
            yield need.minimum, lambda: self.drop_draft_cache(cache)

    def _other_model(self, model: LoadedModel) -> LoadedModel | None:
        return self._pair.draft if model is self._pair.target else self._pair.target

    def _unload(self, model: LoadedModel, reason: Reason) -> None:
        before = mx.get_active_memory()
        model.unload()
        _free_buffers()
        freed = max(before - mx.get_active_memory(), 0)
        self._emit(Unloaded(model.info.name, freed, reason))

    def _reload(self, model: LoadedModel, clock: TurnClock) -> None:
        started_at = time.perf_counter()
        loaded = clock.report(Phase.LOAD, 1)
        with clock.timed(Phase.LOAD):
            model.reload()
        seconds = time.perf_counter() - started_at
        self._emit(Reloaded(model.info.name, model.info.weight_bytes, seconds))
        loaded(1)


class TurnMemory:
    """Provides memory for the phases of one turn and limits their step sizes. With `force`, a phase
    is tried even if it is predicted not to fit."""

    def __init__(
        self, manager: MemoryManager, cache: ConversationCache, clock: TurnClock, force: bool
    ) -> None:
        self._manager, self._cache, self._clock, self._force = manager, cache, clock, force

    def ensure(self, need: MemoryNeed, total: int) -> bool:
        """Free memory for a phase that ends with `total` cached tokens, load its model, and limit
        its step size. Returns False if the phase is tried although it does not fit; do not reserve
        capacity for it then. Raises NotEnoughMemory, LoadError or TurnCancelled."""
        self._manager.ensure_free(need, self._cache, self._clock, self._force)
        model = need.model
        rest = need.minimum - model.transient.bytes(SMALLEST_STEP, total, forced=True)
        free = model.free_memory()
        model.step.limit(
            *(model.transient.largest_step(free - rest, total, f) for f in (True, False))
        )
        return need.minimum <= free

    def check_step(self, model: LoadedModel, context: int, reserved: bool) -> None:
        """Raise TurnCancelled if the model's next step, after `context` tokens, would use nearly
        all memory. (The estimate may have been wrong or skipped, or other programs need more.)
        `reserved`: whether the cache already has capacity for the step."""
        need = next_step_bytes(model, context, reserved)
        threshold = THRESHOLDS[PressureLevel.CRITICAL]
        if need > model.free_memory(threshold):
            _free_buffers()
            if need > model.free_memory(threshold):
                raise TurnCancelled(FinishReason.MEMORY)

    def ensure_scoring(self, draft: LoadedModel, new: int, total: int) -> bool:
        """Like `ensure`, for a draft that prefills `new` tokens and scores all `total`."""
        return self.ensure(scoring_need(draft, new, total), total)

    def ensure_encoding(self, need: MemoryNeed) -> None:
        """Free memory for `encoding_need`. Raises NotEnoughMemory and TurnCancelled."""
        self._manager.ensure_free(need, self._cache, self._clock, self._force)

    def end_scoring(self) -> None:
        """Mark scoring as finished. If memory is tight, unload the draft and drop its cache."""
        self._manager.scoring = False
        if self._manager.is_tight:
            self._manager.drop_draft_cache(self._cache)
            self._manager.unload_draft()


def _free_buffers() -> None:
    gc.collect()
    mx.clear_cache()


REPORT_INTERVAL = 1.0
"""Seconds between two `MemoryReport` events."""


class PressureResponse:
    """Responds to changes of memory pressure for one loaded pair, on the engine thread."""

    def __init__(
        self,
        pair: ModelPair,
        monitor: MemoryMonitor,
        memory_manager: MemoryManager,
        emit: Callable[[Event], None],
    ) -> None:
        self._pair, self._monitor, self._memory_manager, self._emit = (
            pair,
            monitor,
            memory_manager,
            emit,
        )
        self._reported = time.monotonic()

    def poll(self) -> bool:
        """Check memory pressure and respond. Returns whether the running turn has to stop."""
        for change in self._monitor.take_changes():
            self._emit(
                PressureChanged(
                    change.level, change.previous, memory.memory_stats(), scarcity(change.sample)
                )
            )
            self._respond(change.level)
        now = time.monotonic()
        if now - self._reported >= REPORT_INTERVAL:
            self._reported = now
            self._emit(MemoryReport(memory.memory_stats(), self._monitor.level))
        return self._monitor.level is PressureLevel.CRITICAL

    def after_turn(self) -> None:
        """Under pressure, drop idle caches, at CRITICAL also those of the finished turn."""
        if not self.is_normal:
            self._memory_manager.drop_idle(everything=self._monitor.level is PressureLevel.CRITICAL)

    @property
    def is_normal(self) -> bool:
        return self._monitor.level is PressureLevel.NORMAL

    def _respond(self, level: PressureLevel) -> None:
        for model in (self._pair.target, self._pair.draft):
            if model is not None:
                model.step.under_pressure = level is not PressureLevel.NORMAL
        if level is PressureLevel.NORMAL:
            return
        mx.clear_cache()
        self._memory_manager.drop_idle()
        if level is not PressureLevel.WARN:
            self._memory_manager.unload_draft()
            drop_built_in_encoders()
            mx.clear_cache()


def scarcity(sample: MemorySample) -> Reason:
    """Why memory is scarce: this program's share, swapping, or other programs."""
    if sample.share >= THRESHOLDS[PressureLevel.WARN] - HYSTERESIS:
        data = {"used": sample.used, "ceiling": sample.ceiling, "share": sample.share}
        return Reason(ReasonCode.MEMORY_SHARE, data)
    if sample.swap_rate >= SWAP_RATE_WARNING:
        return Reason(ReasonCode.SWAPPING, {"rate": sample.swap_rate})
    return Reason(ReasonCode.OTHER_PROGRAMS)

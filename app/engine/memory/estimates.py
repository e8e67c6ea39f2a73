"""What the phases of a turn need in memory."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.model.loader import LoadedModel
from app.estimate.memory import SMALLEST_STEP
from app.protocol.reasons import Data


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """A phase needs `model` loaded, and more bytes: `preferred`, or at least `minimum`. `task`
    is as `NotEnoughMemory` takes it."""

    task: Data
    model: LoadedModel
    preferred: float
    minimum: float

    @property
    def weight_bytes(self) -> int:
        return 0 if self.model.is_loaded else self.model.info.weight_bytes


def prefill_need(
    target: LoadedModel, count: int, context: int, retain_all: bool = False
) -> MemoryNeed:
    """The target prefills `count` tokens, and has `context` cached in the end. With `retain_all`,
    windows evict nothing."""
    cache = target.cache_size.bytes(count, retain_all)
    preferred, minimum = (cache + transient_bytes(target, step, context) for step in _steps(target))
    return MemoryNeed({"reading": count}, target, preferred, minimum)


def _steps(model: LoadedModel) -> tuple[int, int]:
    """Tokens of the step that memory is freed for, and of the smallest: slower, but it fits."""
    return model.step.backend.first_step, SMALLEST_STEP


def transient_bytes(model: LoadedModel, step: int, context: int, forced: bool = True) -> float:
    """What a step needs on top of its cache entries, with attention `forced` to be fused where that
    is possible. One layer's buffer exists twice while it grows, before the first step or while
    decoding; on a CPU also during its attention."""
    copy = model.cache_size.largest_layer_bytes * context
    during_attention = copy if model.transient.on_cpu else 0.0
    return max(copy, during_attention + model.transient.bytes(step, context, forced))


def next_step_bytes(model: LoadedModel, context: int, reserved: bool = False) -> float:
    """What the next step after `context` tokens needs. Unless its capacity is reserved, it grows
    the cache, and one layer's buffer exists twice."""
    step = model.step.tokens
    transient = transient_bytes(model, step, context + step, model.step.forces_fused(step))
    if reserved:
        return transient
    size = model.cache_size
    return size.bytes(step, retain_all=True) + size.largest_layer_bytes * context + transient


def scoring_need(draft: LoadedModel, count: int, total: int) -> MemoryNeed:
    """The draft prefills `count` tokens, and scores all `total`."""
    cache, scores = draft.cache_size.bytes(count), draft.transient.scoring(total)
    preferred, minimum = (
        cache + max(transient_bytes(draft, step, total), scores) for step in _steps(draft)
    )
    return MemoryNeed({"scoring": count}, draft, preferred, minimum)

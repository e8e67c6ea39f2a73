"""What the phases of a turn take, and what would fit where one does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.engine.loader import LoadedModel
from app.engine.memory import SMALLEST_STEP

PREFERRED_STEP = 256
"""Tokens at once that room is made for. With less, reading is slower, but it fits."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """`model` in memory, and bytes beside what is there: `usual` ones, and the `least` to do with.
    `what` is how it is called at the beginning of a sentence."""

    what: str
    model: LoadedModel
    preferred: float
    minimum: float

    @property
    def weight_bytes(self) -> int:
        return 0 if self.model.is_loaded else self.model.info.weight_bytes


def prefill_need(
    target: LoadedModel, count: int, context: int, keep_evicted: bool = False
) -> MemoryNeed:
    """The target reads `count` more tokens, and has `seen` so many in the end. With `retained`,
    what falls out of a window stays."""
    kept = target.cache_size.bytes(count, keep_evicted)
    usual, least = (
        kept + transient_bytes(target, step, context) for step in (PREFERRED_STEP, SMALLEST_STEP)
    )
    return MemoryNeed(f"Reading {count:,} tokens", target, usual, least)


def transient_bytes(model: LoadedModel, step: int, context: int) -> float:
    """What a step that ends after `seen` tokens takes beside what it leaves. A layer is there once
    more while its buffer grows, before the first step or while writing; on a CPU also while it is
    multiplied."""
    again = model.cache_size.largest_layer_bytes * context
    multiplied = again if model.transient.on_cpu else 0.0
    return max(again, multiplied + model.transient.bytes(step, context))


def next_step_bytes(model: LoadedModel, context: int, reserved: bool = False) -> float:
    """What the next step after `seen` tokens takes. Where room for it is not reserved, it grows the
    cache, and one layer's buffer is there twice."""
    step = model.step.tokens
    least = transient_bytes(model, step, context + step)
    if reserved:
        return least
    grown = model.cache_size.largest_layer_bytes * context
    return model.cache_size.bytes(step, keep_evicted=True) + grown + least


def scoring_need(draft: LoadedModel, count: int, total: int) -> MemoryNeed:
    """The draft reads `count` more tokens, and scores all of them."""
    kept, scores = draft.cache_size.bytes(count), draft.transient.scoring(total)
    usual, least = (
        kept + max(transient_bytes(draft, step, total), scores)
        for step in (PREFERRED_STEP, SMALLEST_STEP)
    )
    return MemoryNeed(f"Scoring {count:,} tokens", draft, usual, least)


def largest_that_fits(needed: Callable[[int], float], available: float, limit: int) -> int:
    """The greatest n up to `most` for which `least(n)` is within the room, or 0. `least` grows."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle) <= available:
            low = middle
        else:
            high = middle - 1
    return low

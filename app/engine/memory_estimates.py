"""What the phases of a turn take, and what would fit where one does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.engine.loader import LoadedModel
from app.engine.memory import SMALLEST_STEP

USUAL_STEP = 256
"""Tokens at once that room is made for. With less, reading is slower, but it fits."""


@dataclass(frozen=True, slots=True)
class Need:
    """`model` in memory, and bytes beside what is there: `usual` ones, and the `least` to do with.
    `what` is how it is called at the beginning of a sentence."""

    what: str
    model: LoadedModel
    usual: float
    least: float

    @property
    def weights(self) -> int:
        return 0 if self.model.here else self.model.info.weight_bytes


def reading(target: LoadedModel, count: int, seen: int, retained: bool = False) -> Need:
    """The target reads `count` more tokens, and has `seen` so many in the end. With `retained`,
    what falls out of a window stays."""
    kept = target.cache_size.bytes(count, retained)
    usual, least = (kept + moment(target, step, seen) for step in (USUAL_STEP, SMALLEST_STEP))
    return Need(f"Reading {count:,} tokens", target, usual, least)


def moment(model: LoadedModel, step: int, seen: int) -> float:
    """What a step that ends after `seen` tokens takes beside what it leaves. A layer is there once
    more while its buffer grows, before the first step or while writing; on a CPU also while it is
    multiplied."""
    again = model.cache_size.largest * seen
    multiplied = again if model.transient.on_cpu else 0.0
    return max(again, multiplied + model.transient.bytes(step, seen))


def next_step(model: LoadedModel, seen: int, reserved: bool = False) -> float:
    """What the next step after `seen` tokens takes. Where room for it is not reserved, it grows the
    cache, and one layer's buffer is there twice."""
    step = model.step.tokens
    least = moment(model, step, seen + step)
    if reserved:
        return least
    grown = model.cache_size.largest * seen
    return model.cache_size.bytes(step, retained=True) + grown + least


def scoring(draft: LoadedModel, count: int, total: int) -> Need:
    """The draft reads `count` more tokens, and scores all of them."""
    kept, scores = draft.cache_size.bytes(count), draft.transient.scoring(total)
    usual, least = (
        kept + max(moment(draft, step, total), scores) for step in (USUAL_STEP, SMALLEST_STEP)
    )
    return Need(f"Scoring {count:,} tokens", draft, usual, least)


def most_that_fits(least: Callable[[int], float], room: float, most: int) -> int:
    """The greatest n up to `most` for which `least(n)` is within the room, or 0. `least` grows."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if least(middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low

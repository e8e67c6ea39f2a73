"""Selects spans by importance within a budget, each with its reason. Pure NumPy: no MLX."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.protocol.options import DEFAULT_TUNING, Tuning
from app.protocol.prompt import Span, SpanReason


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected tokens: `positions` int32 (N,), ascending, and the same as spans."""

    positions: NDArray[np.int32]
    spans: tuple[Span, ...]


def select(
    importance: NDArray[np.float32],
    pinned: NDArray[np.bool_],
    keep: float,
    tuning: Tuning = DEFAULT_TUNING,
    cached: NDArray[np.bool_] | None = None,
    read_later: NDArray[np.int32] | None = None,
    one_budget: bool = False,
) -> Selection:
    """Select every pinned token and the most important chunks of the others.

    `importance` and `pinned` are (M,). Each run of eligible tokens is cut into chunks from its
    start. The top ceil(keep * chunks) by smoothed chunk mean are selected; of equal ones the
    earlier.

    `cached` bool (L,) says which of the first L tokens earlier turns have read. Those stay and
    count: of the skipped chunks as many are recalled as keep still allows, and at least the
    tuning's `recall_share` of keep. New tokens have a separate budget, so that the first
    document does not crowd out a second one; or, with `one_budget`, the most important of all are
    selected. The tokens `read_later` (n,) were read while the answer was written, and are selected
    beside all that.
    """
    if not 0.0 <= keep <= 1.0:
        raise ValueError(f"keep must be between 0 and 1, not {keep}")
    if not np.isfinite(importance).all():  # sorting would put the first chunks before all others
        raise ValueError("some importance is not a finite number")
    starts, ends = chunk_bounds(pinned, tuning.chunk)
    known = 0 if cached is None else len(cached)
    selected = pinned.copy()
    if cached is not None:
        selected[:known] |= cached
    if len(starts):
        smoothed = _chunk_importance(importance, pinned, starts, ends, tuning)
        order = np.argsort(-smoothed, kind="stable")
        earlier = (starts < (0 if one_budget else known))[order]
        skipped = order[earlier & np.logical_or.reduceat(~selected, starts)[order]]
        new, old = order[~earlier], int(earlier.sum())
        allowed = math.ceil(keep * old) - (old - len(skipped))
        at_least = math.ceil(tuning.recall_share * keep * old)
        recalled = skipped[: max(allowed, at_least)]
        top = np.concatenate([new[: math.ceil(keep * len(new))], recalled])
        selected |= _mask_of(starts[top], ends[top], len(selected))
    needed_later = np.zeros(len(selected), bool)
    if read_later is not None:
        needed_later[read_later] = ~selected[read_later]
    spans = _spans(selected, pinned, needed_later, importance)
    selected |= needed_later
    return Selection(np.flatnonzero(selected).astype(np.int32), spans)


def adaptive_keep(
    importance: NDArray[np.float32], pinned: NDArray[np.bool_], tuning: Tuning = DEFAULT_TUNING
) -> float:
    """The keep at which `select` takes every chunk that is important, with one budget: at least
    `tuning.keep_above` times as far above the middle one as the third most important one, which a
    single passage with the chunks beside it reaches. 1 if nothing stands out, 0 if nothing is
    eligible."""
    starts, ends = chunk_bounds(pinned, tuning.chunk)
    if not len(starts):
        return 0.0
    smoothed = _chunk_importance(importance, pinned, starts, ends, tuning)
    above = smoothed - np.median(smoothed)
    important = above >= tuning.keep_above * np.sort(above)[-min(3, len(above))]
    important &= (above > 0) | (above.max() == 0)
    return float(important.mean())


def _chunk_importance(
    importance: NDArray[np.float32],
    pinned: NDArray[np.bool_],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    tuning: Tuning,
) -> NDArray[np.float64]:
    means = np.add.reduceat(importance * ~pinned, starts) / (ends - starts)
    return _with_neighbours(means, starts, ends, tuning.neighbours)


def chunk_bounds(
    pinned: NDArray[np.bool_], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends of the chunks of every run of eligible tokens."""
    tokens = np.flatnonzero(~pinned)
    run_starts = np.where(np.diff(tokens, prepend=-2) != 1, tokens, 0)
    is_first = (tokens - np.maximum.accumulate(run_starts)) % size == 0
    return tokens[is_first], tokens[np.roll(is_first, -1)] + 1


def _mask_of(starts: NDArray[np.int64], ends: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """The tokens of these chunks, none of which overlap, bool (length,)."""
    steps = np.zeros(length + 1, np.int8)
    steps[starts] += 1
    steps[ends] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)


def _with_neighbours(
    means: NDArray[np.floating], starts: NDArray[np.int64], ends: NDArray[np.int64], share: float
) -> NDArray[np.float64]:
    """Each chunk's mean, and `share` times those of the chunks right before and after it; at least
    `share` times what the one right before it has then: what follows belongs to it more often."""
    adjacent = starts[1:] == ends[:-1]
    found = means.astype(np.float64)
    found[1:] += share * means[:-1] * adjacent
    found[:-1] += share * means[1:] * adjacent
    smoothed: list[float] = found.tolist()  # each depends on the one before
    for index in np.flatnonzero(adjacent).tolist():
        smoothed[index + 1] = max(smoothed[index + 1], share * smoothed[index])
    return np.array(smoothed)


_REASONS = (None, SpanReason.IMPORTANT, SpanReason.PINNED, SpanReason.NEEDED_LATER)
"""By kind; 0 was skipped."""


def _spans(
    selected: NDArray[np.bool_],
    pinned: NDArray[np.bool_],
    needed_later: NDArray[np.bool_],
    importance: NDArray[np.float32],
) -> tuple[Span, ...]:
    if not len(selected):
        return ()
    eligible = importance[~pinned]
    unit = float(eligible.mean()) if len(eligible) else 1.0
    kinds = selected.astype(np.int8) + pinned + 3 * needed_later
    starts = np.append(0, np.flatnonzero(np.diff(kinds)) + 1)
    ends = np.append(starts[1:], len(kinds))
    sums = np.add.reduceat(importance, starts, dtype=np.float64)
    scores = sums / (ends - starts) / unit if unit > 0 else np.zeros(len(starts))
    runs = zip(kinds[starts].tolist(), starts.tolist(), ends.tolist(), scores.tolist(), strict=True)
    return tuple(
        Span(start, end, reason, None if reason is SpanReason.PINNED else score)
        for kind, start, end, score in runs
        if (reason := _REASONS[kind]) is not None
    )

"""Importance and a budget -> kept spans, each with its reason. Pure numpy: no model, no MLX."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.protocol.options import DEFAULT_TUNING, Tuning
from app.protocol.prompt import Span, SpanReason


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read: `positions` int32 (N,), ascending, and the same as spans."""

    keep: float
    positions: NDArray[np.int32]
    spans: tuple[Span, ...]


def select(
    importance: NDArray[np.float32],
    pinned: NDArray[np.bool_],
    keep: float,
    tuning: Tuning = DEFAULT_TUNING,
    cached: NDArray[np.bool_] | None = None,
) -> Selection:
    """Keep every pinned token and the most important chunks of the others.

    `importance` and `pinned` are (M,). Each run of eligible tokens is cut into chunks from its
    start; by chunk means, carried forward, the top ceil(keep * chunks) are kept, among equals the
    earlier one.

    `read` bool (L,) says which of the first L tokens earlier turns have read. Those stay and count:
    of what was left out as many chunks are recalled as keep still allows, and at least the tuning's
    `recall_share` of keep. What is new has a budget of its own, so that a second document is not
    crowded out by the first.
    """
    if not 0.0 <= keep <= 1.0:
        raise ValueError(f"keep must be between 0 and 1, not {keep}")
    if not np.isfinite(importance).all():  # sorting would put the first chunks before all others
        raise ValueError("some importance is no finite number")
    starts, ends = _chunks(pinned, tuning.chunk)
    known = np.zeros(0, bool) if cached is None else cached
    kept = pinned.copy()
    kept[: len(known)] |= known
    if len(starts):
        means = np.add.reduceat(importance * ~pinned, starts) / (ends - starts)
        order = np.argsort(-_propagate(means, starts, ends, tuning.carry), kind="stable")
        earlier = starts[order] < len(known)
        left_out = order[earlier & np.logical_or.reduceat(~kept, starts)[order]]
        new, old = order[~earlier], int(earlier.sum())
        allowed = math.ceil(keep * old) - (old - len(left_out))
        least = math.ceil(tuning.recall_share * keep * old)
        recalled = max(allowed, least) if tuning.recall else 0
        chosen = np.concatenate([new[: math.ceil(keep * len(new))], left_out[:recalled]])
        kept |= _mask_of(starts[chosen], ends[chosen], len(kept))
    spans = _spans(kept, pinned, importance)
    return Selection(keep, np.flatnonzero(kept).astype(np.int32), spans)


def _runs(values: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Borders of maximal runs of equal values: starts and ends."""
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    borders = np.flatnonzero(np.diff(values)) + 1
    return np.concatenate([[0], borders]), np.concatenate([borders, [len(values)]])


def _chunks(pinned: NDArray[np.bool_], chunk: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends of the chunks of every run of eligible tokens."""
    starts, ends = _runs(pinned.astype(np.int8))
    eligible = ~pinned[starts] if len(starts) else np.zeros(0, bool)
    pieces = [np.arange(s, e, chunk) for s, e in zip(starts[eligible], ends[eligible], strict=True)]
    if not pieces:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    limits = [np.minimum(piece + chunk, e) for piece, e in zip(pieces, ends[eligible], strict=True)]
    return np.concatenate(pieces), np.concatenate(limits)


def _mask_of(starts: NDArray[np.int64], ends: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """The tokens of these chunks, none of which overlap, bool (length,)."""
    steps = np.zeros(length + 1, np.int8)
    steps[starts] += 1
    steps[ends] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)


def _propagate(
    means: NDArray[np.float32], starts: NDArray[np.int64], ends: NDArray[np.int64], smoothing: float
) -> NDArray[np.float64]:
    """Each chunk's mean, or `carry` times its neighbour's before it when that is more."""
    carried: list[float] = means.astype(np.float64).tolist()  # each depends on the one before
    for index, follows in enumerate((starts[1:] == ends[:-1]).tolist(), 1):
        if follows and smoothing * carried[index - 1] > carried[index]:
            carried[index] = smoothing * carried[index - 1]
    return np.array(carried)


def _spans(
    kept: NDArray[np.bool_], pinned: NDArray[np.bool_], importance: NDArray[np.float32]
) -> tuple[Span, ...]:
    eligible = importance[~pinned]
    unit = float(eligible.mean()) if len(eligible) else 1.0
    kinds = kept.astype(np.int8) + pinned  # 0 dropped, 1 important, 2 pinned
    starts, ends = _runs(kinds)
    if not len(starts):
        return ()
    sums = np.add.reduceat(importance, starts, dtype=np.float64)
    scores = sums / (ends - starts) / unit if unit > 0 else np.zeros(len(starts))
    runs = zip(kinds[starts].tolist(), starts.tolist(), ends.tolist(), scores.tolist(), strict=True)
    return tuple(
        Span(start, end, SpanReason.PINNED)
        if kind == 2
        else Span(start, end, SpanReason.IMPORTANT, score)
        for kind, start, end, score in runs
        if kind
    )

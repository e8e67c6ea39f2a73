"""The importance of a prompt's tokens, coarse enough to be shown while they are scored."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.engine.scorers.attention_scores import AttentionObserver, Importance
from app.protocol.events import ImportanceMap

BUCKETS = 200
"""Finer than most terminals are wide."""


def importance_map(
    turn: int, observer: AttentionObserver, expected: int, eligible: NDArray[np.bool_]
) -> ImportanceMap:
    """After `observer.observed` of `expected` observations."""
    return ImportanceMap(turn, buckets(observer.importance * eligible), observer.observed, expected)


def buckets(importance: Importance) -> tuple[float, ...]:
    """The means of equal parts, the highest of which is 1."""
    count = min(BUCKETS, len(importance))
    starts = np.arange(count) * len(importance) // count
    means = np.add.reduceat(importance, starts) / np.diff([*starts, len(importance)])
    return tuple((means / max(float(means.max()), 1e-12)).tolist())

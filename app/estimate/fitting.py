"""Fits the costs of a pair of models to timed turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from app.protocol.cost_model import (
    UNKNOWN_COSTS,
    AttentionWork,
    Costs,
    CostTerm,
    LinearCost,
    Timing,
)

Floats = NDArray[np.float64]
MAX_TIMINGS = 50
"""Number of newest timings of a term that count."""
HALF_LIFE = 12
"""The weight of a timing halves after this many newer ones: the machine's speed changes."""
_ITERATIONS = 8
_NOISE_FLOOR = 0.03
"""Relative errors below this count as noise."""
_RATIO_PRIOR = 0.15
"""Weight, relative to one timing, of the attention cost predicted from operations."""
_FIXED_PRIOR = 0.05
"""Weight of a prior for zero fixed cost."""
_FIRST_AGE, _FIRST_TOKENS = 3 * HALF_LIFE, (512, 4_096)
"""The first estimate counts as timings of these lengths and of the oldest timing's length, this
many timings older: a few tokens' time says nothing about thousands."""


def fit_costs(
    timings: Sequence[Timing],
    ratios: tuple[float, float] = (0.0, 0.0),
    first: Costs = UNKNOWN_COSTS,
) -> Costs:
    """Fit all costs to `timings`, newest last; a term without timings keeps its `first` estimate.
    `ratios` (target, draft): predicted `attention_ratio`, used as a prior. It decides while all
    timings have about the same length."""
    target, draft = ratios
    return Costs(
        target=_fit_line(timings, CostTerm.TARGET, first.target, target),
        draft=_fit_line(timings, CostTerm.DRAFT, first.draft, draft),
        full=_fit_line(timings, CostTerm.FULL, first.full),
        sparse=_fit_line(timings, CostTerm.SPARSE, first.sparse),
    )


def _fit_line(
    timings: Sequence[Timing], part: CostTerm, first: LinearCost | None, ratio: float | None = None
) -> LinearCost | None:
    """Minimise absolute relative errors by iteratively reweighted, non-negative least squares, so
    that a single slow timing changes little."""
    seen = [each for each in timings if each.term is part and each.seconds > 0][-MAX_TIMINGS:]
    seen = [each for each in seen if each.work.tokens > 0]
    if not seen:
        return first
    ages = [0.5 ** ((len(seen) - 1 - index) / HALF_LIFE) for index in range(len(seen))]
    if first is not None:
        works = seen[0].work, *map(AttentionWork, _FIRST_TOKENS)
        believed = [Timing(part, work, first.seconds(work)) for work in works]
        believed = [each for each in believed if each.seconds > 0]
        ages = [ages[0] * 0.5 ** (_FIRST_AGE / HALF_LIFE)] * len(believed) + ages
        seen = believed + seen
    terms = [(1.0, each.work.tokens, each.work.attention_pairs) for each in seen]
    rows = np.array(terms, np.float64)[:, : 2 if ratio is None else 3]
    seconds = np.array([each.seconds for each in seen])
    priors, prior_weights = _priors(rows, seconds, ratio)
    age = np.array(ages)
    found, weights = seconds, age
    for _ in range(_ITERATIONS):
        # The geometric mean of measured and fitted: too slow and too fast count the same.
        scales = np.sqrt(seconds * found)
        solution = _non_negative(
            np.concatenate([rows / scales[:, None], priors]),
            np.append(seconds / scales, np.zeros(len(priors))),
            np.append(weights, prior_weights),
        )
        found = np.maximum(rows @ solution, 1e-3 * seconds)
        weights = age / np.maximum(np.abs(np.log(found / seconds)), _NOISE_FLOOR)
    return LinearCost(*solution.tolist())


def _priors(rows: Floats, seconds: Floats, ratio: float | None) -> tuple[Floats, Floats]:
    """Prior equations (n, terms), each with right-hand side 0, and their weights (n,). They
    determine what the timings do not."""
    believed = [np.eye(rows.shape[1])[0] / np.median(seconds)]
    weights = [_FIXED_PRIOR**2 / _NOISE_FLOOR]
    if ratio:
        size = np.median(rows[:, 2] / seconds)
        believed.append(np.array([0.0, -ratio * size, size]))
        weights.append(_RATIO_PRIOR**2 / _NOISE_FLOOR)
    return np.array(believed), np.array(weights)


def _non_negative(rows: Floats, expected: Floats, weights: Floats) -> Floats:
    """The non-negative weighted least squares solution (terms,) of `rows` (n, terms), by trying all
    sets of non-zero coefficients: there are at most three coefficients."""
    root = np.sqrt(weights)
    rows, expected = rows * root[:, None], expected * root
    sizes = np.abs(rows).max(axis=0)
    rows, width = rows / np.where(sizes, sizes, 1.0), rows.shape[1]
    best, lowest_error = np.zeros(width), math.inf
    for count in range(1, width + 1):
        for chosen in map(list, combinations(range(width), count)):
            solution, _, rank, _ = np.linalg.lstsq(rows[:, chosen], expected, rcond=1e-6)
            if rank < count or solution.min() < 0:
                continue
            error = float(((rows[:, chosen] @ solution - expected) ** 2).sum())
            if error < lowest_error:
                best, lowest_error = np.zeros(width), error
                best[chosen] = solution
    return best / np.where(sizes, sizes, 1.0)

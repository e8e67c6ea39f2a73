"""Fits prefill costs to timed turns, from a first estimate on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median

from app.protocol.cost_model import (
    UNKNOWN_COSTS,
    AttentionWork,
    Costs,
    CostTerm,
    LinearCost,
    Timing,
)

MAX_TIMINGS = 50
"""The newest timings of a term that count."""
HALF_LIFE = 12
"""Timings after which one counts half: other programs, heat and settings change the speed."""
_ITERATIONS = 8
_NOISE_FLOOR = 0.03
"""Relative error that is not worth explaining."""
_RATIO_PRIOR = 0.15
"""Weight, relative to one timing, of the attention cost that the number of operations predicts."""
_FIXED_PRIOR = 0.05
"""Weight of there being no fixed cost."""
_FIRST_AGE, _FIRST_TOKENS = 3 * HALF_LIFE, (512, 4_096)
"""The first estimate counts as timings of these lengths and of the oldest one's, this many timings
before that: what a few tokens took says nothing about thousands."""


def fit_costs(
    timings: Sequence[Timing],
    ratios: tuple[float, float] = (0.0, 0.0),
    first: Costs = UNKNOWN_COSTS,
) -> Costs:
    """Fit all costs to `timings`, the newest last; a term without any costs what the `first`
    estimate says. `ratios` (target, draft): what attending to one token takes, as a share of a
    token's. They decide while all timings have about the same length."""
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
    """Minimise the absolute relative errors by iteratively reweighted least squares, with no
    coefficient below zero. So a single slow timing changes little."""
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
    rows = [_features(each.work, ratio is not None) for each in seen]
    seconds = [each.seconds for each in seen]
    found, weights = seconds, ages
    for _ in range(_ITERATIONS):
        # Between what it took and what it should have: too slow and too fast count the same.
        scales = [math.sqrt(a * b) for a, b in zip(seconds, found, strict=True)]
        equations = [
            ([x / scale for x in row], second / scale, weight)
            for row, second, scale, weight in zip(rows, seconds, scales, weights, strict=True)
        ]
        equations += _priors(rows, seconds, ratio)
        solution = _non_negative(equations)
        found = [
            max(sum(a * x for a, x in zip(solution, row, strict=True)), 1e-3 * second)
            for row, second in zip(rows, seconds, strict=True)
        ]
        errors = [abs(math.log(a / b)) for a, b in zip(found, seconds, strict=True)]
        weights = [age / max(error, _NOISE_FLOOR) for age, error in zip(ages, errors, strict=True)]
    return LinearCost(*solution)


def _features(work: AttentionWork, with_pairs: bool) -> list[float]:
    return [1.0, float(work.tokens), *([work.attention_pairs] if with_pairs else [])]


Equation = tuple[list[float], float, float]
"""Coefficients, what they are to give, and the weight."""


def _priors(rows: list[list[float]], seconds: list[float], ratio: float | None) -> list[Equation]:
    """The priors, for what the timings do not determine."""
    start = [1 / median(seconds), *[0.0] * (len(rows[0]) - 1)]
    believed = [(start, 0.0, _FIXED_PRIOR**2 / _NOISE_FLOOR)]
    if ratio:
        size = median(row[2] / second for row, second in zip(rows, seconds, strict=True))
        believed.append(([0.0, -ratio * size, size], 0.0, _RATIO_PRIOR**2 / _NOISE_FLOOR))
    return believed


def _non_negative(equations: list[Equation]) -> list[float]:
    """The least squares solution without a negative part, by trying which parts are zero: there are
    three at most."""
    width = len(equations[0][0])
    best, least = [0.0] * width, math.inf
    for count in range(1, width + 1):
        for chosen in combinations(range(width), count):
            solution = _least_squares(equations, chosen)
            if solution is None or min(solution) < 0:
                continue
            error = sum(
                weight * (sum(a * x for a, x in zip(solution, row, strict=True)) - expected) ** 2
                for row, expected, weight in equations
            )
            if error < least:
                best, least = solution, error
    return best


def _least_squares(equations: list[Equation], chosen: tuple[int, ...]) -> list[float] | None:
    """With all but the `chosen` coefficients zero; None if the equations are singular."""
    sizes = [max(abs(row[i]) for row, _, _ in equations) or 1.0 for i in chosen]
    matrix = [[0.0] * (len(chosen) + 1) for _ in chosen]
    for row, expected, weight in equations:
        scaled = [row[i] / size for i, size in zip(chosen, sizes, strict=True)]
        for line, x in zip(matrix, scaled, strict=True):
            for column, y in enumerate((*scaled, expected)):
                line[column] += weight * x * y
    for index, line in enumerate(matrix):  # Gauss; the normal equations need no pivoting
        if line[index] < 1e-12:
            return None
        for other in matrix:
            if other is not line:
                factor = other[index] / line[index]
                other[:] = [b - factor * a for a, b in zip(line, other, strict=True)]
    width = len(equations[0][0])
    solution = [0.0] * width
    for place, (index, size) in enumerate(zip(chosen, sizes, strict=True)):
        solution[index] = matrix[place][-1] / matrix[place][place] / size
    return solution

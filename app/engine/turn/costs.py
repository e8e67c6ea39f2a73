"""What the loaded model pair costs on this machine: a first estimate, then fitted to its stored
timings; and how sure it was of its last answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from app.engine.backend.blas import matrix_rate
from app.engine.backend.machine_record import MachineRecord
from app.engine.model.loader import LoadedModel, ModelPair
from app.engine.model.text_encoder import ENCODER_OPERATIONS
from app.engine.progress import Part
from app.engine.scorers.attention import LOOKAHEAD
from app.engine.scorers.choice import choose_scorer
from app.protocol.cost_model import (
    FREE,
    UNKNOWN_COSTS,
    AttentionWork,
    Costs,
    CostTerm,
    LinearCost,
    Timing,
)

ANSWERS = 32
"""The last answers, whose confidence is the usual one."""
FEWEST_ANSWERS = 8
"""With fewer it is unknown."""


TOKENISE_SECONDS = 1e-5
"""To tokenise a token, in the sandbox."""
SMALL_MATRICES = 2.0
"""How many times as long the encoder's operations take as a large model's (measured: 1.4 to 2)."""


def first_costs(pair: ModelPair) -> Costs:
    """The estimate of all costs."""
    target, draft = pair.target, pair.draft
    step, per_token = _speed(target)
    rate = 2 * target.info.parameters / per_token if target.info.parameters else matrix_rate()
    encoding = SMALL_MATRICES * ENCODER_OPERATIONS / rate
    full = LinearCost(step, TOKENISE_SECONDS + (encoding if pair.only_quotes else 0.0))
    read = LinearCost(0.0, per_token, per_token * attention_ratio(target))
    if draft is None:
        sparse = LinearCost(step, full.per_token + encoding)
        return Costs(read, FREE, full, sparse)
    draft_step, by_draft = _speed(draft)
    scoring = by_draft
    # The search for what to quote is timed as a part of scoring, too.
    if pair.only_quotes or Part.BUILT_IN in choose_scorer(pair, 0).parts:
        scoring += encoding
    sparse = LinearCost(step + LOOKAHEAD * draft_step, TOKENISE_SECONDS)
    score = LinearCost(0.0, scoring, by_draft * attention_ratio(draft))
    return Costs(read, score, full, sparse)


def attention_ratio(model: LoadedModel) -> float:
    """Seconds of attending to one token, as a share of those of a token in the weights."""
    return model.attention_cost_ratio * model.step.backend.attention_slowdown


def _speed(model: LoadedModel) -> tuple[float, float]:
    """Seconds of a step of one token, and of each token of a longer one."""
    if model.speed is not None:
        return model.speed.step, model.speed.per_token
    per_token = 2 * max(model.info.parameters, 1) / model.processes / matrix_rate()
    return 10 * per_token, per_token


class _Stored(NamedTuple):
    timings: list[Timing]
    confidences: list[float]
    """Of the last answers, 0..1."""


class CostStore:
    """For one loaded model pair; without a folder nothing is stored."""

    def __init__(self, pair: ModelPair, folder: Path | None) -> None:
        draft = pair.draft
        self._has_draft = draft is not None
        self._first = first_costs(pair)
        self._ratios = attention_ratio(pair.target), attention_ratio(draft) if draft else 0.0
        prints = pair.target.fingerprint, draft.fingerprint if draft else ""
        self._record = MachineRecord(folder, "costs", *prints)
        self._stored = self._record.read(_parse) or _Stored([], [])
        self.costs = self._fit()

    @property
    def usual_confidence(self) -> float | None:
        """The median of the last answers' confidence, 0..1; None after too few of them."""
        known = self._stored.confidences
        return median(known) if len(known) >= FEWEST_ANSWERS else None

    def add(self, timings: Sequence[Timing], confidences: Sequence[float] = ()) -> None:
        """Add timings and answers' confidences, and fit the costs again."""
        # Another program may have added to the file.
        known = self._record.read(_parse) or self._stored
        self._stored = _Stored(
            _newest([*known.timings, *timings]), [*known.confidences, *confidences][-ANSWERS:]
        )
        self._record.write(_plain(self._stored))
        self.costs = self._fit()

    def _fit(self) -> Costs:
        costs = fit_costs(self._stored.timings, self._ratios, self._first)
        return costs if self._has_draft else replace(costs, draft=FREE)


def _newest(timings: Sequence[Timing]) -> list[Timing]:
    return [
        each for part in CostTerm for each in [c for c in timings if c.term is part][-MAX_TIMINGS:]
    ]


def _parse(stored: Any) -> _Stored:
    """Raises an exception if that is implausible."""
    confidences = [float(each) for each in stored["confidences"]]
    if not all(0 <= each <= 1 for each in confidences):
        raise ValueError("not a probability")
    timings = [_parse_timing(*row) for row in stored["timings"]]
    return _Stored(_newest(timings), confidences[-ANSWERS:])


def _parse_timing(part: Any, tokens: Any, before: Any, most: Any, seconds: Any) -> Timing:
    counts = int(tokens), int(before), int(most)
    if not 0 < float(seconds) < 1e6 or not all(0 <= count < 1 << 32 for count in counts):
        raise ValueError("not a plausible timing")
    return Timing(CostTerm(part), AttentionWork(*counts), float(seconds))


def _plain(stored: _Stored) -> dict[str, Any]:
    rows = [
        [str(c.term), c.work.tokens, c.work.cached, c.work.max_context, round(c.seconds, 6)]
        for c in stored.timings
        if c.seconds >= 1e-6
    ]
    return {"timings": rows, "confidences": [round(each, 4) for each in stored.confidences]}


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

"""What reading costs a pair on a machine, by readings that were timed. Plain Python: a screen
reckons with it too.

Each model's reading takes start + token * n + pair * p seconds, where n tokens are read and p is
the sum over them of how many entries each attends to. What is neither's reading takes
start + token * M, where M is the prompt's length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from statistics import median

from app.engine.blocks import Blocks
from app.engine.tuning import DEFAULT_TUNING, Tuning


class Part(StrEnum):
    """What is timed on its own."""

    TARGET = "target"
    DRAFT = "draft"
    FULL = "full"
    """Of a full reading, what is not the target's."""
    SPARSE = "sparse"
    """Of a sparse one, what is neither model's: lookahead, selection, the first word."""


@dataclass(frozen=True, slots=True)
class Work:
    """`tokens` that a model reads, `before` of them in its cache already. Each attends to `most` at
    most, where that is not 0."""

    tokens: int
    before: int = 0
    most: int = 0

    @property
    def pairs(self) -> float:
        whole = max(0, min(self.tokens, self.most - self.before)) if self.most else self.tokens
        return whole * self.before + whole * (whole + 1) / 2 + (self.tokens - whole) * self.most


def skimmed(tokens: int, before: int, tuning: Tuning = DEFAULT_TUNING) -> Work:
    """A draft's work: its attention is block-sparse while it reads a long prompt."""
    blocks = Blocks(top=tuning.sparse_draft_top)
    long = tokens + before >= tuning.sparse_draft_from
    return Work(tokens, before, blocks.keys + blocks.size if long else 0)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to read a prompt of so many tokens: sparsely where a draft has work, too."""

    prompt: int
    target: Work
    draft: Work | None = None


@dataclass(frozen=True, slots=True)
class Clocked:
    """A part of a turn, and the seconds it took."""

    part: Part
    work: Work
    seconds: float


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds: once, for each token, and for each token that one attends to."""

    start: float
    token: float
    pair: float = 0.0

    def seconds(self, work: Work) -> float:
        if work.tokens <= 0:
            return 0.0
        return self.start + self.token * work.tokens + self.pair * work.pairs


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one pair on one machine; None for what was never timed."""

    target: Line | None = None
    draft: Line | None = None
    full: Line | None = None
    sparse: Line | None = None

    def seconds(self, way: Way) -> float | None:
        """Until the first word, when nothing has to be waited for; None when that is not known."""
        besides = self.full or self.sparse
        if way.draft is not None:
            besides = self.sparse or self.full
        if self.target is None or besides is None:
            return None
        seconds = self.target.seconds(way.target) + besides.seconds(Work(way.prompt))
        if way.draft is None:
            return seconds
        return None if self.draft is None else seconds + self.draft.seconds(way.draft)


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"


UNKNOWN = Costs()
MARGIN = 0.05
"""By so much sparse reading must be expected to be faster: where both take the same, the one that
leaves nothing out is better."""
UNMEASURED_BELOW = 8192
"""Tokens: before a pair was timed here, fewer are read in full."""


def sparse_pays(sparse: float, full: float) -> bool:
    return sparse <= (1 - MARGIN) * full


def recalled(keep: float, share: float, eligible: int, left_out: int) -> int:
    """How many tokens of an earlier reading, of whose `eligible` ones so many were `left_out`, a
    later question asks for: as `selection.select` does, which counts chunks."""
    allowed = math.ceil(keep * eligible) - (eligible - left_out)
    return max(0, min(left_out, max(allowed, math.ceil(share * keep * eligible))))


# ------------------------------------------------------------------------------------ learning

REMEMBERED = 50
"""Readings of a part that count, the newest last."""
HALVED = 12
"""After so many others a reading counts half: other programs, heat and settings change the pace."""
_ROUNDS = 8
_ROUGH = 0.03
"""Of a reading's seconds, what is not worth explaining."""
_SHAPED = 0.15
"""How much it counts, beside one reading, that attention costs what its operations let expect."""
_STARTED = 0.05
"""How much, that nothing takes time before it begins."""


def learnt(clocked: Sequence[Clocked], ratios: tuple[float, float] = (0.0, 0.0)) -> Costs:
    """From readings, the newest last. `ratios` are, of target and draft, a pair's operations as a
    share of a token's: what counts as long as all readings were of about one length."""
    target, draft = ratios
    return Costs(
        target=_line(clocked, Part.TARGET, target),
        draft=_line(clocked, Part.DRAFT, draft),
        full=_line(clocked, Part.FULL),
        sparse=_line(clocked, Part.SPARSE),
    )


def _line(clocked: Sequence[Clocked], part: Part, ratio: float | None = None) -> Line | None:
    """Least absolute errors in proportion, by weighted squares; no coefficient below zero. One slow
    reading among others so changes little."""
    seen = [each for each in clocked if each.part is part and each.seconds > 0][-REMEMBERED:]
    seen = [each for each in seen if each.work.tokens > 0]
    if not seen:
        return None
    rows = [_features(each.work, ratio is not None) for each in seen]
    seconds = [each.seconds for each in seen]
    ages = [0.5 ** ((len(seen) - 1 - index) / HALVED) for index in range(len(seen))]
    found, weights = seconds, ages
    for _ in range(_ROUNDS):
        # Between what it took and what it should have: too slow and too fast count the same.
        scales = [math.sqrt(a * b) for a, b in zip(seconds, found, strict=True)]
        equations = [
            ([x / scale for x in row], second / scale, weight)
            for row, second, scale, weight in zip(rows, seconds, scales, weights, strict=True)
        ]
        equations += _expected(rows, seconds, ratio)
        solution = _non_negative(equations)
        found = [
            max(sum(a * x for a, x in zip(solution, row, strict=True)), 1e-3 * second)
            for row, second in zip(rows, seconds, strict=True)
        ]
        errors = [abs(math.log(a / b)) for a, b in zip(found, seconds, strict=True)]
        weights = [age / max(error, _ROUGH) for age, error in zip(ages, errors, strict=True)]
    return Line(*solution)


def _features(work: Work, with_pairs: bool) -> list[float]:
    return [1.0, float(work.tokens), *([work.pairs] if with_pairs else [])]


Equation = tuple[list[float], float, float]
"""Coefficients, what they are to give, and the weight."""


def _expected(rows: list[list[float]], seconds: list[float], ratio: float | None) -> list[Equation]:
    """What is believed where the readings say nothing."""
    start = [1 / median(seconds), *[0.0] * (len(rows[0]) - 1)]
    believed = [(start, 0.0, _STARTED**2 / _ROUGH)]
    if ratio:
        size = median(row[2] / second for row, second in zip(rows, seconds, strict=True))
        believed.append(([0.0, -ratio * size, size], 0.0, _SHAPED**2 / _ROUGH))
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
                weight * (sum(a * x for a, x in zip(solution, row, strict=True)) - wanted) ** 2
                for row, wanted, weight in equations
            )
            if error < least:
                best, least = solution, error
    return best


def _least_squares(equations: list[Equation], chosen: tuple[int, ...]) -> list[float] | None:
    """With all but the `chosen` parts zero; None where they cannot be told apart."""
    sizes = [max(abs(row[i]) for row, _, _ in equations) or 1.0 for i in chosen]
    matrix = [[0.0] * (len(chosen) + 1) for _ in chosen]
    for row, wanted, weight in equations:
        scaled = [row[i] / size for i, size in zip(chosen, sizes, strict=True)]
        for line, x in zip(matrix, scaled, strict=True):
            for column, y in enumerate((*scaled, wanted)):
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

"""Statistics of results: accuracy with its interval, and what sparse reading lost against dense."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median
from typing import Any, TypeVar

from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.stats import Reading
from benchmarks.quality.results_log import Record
from benchmarks.quality.settings import Scoring
from benchmarks.quality.suites import ONLY_PASSAGES, SUITES

T = TypeVar("T")
K = TypeVar("K")
Z = NormalDist().inv_cdf(0.975)
EQUIVALENCE_MARGIN = 0.02
"""How far below dense the accuracy on the safe suites may be to count as equal."""
SUITE_ORDER, SCORING_ORDER = tuple(SUITES), tuple(Scoring)


@dataclass(frozen=True, slots=True)
class Interval:
    """A share and its 95 % interval, each 0..1."""

    share: float
    low: float
    high: float


def wilson(right: int, n: int) -> Interval:
    """Wilson's score interval at 95 % for `right` of `n`. With n = 0 it is 0 to 1."""
    if n == 0:
        return Interval(0.0, 0.0, 1.0)
    share, square = right / n, Z * Z
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = Z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


@dataclass(frozen=True, slots=True)
class ResultCell:
    """All items of a suite (or of one of its cases) at one length, read in one way.

    `regressions` were right dense and wrong sparse, `repairs` the other way round. `ttft_ratio` is
    the median over items of dense over sparse, None without both. `fell_back` should have been
    read sparsely and were read densely. `differing` (at keep 1) answered other tokens than dense.
    """

    suite: str
    case: str | None
    length: int
    scoring: str
    keep: float
    n: int
    right: int
    accuracy: Interval
    dense: Interval
    dense_right: int
    regressions: int
    repairs: int
    read_fraction: float
    ttft_ratio: float | None
    fell_back: int
    failed: int
    differing: int | None

    @property
    def regressed(self) -> float:
        """Of all items, the share that regressed."""
        return self.regressions / self.n


@dataclass(frozen=True, slots=True)
class SparseCell:
    """All items of a suite at one length, read sparsely, without dense answers to compare with.
    `fell_back` were read densely after all."""

    suite: str
    length: int
    scoring: str
    keep: float
    n: int
    right: int
    accuracy: Interval
    read_fraction: float
    ttft: float | None
    fell_back: int
    failed: int


@dataclass(frozen=True, slots=True)
class EquivalencePoint:
    """The smallest keep from which on a scoring's answers on the safe suites equal dense ones, None
    without one. `dense` and `right` are shares of their `n` items; `faster` is as in a cell, and
    `slowdown` the median over items of its time to the first token over the default scoring's, each
    at its own keep."""

    length: int
    scoring: str
    keep: float | None
    n: int = 0
    dense: float = 0.0
    right: float = 0.0
    faster: float | None = None
    slowdown: float | None = None


Pair = tuple[Record, Record]
"""The same item, dense and otherwise."""


def paired(records: Iterable[Record], mode: Mode) -> list[Pair]:
    """Every run in this mode with the dense run of its item, in the same order."""
    records = list(records)
    dense = {record.item: record for record in records if record.mode == Mode.FULL}
    return [(dense[r.item], r) for r in records if r.mode == mode and r.item in dense]


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def cells(records: Iterable[Record], by_case: bool = False) -> tuple[ResultCell, ...]:
    """One cell for each suite (and case), length, scoring and keep, in that order."""

    def key(pair: Pair) -> tuple[Any, ...]:
        sparse = pair[1]
        case = sparse.case if by_case else None
        return (sparse.suite, case, sparse.length, sparse.scoring, sparse.keep)

    pairs = paired(records, Mode.SPARSE)
    found = [_cell(name, group) for name, group in grouped(pairs, key).items()]
    return tuple(sorted(found, key=_cell_order))


def scoring_order(name: str) -> tuple[int, list[tuple[float, str]]]:
    """The order of scorings, and of their tunings, numbers by size."""
    scoring, *values = re.split(r"[ =]", name)
    numbers = [float(v) if re.fullmatch(r"[\d.]+", v) else 0.0 for v in values]
    return SCORING_ORDER.index(Scoring(scoring)), list(zip(numbers, values, strict=True))


def _cell_order(cell: ResultCell | SparseCell) -> tuple[Any, ...]:
    """Suites, their cases and scorings in the order they are defined in."""
    cases = [case.name for case in SUITES[cell.suite].cases]
    case = cell.case if isinstance(cell, ResultCell) else None
    return (
        SUITE_ORDER.index(cell.suite),
        cases.index(case) if case in cases else -1,
        cell.length,
        scoring_order(cell.scoring),
        cell.keep,
    )


def _cell(key: tuple[Any, ...], pairs: Sequence[Pair]) -> ResultCell:
    suite, case, length, scoring, keep = key
    n = len(pairs)
    right = sum(sparse.right for _, sparse in pairs)
    dense_right = sum(dense.right for dense, _ in pairs)
    ratios = [d.ttft / s.ttft for d, s in pairs if d.ttft > 0 and s.ttft > 0]
    read = [sparse.read_fraction for _, sparse in pairs if not sparse.failed]
    differing = sum(d.tokens != s.tokens for d, s in pairs)
    return ResultCell(
        suite=suite,
        case=case,
        length=length,
        scoring=scoring,
        keep=keep,
        n=n,
        right=right,
        accuracy=wilson(right, n),
        dense=wilson(dense_right, n),
        dense_right=dense_right,
        regressions=sum(dense.right and not sparse.right for dense, sparse in pairs),
        repairs=sum(sparse.right and not dense.right for dense, sparse in pairs),
        read_fraction=fmean(read) if read else 0.0,
        ttft_ratio=median(ratios) if ratios else None,
        fell_back=sum(sparse.reading == Reading.DENSE for _, sparse in pairs),
        failed=sum(sparse.failed is not None for _, sparse in pairs),
        differing=differing if keep == 1.0 else None,
    )


def sparse_cells(records: Iterable[Record]) -> tuple[SparseCell, ...]:
    """One cell for each suite, length, scoring and keep, in that order."""
    answered = (record for record in records if record.suite not in ONLY_PASSAGES)
    sparse = [record for record in answered if record.mode == Mode.SPARSE]
    groups = grouped(sparse, lambda r: (r.suite, r.length, r.scoring, r.keep))
    found = [_sparse_cell(*key, group) for key, group in groups.items()]
    return tuple(sorted(found, key=_cell_order))


def _sparse_cell(
    suite: str, length: int, scoring: str, keep: float, records: Sequence[Record]
) -> SparseCell:
    n, right = len(records), sum(record.right for record in records)
    answered = [record for record in records if not record.failed]
    return SparseCell(
        suite=suite,
        length=length,
        scoring=scoring,
        keep=keep,
        n=n,
        right=right,
        accuracy=wilson(right, n),
        read_fraction=fmean(record.read_fraction for record in answered) if answered else 0.0,
        ttft=median(record.ttft for record in answered) if answered else None,
        fell_back=sum(record.reading == Reading.DENSE for record in records),
        failed=n - len(answered),
    )


def keep_label(keep: float) -> str:
    return "auto" if keep == AUTO_KEEP else f"{keep:g}"


def equivalence_points(records: Iterable[Record]) -> tuple[EquivalencePoint, ...]:
    """One row for each length and scoring, where several keeps were measured."""
    pairs = [pair for pair in paired(records, Mode.SPARSE) if pair[1].keep != AUTO_KEEP]
    safe = [pair for pair in pairs if SUITES[pair[1].suite].safe]
    groups = {
        key: grouped(pairs, lambda pair: pair[1].keep)
        for key, pairs in grouped(safe, lambda pair: (pair[1].length, pair[1].scoring)).items()
    }
    order = sorted(groups, key=lambda key: (key[0], scoring_order(key[1])))
    at = {key: _smallest_equal(groups[key]) for key in order if len(groups[key]) > 1}
    return tuple(
        EquivalencePoint(*key, None)
        if keep is None
        else _equal(key, keep, groups[key][keep], _default_times(groups, at, key[0]))
        for key, keep in at.items()
    )


def _smallest_equal(keeps: dict[float, list[Pair]]) -> float | None:
    smallest = None
    for keep in sorted(keeps, reverse=True):
        lost = fmean(dense.right - sparse.right for dense, sparse in keeps[keep])
        if lost > EQUIVALENCE_MARGIN:
            break
        smallest = keep
    return smallest


def _default_times(
    groups: dict[tuple[int, str], dict[float, list[Pair]]],
    at: dict[tuple[int, str], float | None],
    length: int,
) -> dict[str, float]:
    """By item, the time to the first token with the default scoring at its smallest keep."""
    key = (length, str(Scoring.BOTH))
    keep = at.get(key)
    return {} if keep is None else {s.item: s.ttft for _, s in groups[key][keep] if s.ttft > 0}


def _equal(
    key: tuple[int, str], keep: float, pairs: Sequence[Pair], default: dict[str, float]
) -> EquivalencePoint:
    timed = [(d.ttft / s.ttft, s) for d, s in pairs if d.ttft > 0 and s.ttft > 0]
    slower = [s.ttft / default[s.item] for _, s in timed if s.item in default]
    return EquivalencePoint(
        *key,
        keep,
        len(pairs),
        fmean(dense.right for dense, _ in pairs),
        fmean(sparse.right for _, sparse in pairs),
        median(ratio for ratio, _ in timed) if timed else None,
        median(slower) if slower else None,
    )


def failures(records: Iterable[Record]) -> dict[str, int]:
    """The messages of turns that failed or fell back, and how often each occurred."""
    counts: dict[str, int] = {}
    for record in records:
        for message in (record.failed, record.fallback):
            if message:
                counts[message] = counts.get(message, 0) + 1
    return dict(sorted(counts.items()))

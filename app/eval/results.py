"""The figures of a cell: accuracy with its interval, and what sparse reading lost against dense."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median
from typing import Any

from app.eval.results_log import Record
from app.eval.suites import JUDGED, PERPLEXITY, SUITES, UNSAFE
from app.protocol.options import DEFAULT_TUNING, Mode, Scoring
from app.protocol.stats import Reading

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
    """Wilson's score interval at 95 % for `right` of `n`. With n = 0 nothing is known: 0 to 1."""
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
    the median over items of dense over sparse, None without both. `fell_back` were asked to be
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
class Perplexity:
    """Perplexity of what follows in each file; `ratio` is sparse over dense, geometric mean."""

    length: int
    scoring: str
    keep: float
    n: int
    dense: float
    sparse: float
    ratio: float
    read_fraction: float
    failed: int


@dataclass(frozen=True, slots=True)
class GuardSuite:
    """Of a suite's items in auto mode: how many the guard flagged, how many were right in auto
    mode and in full. `safe` is None for a suite that the guard is not judged by."""

    suite: str
    safe: bool | None
    n: int
    flagged: int
    right: int
    dense_right: int
    spread: float | None


@dataclass(frozen=True, slots=True)
class GuardStats:
    """`recall`: flagged of the unsafe suites' items; `precision`: unsafe of the flagged items.

    `separation` is how well the spread of importance alone would tell them apart: the share of
    pairs of an unsafe and a safe item of which the unsafe one's lies more evenly.
    """

    suites: tuple[GuardSuite, ...]
    recall: Interval
    precision: Interval
    unsafe: int
    flagged: int
    separation: float | None


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
    """Every run in this mode with the dense run of its item, in the given order."""
    records = list(records)
    dense = {record.item: record for record in records if record.mode == Mode.FULL}
    return [(dense[r.item], r) for r in records if r.mode == mode and r.item in dense]


def cells(records: Iterable[Record], by_case: bool = False) -> tuple[ResultCell, ...]:
    """One cell for each suite (and case), length, scoring and keep, in that order."""
    groups: dict[tuple[Any, ...], list[Pair]] = {}
    for dense, sparse in paired(records, Mode.SPARSE):
        if sparse.suite != PERPLEXITY:
            case = sparse.case if by_case else None
            key = (sparse.suite, case, sparse.length, sparse.scoring, sparse.keep)
            groups.setdefault(key, []).append((dense, sparse))
    found = [_cell(key, pairs) for key, pairs in groups.items()]
    return tuple(sorted(found, key=_cell_order))


def scoring_order(name: str) -> tuple[int, list[tuple[float, str]]]:
    """The order of scorings, and of their tunings, numbers by size."""
    scoring, *values = re.split(r"[ =]", name)
    numbers = [float(v) if re.fullmatch(r"[\d.]+", v) else 0.0 for v in values]
    return SCORING_ORDER.index(Scoring(scoring)), list(zip(numbers, values, strict=True))


def _cell_order(cell: ResultCell) -> tuple[Any, ...]:
    """Suites, their cases and scorings in the order they are defined in."""
    cases = [case.name for case in SUITES[cell.suite].cases]
    return (
        SUITE_ORDER.index(cell.suite),
        cases.index(cell.case) if cell.case in cases else -1,
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


def equivalence_points(records: Iterable[Record]) -> tuple[EquivalencePoint, ...]:
    """One row for each length and scoring, where several keeps were measured."""
    groups: dict[tuple[int, str], dict[float, list[Pair]]] = {}
    for dense, sparse in paired(records, Mode.SPARSE):
        if SUITES[sparse.suite].safe:
            keeps = groups.setdefault((sparse.length, sparse.scoring), {})
            keeps.setdefault(sparse.keep, []).append((dense, sparse))
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
    key = (length, str(DEFAULT_TUNING.scoring))
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


def perplexities(records: Iterable[Record]) -> tuple[Perplexity, ...]:
    """One row for each length, scoring and keep of the perplexity suite."""
    groups: dict[tuple[int, str, float], list[Pair]] = {}
    for dense, sparse in paired(records, Mode.SPARSE):
        if sparse.suite == PERPLEXITY:
            key = (sparse.length, sparse.scoring, sparse.keep)
            groups.setdefault(key, []).append((dense, sparse))
    order = sorted(groups, key=lambda key: (key[0], scoring_order(key[1]), key[2]))
    return tuple(_perplexity(*key, groups[key]) for key in order)


def _perplexity(length: int, scoring: str, keep: float, pairs: Sequence[Pair]) -> Perplexity:
    measured = [(d, s, d.loss, s.loss) for d, s in pairs]
    both = [(s, a, b) for _, s, a, b in measured if a is not None and b is not None]
    failed = len(pairs) - len(both)
    if not both:
        return Perplexity(length, scoring, keep, 0, 0.0, 0.0, 0.0, 0.0, failed)

    def mean(figure: Callable[[float, float], float]) -> float:
        return math.exp(min(fmean(figure(a, b) for _, a, b in both), 700.0))

    return Perplexity(
        length=length,
        scoring=scoring,
        keep=keep,
        n=len(both),
        dense=mean(lambda dense, sparse: dense),
        sparse=mean(lambda dense, sparse: sparse),
        ratio=mean(lambda dense, sparse: sparse - dense),
        read_fraction=fmean(s.read_fraction for s, _, _ in both),
        failed=failed,
    )


def guard(records: Iterable[Record]) -> GuardStats | None:
    """How well auto mode foresaw the unsafe suites; None when no item was asked in auto mode."""
    records = list(records)
    groups: dict[str, list[Pair]] = {}
    for pair in paired(records, Mode.AUTO):
        groups.setdefault(pair[1].suite, []).append(pair)
    if not groups:
        return None
    spreads = _spreads(records)
    rows = tuple(
        _flagged(suite, groups[suite], spreads.get(suite))
        for suite in SUITE_ORDER
        if suite in groups
    )
    unsafe = [row for row in rows if row.safe is False]
    hits, positives = sum(r.flagged for r in unsafe), sum(r.n for r in unsafe)
    flagged = sum(row.flagged for row in rows if row.safe is not None)
    recall, precision = wilson(hits, positives), wilson(hits, flagged)
    return GuardStats(rows, recall, precision, positives, flagged, _separation(spreads))


def _flagged(suite: str, pairs: Sequence[Pair], spreads: list[float] | None) -> GuardSuite:
    return GuardSuite(
        suite,
        suite not in UNSAFE if suite in JUDGED else None,
        len(pairs),
        sum(auto.guard is not None for _, auto in pairs),
        sum(auto.right for _, auto in pairs),
        sum(dense.right for dense, _ in pairs),
        median(spreads) if spreads else None,
    )


def normalised_entropy(buckets: Sequence[float]) -> float:
    """The exponential of the entropy of the buckets' shares, over their number: 1 for all alike,
    near 0 for one that has it all."""
    total = sum(buckets)
    shares = [bucket / total for bucket in buckets if bucket > 0]
    entropy = -sum(share * math.log(share) for share in shares)
    return math.exp(entropy) / len(buckets) if shares else 0.0


def _spreads(records: Iterable[Record]) -> dict[str, list[float]]:
    """How evenly importance lay, by suite: one figure an item, of the default scoring."""
    wanted = str(DEFAULT_TUNING.scoring)
    of_item = {
        (record.suite, record.item): record.spread
        for record in records
        if record.spread is not None and record.scoring == wanted
    }
    found: dict[str, list[float]] = {}
    for (suite, _), spread in of_item.items():
        found.setdefault(suite, []).append(spread)
    return found


def _separation(spreads: dict[str, list[float]]) -> float | None:
    unsafe = [x for suite, found in spreads.items() if suite in UNSAFE for x in found]
    safe = [x for suite, found in spreads.items() if suite in JUDGED - UNSAFE for x in found]
    if not unsafe or not safe:
        return None
    return fmean(0.5 * (u == s) + (u > s) for u in unsafe for s in safe)


def failures(records: Iterable[Record]) -> dict[str, int]:
    """The sentences of turns that failed or fell back, and how often each was said."""
    counts: dict[str, int] = {}
    for record in records:
        for sentence in (record.failed, record.fallback):
            if sentence:
                counts[sentence] = counts.get(sentence, 0) + 1
    return dict(sorted(counts.items()))

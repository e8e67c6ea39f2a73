"""Statistics of results: correct answers, losses of sparse reading compared with dense, passages of
real documents that were read, and the accuracy of auto mode's guard."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean, median
from typing import Any, TypeVar

from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.stats import SURE, Reading
from app.util.tables import TextTable
from benchmarks.quality.results_log import Record
from benchmarks.quality.settings import Scoring
from benchmarks.quality.suites import (
    ANSWER,
    ANSWERED,
    JUDGED,
    ONLY_PASSAGES,
    SUITES,
    UNSAFE,
    has_other_words,
)

T = TypeVar("T")
K = TypeVar("K")
Z = NormalDist().inv_cdf(0.975)
EQUIVALENCE_MARGIN = 0.02
"""Accuracy on the safe suites counts as equal if it is at most this far below dense."""
SUITE_ORDER, SCORING_ORDER = tuple(SUITES), tuple(Scoring)


@dataclass(frozen=True, slots=True)
class Interval:
    """A share and its 95 % interval, each 0..1."""

    share: float
    low: float
    high: float


def wilson(right: int, n: int) -> Interval:
    """Wilson's score interval at 95 % for `right` of `n`; 0 to 1 if n = 0."""
    if n == 0:
        return Interval(0.0, 0.0, 1.0)
    share, square = right / n, Z * Z
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = Z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


@dataclass(frozen=True, slots=True)
class ResultCell:
    """All items of a suite (or one of its cases) at one length in one configuration.

    `regressions`: right dense and wrong sparse; `repairs`: the reverse. `ttft_ratio`: median over
    items of dense over sparse, or None. `fell_back`: items that fell back to dense reading.
    `differing`: at keep 1, items whose generated tokens differ from dense.
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
        """Share of all items that regressed."""
        return self.regressions / self.n


@dataclass(frozen=True, slots=True)
class SparseCell:
    """All items of a suite at one length, read sparsely, without dense answers to compare.
    `fell_back`: items that fell back to dense reading."""

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
    """`keep`: the smallest at which a scoring's accuracy on the safe suites equals dense, or None.
    `dense`, `right`: accuracies over `n` items. `faster`: as `ttft_ratio` of a cell. `slowdown`:
    median over items of the time to the first token relative to the default scoring, each at its
    own keep."""

    length: int
    scoring: str
    keep: float | None
    n: int = 0
    dense: float = 0.0
    right: float = 0.0
    faster: float | None = None
    slowdown: float | None = None


Pair = tuple[Record, Record]
"""(dense record, other record) of the same item."""


def paired(records: Iterable[Record], mode: Mode) -> list[Pair]:
    """Pair every record in this mode with the dense record of its item, in order."""
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
    """Sort key of scorings and their tunings; numbers by value."""
    scoring, *values = re.split(r"[ =]", name)
    numbers = [float(v) if re.fullmatch(r"[\d.]+", v) else 0.0 for v in values]
    return SCORING_ORDER.index(Scoring(scoring)), list(zip(numbers, values, strict=True))


def _cell_order(cell: ResultCell | SparseCell) -> tuple[Any, ...]:
    """Sort key by suite, case and scoring in the order of their definition."""
    cases = [case.name for case in SUITES[cell.suite].cases]
    case = cell.case if isinstance(cell, ResultCell) else None
    return (
        SUITE_ORDER.index(cell.suite),
        cases.index(case) if case in cases else -1,
        cell.length,
        scoring_order(cell.scoring),
        cell.keep,
    )


def _mean_read(records: Iterable[Record]) -> float:
    """Mean share that was read, of the turns that did not fail; 0 without any."""
    read = [record.read_fraction for record in records if not record.failed]
    return fmean(read) if read else 0.0


def _cell(key: tuple[Any, ...], pairs: Sequence[Pair]) -> ResultCell:
    suite, case, length, scoring, keep = key
    n = len(pairs)
    right = sum(sparse.right for _, sparse in pairs)
    dense_right = sum(dense.right for dense, _ in pairs)
    ratios = [d.ttft / s.ttft for d, s in pairs if d.ttft > 0 and s.ttft > 0]
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
        read_fraction=_mean_read(sparse for _, sparse in pairs),
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
        read_fraction=_mean_read(records),
        ttft=median(record.ttft for record in answered) if answered else None,
        fell_back=sum(record.reading == Reading.DENSE for record in records),
        failed=n - len(answered),
    )


def keep_label(keep: float) -> str:
    return "auto" if keep == AUTO_KEEP else f"{keep:g}"


def equivalence_points(records: Iterable[Record]) -> tuple[EquivalencePoint, ...]:
    """A row for each length and scoring for which several keeps were measured."""
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
    """By item: seconds to the first token with the default scoring at its smallest keep."""
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
    """Messages of turns that failed or fell back, with their counts."""
    counts: dict[str, int] = {}
    for record in records:
        for message in (record.failed, record.fallback):
            if message:
                counts[message] = counts.get(message, 0) + 1
    return dict(sorted(counts.items()))


WHOLE = 0.999
"""A passage counts as read if at least this share of it was."""


@dataclass(frozen=True, slots=True)
class RealCell:
    """All items of a suite at one length in one configuration. `passage`: share of items whose
    passage was read completely. `agreed`: share with the same tokens as dense reading, or None."""

    suite: str
    length: int
    scoring: str
    keep: float
    n: int
    passage: Interval
    agreed: Interval | None = None


def real_cells(records: Iterable[Record]) -> tuple[RealCell, ...]:
    """One cell for each suite, length, scoring and keep, in that order."""
    records = [record for record in records if record.failed is None]
    dense = {record.item: record for record in records if record.mode == Mode.FULL}
    sparse = [r for r in records if r.mode == Mode.SPARSE and r.passage is not None]
    groups = grouped(sparse, lambda r: (r.suite, r.length, r.scoring, r.keep))
    order = sorted(groups, key=lambda k: (SUITE_ORDER.index(k[0]), k[1], scoring_order(k[2]), k[3]))
    return tuple(_real_cell(key, groups[key], dense) for key in order)


def _real_cell(
    key: tuple[str, int, str, float], records: Sequence[Record], dense: dict[str, Record]
) -> RealCell:
    n = len(records)
    read = sum((record.passage or 0.0) >= WHOLE for record in records)
    pairs = [(dense[record.item], record) for record in records if record.item in dense]
    agreed = wilson(sum(d.tokens == s.tokens for d, s in pairs), len(pairs)) if pairs else None
    return RealCell(*key, n, wilson(read, n), agreed)


ALL_KINDS, OWN_WORDS, OTHER_WORDS, CASE = "all", "own words", "other words", ", "
TOGETHER = (ALL_KINDS, OWN_WORDS, OTHER_WORDS)
"""Kinds together: all, and those that are asked in the words of the document or in others."""


@dataclass(frozen=True, slots=True)
class AnswerCell:
    """Answers about real documents of one kind, or of one of `TOGETHER`, at one length in one
    configuration.

    `dense`, `accuracy`: shares that are right read in full and in this configuration. `kept`: share
    of those right in full that are right here; `gained`: number right here and wrong in full.
    `in_full`: number that this configuration read in full, `flagged` of them because of the guard.
    """

    kind: str
    length: int
    scoring: str
    mode: str
    keep: float
    n: int
    dense: Interval
    accuracy: Interval
    kept: Interval
    gained: int
    read_fraction: float
    in_full: int
    flagged: int

    @property
    def label(self) -> str:
        return "--auto" if self.mode == Mode.AUTO else keep_label(self.keep)


def answer_cells(records: Iterable[Record]) -> tuple[AnswerCell, ...]:
    """One cell for each length, scoring and keep: of `TOGETHER`, then of each kind, then of each
    group of turns of conversations."""
    records = [record for record in records if record.suite in ANSWERED]
    pairs = [pair for mode in (Mode.SPARSE, Mode.AUTO) for pair in paired(records, mode)]

    def key(pair: Pair) -> tuple[Any, ...]:
        here = pair[1]
        return here.length, here.scoring, here.mode, here.keep

    def order(found: tuple[Any, ...]) -> tuple[Any, ...]:
        suite, length, scoring, mode, keep = found
        suite, _, case = suite.partition(CASE)
        place = (*TOGETHER, *SUITE_ORDER).index(suite)
        return place, len(case), case, length, scoring_order(scoring), mode == Mode.AUTO, keep

    groups = grouped(pairs, lambda pair: (ALL_KINDS, *key(pair)))
    alone = [pair for pair in pairs if not SUITES[pair[1].suite].chat]
    groups |= grouped(alone, lambda pair: (_words(pair[1].suite), *key(pair)))
    groups |= grouped(pairs, lambda pair: (pair[1].suite, *key(pair)))
    turns = [pair for pair in pairs if SUITES[pair[1].suite].chat]
    groups |= grouped(turns, lambda pair: (f"{pair[1].suite}{CASE}{pair[1].case}", *key(pair)))
    return tuple(_answer_cell(name, groups[name]) for name in sorted(groups, key=order))


def _words(suite: str) -> str:
    is_other = has_other_words(suite)
    return OTHER_WORDS if is_other else OWN_WORDS


def _answer_cell(key: tuple[Any, ...], pairs: Sequence[Pair]) -> AnswerCell:
    suite, length, scoring, mode, keep = key
    n, right_in_full = len(pairs), sum(dense.right for dense, _ in pairs)
    right = sum(here.right for _, here in pairs)
    kept = sum(dense.right and here.right for dense, here in pairs)
    return AnswerCell(
        kind=suite.removeprefix(f"{ANSWER}-"),
        length=length,
        scoring=scoring,
        mode=mode,
        keep=keep,
        n=n,
        dense=wilson(right_in_full, n),
        accuracy=wilson(right, n),
        kept=wilson(kept, right_in_full),
        gained=right - kept,
        read_fraction=_mean_read(here for _, here in pairs),
        in_full=sum(here.reading == Reading.DENSE for _, here in pairs),
        flagged=sum(here.guard is not None for _, here in pairs),
    )


@dataclass(frozen=True, slots=True)
class GuardSuite:
    """A suite's items in auto mode: number flagged by the guard, and number right in auto mode and
    in full. `safe`: None for a suite by which the guard is not judged."""

    suite: str
    safe: bool | None
    n: int
    flagged: int
    right: int
    dense_right: int
    spread: float | None


@dataclass(frozen=True, slots=True)
class GuardStats:
    """`recall`: share of the unsafe suites' items that were flagged. `precision`: share of flagged
    items that are unsafe. `separation`: how well the spread of importance alone would separate
    them, as the share of (unsafe, safe) pairs in which the unsafe item's is more even (AUC)."""

    suites: tuple[GuardSuite, ...]
    recall: Interval
    precision: Interval
    unsafe: int
    flagged: int
    separation: float | None


def guard_stats(records: Iterable[Record]) -> GuardStats | None:
    """Accuracy of the guard; None if no item was run in auto mode."""
    records = list(records)
    groups: dict[str, list[Pair]] = {}
    for pair in paired(records, Mode.AUTO):
        groups.setdefault(pair[1].suite, []).append(pair)
    if not groups:
        return None
    spreads = _spreads(records)
    rows = tuple(
        _guard_suite(suite, groups[suite], spreads.get(suite))
        for suite in SUITE_ORDER
        if suite in groups
    )
    unsafe = [row for row in rows if row.safe is False]
    hits, positives = sum(r.flagged for r in unsafe), sum(r.n for r in unsafe)
    flagged = sum(row.flagged for row in rows if row.safe is not None)
    recall, precision = wilson(hits, positives), wilson(hits, flagged)
    return GuardStats(rows, recall, precision, positives, flagged, _separation(spreads))


def _guard_suite(suite: str, pairs: Sequence[Pair], spreads: list[float] | None) -> GuardSuite:
    return GuardSuite(
        suite,
        suite not in UNSAFE if suite in JUDGED else None,
        len(pairs),
        sum(auto.guard is not None for _, auto in pairs),
        sum(auto.right for _, auto in pairs),
        sum(dense.right for dense, _ in pairs),
        median(spreads) if spreads else None,
    )


def _spreads(records: Iterable[Record]) -> dict[str, list[float]]:
    """By suite: the evenness of importance of each item, from the draft's attention."""
    default = str(Scoring.BOTH)
    of_item = {
        (record.suite, record.item): record.spread
        for record in records
        if record.spread is not None and record.scoring == default
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


KEEP_CURVE = (
    "All suites together. What is right at a fixed keep, and at the same reading where the scores"
    " choose keep; and what that reads to be right as often. Between measured points."
)


@dataclass(frozen=True, slots=True)
class KeepRow:
    """A fixed keep compared with an automatic one. `right`: share of `n` items answered right, or
    whose passage was selected. `read`: mean share of the prompt read. `auto_right`: accuracy of
    automatic keep at the same `read`. `auto_read`: share that automatic keep reads for the same
    accuracy. Both are interpolated; None outside the measured range."""

    length: int
    scoring: str
    keep: float
    n: int
    read: float
    right: float
    auto_right: float | None
    auto_read: float | None


def keep_rows(records: Iterable[Record]) -> tuple[KeepRow, ...]:
    """Rows for each length and scoring measured both ways, with any `keep_above`."""
    sparse = [r for r in records if r.mode == Mode.SPARSE and not r.failed]
    groups = grouped(sparse, lambda r: (r.length, r.scoring.split()[0]))
    rows = []
    for length, scoring in sorted(groups, key=lambda key: (key[0], scoring_order(key[1]))):
        members = groups[length, scoring]
        chosen = grouped([r for r in members if r.keep == AUTO_KEEP], lambda r: r.scoring)
        fixed = grouped([r for r in members if r.keep != AUTO_KEEP], lambda r: r.keep)
        curve = sorted(_point(each) for each in chosen.values())
        for keep in sorted(fixed) if curve else ():
            read, right = _point(fixed[keep])
            swapped = sorted((right, read) for read, right in curve)
            at = _between(curve, read), _between(swapped, right)
            rows.append(KeepRow(length, scoring, keep, len(fixed[keep]), read, right, *at))
    return tuple(rows)


def _point(records: Sequence[Record]) -> tuple[float, float]:
    """(mean share read, share right)."""
    read = fmean(record.read_fraction for record in records)
    return read, fmean(
        record.passage == 1.0 if record.suite in ONLY_PASSAGES else record.right
        for record in records
    )


def _between(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """Interpolate linearly between the nearest of the ascending points; None outside."""
    for (left, low), (right, high) in pairwise(points):
        if left <= x <= right:
            share = (x - left) / (right - left) if right > left else 0.0
            return low + share * (high - low)
    return None


def keep_table(rows: Iterable[KeepRow]) -> TextTable:
    head = (
        "length",
        "scoring",
        "keep",
        "n",
        "read, %",
        "right, %",
        "auto right, %",
        "auto read, %",
    )
    body = []
    for r in rows:
        row = [f"{r.length:,}", r.scoring, f"{r.keep:g}", str(r.n)]
        shares = (r.read, r.right, r.auto_right, r.auto_read)
        body.append(row + ["" if share is None else f"{100 * share:.1f}" for share in shares])
    return TextTable(head, body, texts=2)


def confidence_note(records: Iterable[Record]) -> str | None:
    """A sentence about the confidence of right and wrong answers after sparse reading; None unless
    there are both."""
    known = [
        (record.right, record.confidence)
        for record in records
        if record.confidence is not None and record.reading == Reading.SPARSE
    ]
    right = [confidence for is_right, confidence in known if is_right]
    wrong = [confidence for is_right, confidence in known if not is_right]
    if not right or not wrong:
        return None
    higher = sum((r > w) + (r == w) / 2 for r in right for w in wrong)
    unsure = [sum(confidence < SURE for confidence in group) for group in (wrong, right)]
    return (
        f"Of the answers after sparse reading, the model was less than {SURE:.0%} sure of"
        f" {unsure[0]} of {len(wrong)} wrong and {unsure[1]} of {len(right)} right ones; in"
        f" {higher / (len(right) * len(wrong)):.0%} of the pairs of both it is surer of the right"
        " one."
    )

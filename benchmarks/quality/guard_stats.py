"""How well the guard of auto mode tells questions that need every token from others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from app.protocol.options import Mode
from benchmarks.quality.results import SUITE_ORDER, Interval, Pair, paired, wilson
from benchmarks.quality.results_log import Record
from benchmarks.quality.settings import Scoring
from benchmarks.quality.suites import JUDGED, UNSAFE


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

    `separation` is how well the spread of importance alone would separate them: the share of
    pairs of an unsafe and a safe item in which that of the unsafe one is more even.
    """

    suites: tuple[GuardSuite, ...]
    recall: Interval
    precision: Interval
    unsafe: int
    flagged: int
    separation: float | None


def guard_stats(records: Iterable[Record]) -> GuardStats | None:
    """How well auto mode predicted the unsafe suites; None when no item was run in auto mode."""
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
    """The evenness of importance by suite: one value an item, by the draft's attention."""
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

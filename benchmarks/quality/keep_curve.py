"""Keep that the scores choose against fixed keep, over all suites together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from app.protocol.options import AUTO_KEEP, Mode
from app.util.tables import TextTable
from benchmarks.quality.results import grouped, scoring_order
from benchmarks.quality.results_log import Record
from benchmarks.quality.suites import ONLY_PASSAGES

KEEP_CURVE = (
    "All suites together. What is right at a fixed keep, and at the same reading where the scores"
    " choose keep; and what that reads to be right as often. Between measured points."
)


@dataclass(frozen=True, slots=True)
class KeepRow:
    """One fixed keep. Of `n` items, `right` were answered right, or their passage was selected,
    with the share `read` of the prompt on average. `auto_right` is the share that is right at the
    same reading where the scores choose keep, and `auto_read` what that reads to be right as
    often; each between two measured points, None where there is none on both sides."""

    length: int
    scoring: str
    keep: float
    n: int
    read: float
    right: float
    auto_right: float | None
    auto_read: float | None


def keep_rows(records: Iterable[Record]) -> tuple[KeepRow, ...]:
    """For each length and scoring that was measured both ways, whatever its `keep_above`."""
    sparse = [r for r in records if r.mode == Mode.SPARSE and not r.failed]
    groups = grouped(sparse, lambda r: (r.length, r.scoring.split()[0]))
    rows = []
    for length, scoring in sorted(groups, key=lambda key: (key[0], scoring_order(key[1]))):
        own = groups[length, scoring]
        chosen = grouped([r for r in own if r.keep == AUTO_KEEP], lambda r: r.scoring)
        fixed = grouped([r for r in own if r.keep != AUTO_KEEP], lambda r: r.keep)
        curve = sorted(_point(each) for each in chosen.values())
        for keep in sorted(fixed) if curve else ():
            read, right = _point(fixed[keep])
            swapped = sorted((right, read) for read, right in curve)
            at = _between(curve, read), _between(swapped, right)
            rows.append(KeepRow(length, scoring, keep, len(fixed[keep]), read, right, *at))
    return tuple(rows)


def _point(records: Sequence[Record]) -> tuple[float, float]:
    """The mean share that was read, and the share that is right."""
    read = fmean(record.read_fraction for record in records)
    return read, fmean(
        record.passage == 1.0 if record.suite in ONLY_PASSAGES else record.right
        for record in records
    )


def _between(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """On the line between the nearest two points, which are ascending."""
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

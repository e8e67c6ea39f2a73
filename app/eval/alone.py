"""Sparse reading by itself: how many answers came out right, with none read in full beside them.

For lengths at which reading in full takes too long to be waited for: there it is not known what
sparse reading lost, only what it kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from app.eval.markdown import markdown_table
from app.eval.results import SUITE_ORDER, Interval, scoring_order, wilson
from app.eval.results_log import Record
from app.protocol.options import Mode
from app.protocol.stats import Reading

WORDS = (
    "Nothing was read in full: these are the answers that came out right, and the median of the"
    " seconds to the first token. What reading in full would have answered is not known."
)
HEAD = ("suite", "scoring", "length", "keep", "n", "right", "95 %", "read, %", "first token, s")


@dataclass(frozen=True, slots=True)
class Alone:
    """All items of a suite at one length, read sparsely in one way. `fell_back` were read in full
    after all."""

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


def alone(records: Iterable[Record]) -> tuple[Alone, ...]:
    """One row for each suite, length, scoring and keep, in that order."""
    groups: dict[tuple[str, int, str, float], list[Record]] = {}
    for record in records:
        if record.mode == Mode.SPARSE:
            key = (record.suite, record.length, record.scoring, record.keep)
            groups.setdefault(key, []).append(record)
    return tuple(sorted(map(_row, groups.values()), key=_place))


def _place(row: Alone) -> tuple[Any, ...]:
    return (SUITE_ORDER.index(row.suite), row.length, scoring_order(row.scoring), row.keep)


def _row(records: Sequence[Record]) -> Alone:
    first, n = records[0], len(records)
    right = sum(record.right for record in records)
    answered = [record for record in records if not record.failed]
    return Alone(
        suite=first.suite,
        length=first.length,
        scoring=first.scoring,
        keep=first.keep,
        n=n,
        right=right,
        accuracy=wilson(right, n),
        read_fraction=fmean(record.read_fraction for record in answered) if answered else 0.0,
        ttft=median(record.ttft for record in answered) if answered else None,
        fell_back=sum(record.reading == Reading.DENSE for record in records),
        failed=n - len(answered),
    )


def lines(rows: Sequence[Alone]) -> list[str]:
    """For a terminal, at most 80 columns wide."""
    found = [
        f"{'suite':<17}{'length':>8}  {'scoring':<16}{'keep':>6}{'right':>9}{'read':>6}"
        f"{'first token':>13}"
    ]
    for row in rows:
        seconds = "" if row.ttft is None else f"{row.ttft:.1f} s"
        right = f"{row.right} of {row.n}"
        found.append(
            f"{row.suite:<17}{row.length:>8,}  {row.scoring:<16}{row.keep:>6.3g}{right:>9}"
            f"{row.read_fraction:>6.0%}{seconds:>13}"
        )
    return found


def table(rows: Sequence[Alone]) -> str:
    """As Markdown."""
    body = []
    for row in rows:
        low, high = 100 * row.accuracy.low, 100 * row.accuracy.high
        shares = (f"{low:.0f}–{high:.0f}", f"{100 * row.read_fraction:.1f}")
        seconds = "" if row.ttft is None else f"{row.ttft:.1f}"
        name = (row.suite, row.scoring, f"{row.length:,}", f"{row.keep:g}", str(row.n))
        body.append((*name, str(row.right), *shares, seconds))
    return markdown_table(HEAD, body, texts=2)

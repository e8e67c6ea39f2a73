"""Statistics of answers about real documents: was the passage read, is the answer the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.protocol.options import Mode
from benchmarks.quality.results import SUITE_ORDER, Interval, grouped, scoring_order, wilson
from benchmarks.quality.results_log import Record

WHOLE = 0.999
"""The share of a passage from which on it counts as read."""


@dataclass(frozen=True, slots=True)
class RealCell:
    """All items of a suite at one length, read in one way. `passage` is the share whose passage was
    read whole. `agreed` answered the same tokens as the full reading; None without one."""

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
    return tuple(_cell(key, groups[key], dense) for key in order)


def _cell(
    key: tuple[str, int, str, float], records: Sequence[Record], dense: dict[str, Record]
) -> RealCell:
    n = len(records)
    read = sum((record.passage or 0.0) >= WHOLE for record in records)
    pairs = [(dense[record.item], record) for record in records if record.item in dense]
    agreed = wilson(sum(d.tokens == s.tokens for d, s in pairs), len(pairs)) if pairs else None
    return RealCell(*key, n, wilson(read, n), agreed)

"""Statistics of results: intervals, pairs, ratios, and the guard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.stats import Reading
from benchmarks.quality import results
from benchmarks.quality.results import (
    TOGETHER,
    answer_cells,
    guard_stats,
    keep_rows,
    keep_table,
    wilson,
)
from benchmarks.quality.results_log import Record
from benchmarks.quality.runner import normalised_entropy

pytestmark = pytest.mark.benchmarks


def record(item: str, mode: Mode, right: bool, **more: object) -> Record:
    dense = mode is Mode.FULL
    base = Record(
        item=item,
        digest="d",
        code="c",
        suite=item.split("/")[0],
        case="needle at 10%",
        length=1024,
        mode=str(mode),
        keep=1.0 if dense else 0.2,
        scoring="" if dense else "both",
        right=right,
        tokens="same",
        read_fraction=1.0 if dense else 0.25,
        ttft=4.0 if dense else 1.0,
        reading=str(Reading.DENSE if dense else Reading.SPARSE),
    )
    return replace(base, **more)  # type: ignore[arg-type]


def both(item: str, dense: bool, sparse: bool, **more: object) -> list[Record]:
    return [record(item, Mode.FULL, dense), record(item, Mode.SPARSE, sparse, **more)]


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.27753),
        (10, 10, 0.72247, 1.0),
        (5, 10, 0.23659, 0.76341),
        (95, 100, 0.88825, 0.97846),
        (1, 29, 0.00611, 0.17177),
    ],
)
def test_wilson_against_known_values(right: int, n: int, low: float, high: float) -> None:
    interval = wilson(right, n)
    assert interval.share == right / n
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)


def test_answers_are_counted_by_kind_and_together() -> None:
    outcomes = {"code": [(1, 1), (1, 0), (0, 1)], "tables": [(1, 1), (0, 0)]}
    records = []
    for kind, pairs in outcomes.items():
        for index, (dense, sparse) in enumerate(pairs):
            item = f"answer-{kind}/1024/{index}"
            records += both(item, bool(dense), bool(sparse))
            flagged = {"guard": "all", "reading": str(Reading.DENSE)} if index == 0 else {}
            records.append(record(item, Mode.AUTO, bool(dense), **flagged))
    records += both("real/1024/0", True, True)
    cells = answer_cells(records)
    assert [(cell.kind, cell.label) for cell in cells] == [
        (kind, label) for kind in (*TOGETHER, "code", "tables") for label in ("0.2", "--auto")
    ]
    together, auto = cells[:2]
    code, tables = cells[6], cells[8]
    assert (cells[2].n, cells[4].n) == (code.n, tables.n), "tables are asked in other words"
    assert (together.n, together.dense.share, together.accuracy.share) == (5, 0.6, 0.6)
    assert (together.kept, together.gained) == (wilson(2, 3), 1)
    assert (together.read_fraction, together.in_full, together.flagged) == (0.25, 0, 0)
    assert (auto.kept.share, auto.gained, auto.in_full, auto.flagged) == (1.0, 0, 2, 2)
    assert (code.n, code.kept, code.gained) == (3, wilson(1, 2), 1)


def test_wilson_without_items_is_the_whole_range() -> None:
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)


def test_a_cell_pairs_the_same_items() -> None:
    records = [
        *both("needle-single/1024/0", True, True),
        *both("needle-single/1024/1", True, False),
        *both("needle-single/1024/2", True, False),
        *both("needle-single/1024/3", False, True),
        *both("needle-single/1024/4", False, False),
        record("needle-single/1024/5", Mode.FULL, True),  # never read sparsely
        record("needle-single/1024/6", Mode.SPARSE, True),  # never read densely
    ]
    (cell,) = results.cells(records)
    assert (cell.n, cell.right, cell.dense_right) == (5, 2, 3)
    assert (cell.regressions, cell.repairs, cell.regressed) == (2, 1, 0.4)
    assert cell.accuracy == wilson(2, 5)
    assert cell.dense == wilson(3, 5)
    assert cell.read_fraction == 0.25
    assert cell.ttft_ratio == 4.0
    assert cell.differing is None


def test_the_ratio_is_the_median_over_items() -> None:
    seconds = [1.0, 2.0, 0.1]
    records = [r for i, t in enumerate(seconds) for r in both(f"vt/1/{i}", True, True, ttft=t)]
    assert results.cells(records)[0].ttft_ratio == 4.0


def test_cells_are_grouped_and_sorted_by_suite_length_scoring_and_keep() -> None:
    def ways(item: str, length: int) -> list[Record]:
        return [
            replace(record(item, Mode.FULL, True), length=length),
            *(
                replace(record(item, Mode.SPARSE, True), length=length, scoring=s, keep=k)
                for s in ("random", "both")
                for k in (0.5, 0.1)
            ),
        ]

    found = results.cells([*ways("vt/2/0", 2), *ways("quote/1/0", 1), *ways("vt/1/0", 1)])
    places = [(c.suite, c.length, c.scoring, c.keep) for c in found]
    expected = [("both", 0.1), ("both", 0.5), ("random", 0.1), ("random", 0.5)]
    where = [("quote", 1), ("vt", 1), ("vt", 2)]
    assert places == [(*place, *way) for place in where for way in expected]


def test_cases_have_separate_cells() -> None:
    a = both("needle-single/1/0", True, True)
    b = [replace(r, case="needle at 90%") for r in both("needle-single/1/1", True, False)]
    found = results.cells([*b, *a], by_case=True)
    assert [(c.case, c.regressions) for c in found] == [("needle at 10%", 0), ("needle at 90%", 1)]


def test_at_keep_1_differing_tokens_are_counted() -> None:
    records = [
        *both("quote/1/0", True, True, keep=1.0),
        *both("quote/1/1", True, True, keep=1.0, tokens="other"),
    ]
    assert results.cells(records)[0].differing == 1


def test_failed_and_fallen_back_turns_count_and_failed_ones_read_nothing() -> None:
    records = [
        *both("quote/1/0", True, False, failed="No memory.", reading="", read_fraction=0, ttft=0),
        *both("quote/1/1", True, True, reading="dense", fallback="Failed.", read_fraction=1.0),
        *both("quote/1/2", True, True),
    ]
    (cell,) = results.cells(records)
    assert (cell.n, cell.right, cell.failed, cell.fell_back) == (3, 2, 1, 1)
    assert cell.regressions == 1
    assert cell.read_fraction == pytest.approx((1.0 + 0.25) / 2)
    assert results.failures(records) == {"Failed.": 1, "No memory.": 1}


def auto(suite: str, index: int, flagged: bool) -> list[Record]:
    item = f"{suite}/1/{index}"
    guard = "It counts." if flagged else None
    return [record(item, Mode.FULL, True), record(item, Mode.AUTO, True, guard=guard)]


def test_the_guard_is_judged_by_safe_and_unsafe_suites_only() -> None:
    records = [
        *(r for i in range(4) for r in auto("count", i, i < 3)),  # three of four found
        *(r for i in range(6) for r in auto("quote", i, i == 0)),  # one false alarm
        *(r for i in range(5) for r in auto("fwe", i, True)),  # open: counts for nothing
    ]
    guard = guard_stats(records)
    assert guard is not None
    assert guard.recall == wilson(3, 4)
    assert guard.precision == wilson(3, 4)
    assert (guard.unsafe, guard.flagged) == (4, 4)
    rows = {row.suite: (row.safe, row.n, row.flagged) for row in guard.suites}
    assert rows == {"quote": (True, 6, 1), "count": (False, 4, 3), "fwe": (None, 5, 5)}
    assert guard_stats(both("quote/1/0", True, True)) is None


def test_the_spread_of_importance_is_reported_too() -> None:
    records = []
    for suite, spread in (("count", 0.9), ("cwe", 0.5), ("quote", 0.6), ("lookup", 0.2)):
        records += auto(suite, 0, False)
        sparse = record(f"{suite}/1/0", Mode.SPARSE, True, keep=0.2, scoring="both")
        records.append(replace(sparse, spread=spread))
    guard = guard_stats(records)
    assert guard is not None
    assert guard.separation == pytest.approx(3 / 4)
    assert {row.suite: row.spread for row in guard.suites}["count"] == 0.9


def test_normalised_entropy_measures_evenness() -> None:
    assert normalised_entropy([1.0] * 10) == pytest.approx(1.0)
    assert normalised_entropy([0.0] * 9 + [5.0]) == pytest.approx(0.1)
    assert normalised_entropy([0.0] * 4) == 0.0


def test_the_smallest_keep_that_equals_dense_is_found() -> None:
    def at(keep: float, scoring: str, lost: int, ttft: float) -> list[Record]:
        way = {"keep": keep, "scoring": scoring, "ttft": ttft}
        items = [f"quote/1024/{i}" for i in range(50)]
        return [record(it, Mode.SPARSE, i >= lost, **way) for i, it in enumerate(items)]

    dense = [record(f"quote/1024/{i}", Mode.FULL, True) for i in range(50)]
    ours = at(0.05, "both", 2, 0.5) + at(0.1, "both", 1, 0.8) + at(0.2, "both", 0, 1.0)
    # A smaller keep that is right by chance does not count.
    lucky = at(0.1, "lexical", 0, 1.0) + at(0.2, "lexical", 3, 1.5)
    theirs = lucky + at(0.4, "lexical", 1, 2.0)
    never = at(0.1, "random", 40, 1.0) + at(0.2, "random", 30, 1.0)
    unsafe = both("count/1024/0", True, False, keep=0.4) + both("count/1024/0", True, True)
    found = results.equivalence_points([*dense, *ours, *theirs, *never, *unsafe])
    assert [(row.scoring, row.keep) for row in found] == [
        ("both", 0.1),
        ("random", None),
        ("lexical", 0.4),
    ]
    chosen, _, lexical = found
    assert (lexical.n, lexical.dense, lexical.right) == (50, 1.0, 0.98)
    assert (lexical.faster, lexical.slowdown) == (2.0, pytest.approx(2.5))
    assert (chosen.faster, chosen.slowdown) == (5.0, 1.0)


def test_a_single_keep_gives_no_smallest_one() -> None:
    assert results.equivalence_points(both("quote/1024/0", True, True)) == ()


# ------------------------------------------------- keep that the scores choose, and fixed keep


def runs(keep: float, scoring: str, read: float, *right: bool) -> list[Record]:
    return [
        record(
            f"quote/1024/{number}",
            Mode.SPARSE,
            each,
            keep=keep,
            scoring=scoring,
            read_fraction=read,
        )
        for number, each in enumerate(right)
    ]


FIXED = [
    *runs(0.05, "both", 0.1, True, False, False, False),
    *runs(0.2, "both", 0.3, True, True, False, False),
]


def test_automatic_keep_is_interpolated_at_a_fixed_keep() -> None:
    auto = [
        *runs(AUTO_KEEP, "both keep_above=0.5", 0.2, True, True, False, False),
        *runs(AUTO_KEEP, "both", 0.4, True, True, True, True),
    ]
    low, high = keep_rows([*FIXED, *auto])
    assert (low.keep, low.n, low.read, low.right) == (0.05, 4, 0.1, 0.25)
    assert (low.auto_right, low.auto_read) == (None, None), "nothing was measured below"
    assert high.auto_right == pytest.approx(0.75)
    assert high.auto_read == pytest.approx(0.2)
    text = keep_table([low, high]).markdown()
    assert "| 1,024 | both | 0.2 | 4 | 30.0 | 50.0 | 75.0 | 20.0 |" in text


def test_for_suites_without_answers_selected_passages_count() -> None:
    found = [
        record("passage/1024/0", Mode.SPARSE, False, keep=keep, scoring=name, passage=share)
        for keep, name, share in ((0.2, "builtin", 0.9), (AUTO_KEEP, "builtin", 1.0))
    ]
    assert [row.right for row in keep_rows(found)] == [0.0]


def test_without_both_there_is_nothing_to_compare() -> None:
    assert keep_rows(FIXED) == ()
    assert keep_rows(runs(AUTO_KEEP, "both", 0.2, True)) == ()

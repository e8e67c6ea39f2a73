"""Keep that the scores choose, against fixed keep."""

from __future__ import annotations

import pytest

from app.protocol.options import AUTO_KEEP, Mode
from benchmarks.quality.results import keep_rows, keep_table
from benchmarks.quality.results_log import Record
from tests.benchmarks.quality.test_results import record


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


def test_the_other_curve_is_measured_where_a_fixed_keep_is() -> None:
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


def test_of_suites_without_an_answer_the_passages_that_are_selected_count() -> None:
    found = [
        record("passage/1024/0", Mode.SPARSE, False, keep=keep, scoring=name, passage=share)
        for keep, name, share in ((0.2, "builtin", 0.9), (AUTO_KEEP, "builtin", 1.0))
    ]
    assert [row.right for row in keep_rows(found)] == [0.0]


def test_without_both_there_is_nothing_to_compare() -> None:
    assert keep_rows(FIXED) == ()
    assert keep_rows(runs(AUTO_KEEP, "both", 0.2, True)) == ()

"""The speedups others measured are listed beside the ones predicted here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks import published
from benchmarks.harness import Options
from tests.benchmarks.measuring import measured, printed


def test_every_pair_is_printed_with_both_figures() -> None:
    rows = measured(published.BENCH, Options()).rows
    lines = printed(published.BENCH, Options()).splitlines()[-len(rows) :]
    for row, line in zip(rows, lines, strict=True):
        assert line.startswith(row["pair"])
        assert f"{row['measured']:.2f}" in line.split()
        assert line.split()[-2] == f"{row['predicted']:.2f}"


def test_the_table_has_every_length_and_the_goal_is_the_order() -> None:
    result = measured(published.BENCH, Options())
    head, _, first, *rest = published.table(result, True).markdown().splitlines()
    assert "| 8K | 16K | 32K | 64K | 128K | predicted, 16K |" in head
    assert "| 3.71 | 4.11 | 4.23 | 4.50 | 5.45 |" in first
    assert len(rest) == 4
    assert [goal.met for goal in published.goals(result)] == [True]
    backwards = replace(result, rows=result.rows[::-1])
    assert [goal.met for goal in published.goals(backwards)] == [False]


def test_the_quality_page_has_the_table_that_is_printed() -> None:
    page = (Path(__file__).parents[2] / "benchmarks/results/quality.md").read_text("utf-8")
    table = published.table(measured(published.BENCH, Options()), True)
    assert table.markdown() in page

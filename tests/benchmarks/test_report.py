"""The performance report says what was measured, and computes whether goals are met."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import decode, draft, memory, overhead, planner, snapshot, ttft
from benchmarks.benches import BENCHES
from benchmarks.harness import Bench, Result, Row
from benchmarks.report import Measured, report, with_figures

ROOT = Path(__file__).parents[2]


def result(options: dict[str, Any], *rows: Row, machine: str = "a machine") -> Result:
    return Result(machine, options, rows)


DECODE = result(
    {"tokens": 32, "keeps": [0.2]},
    Row(
        {"model": "small", "length": 4096, "selected": 800},
        [
            {"ours": ours, "plain_selected": 100.0, "plain_all": 60.0}
            | {"of_plain_selected": ours / 100, "of_plain_all": ours / 60}
            for ours in (96.0, 90.0, 100.0)
        ],
    ),
)
MEMORY = result(
    {"keeps": [0.2]},
    *(
        Row(
            {"length": length, "selected": length // 5},
            [
                {"plain": 200.0, "dense": 190.0, "sparse": ratio * 200, "ratio": ratio}
                | {"predicted_dense": 210.0, "predicted_sparse": 100.0}
            ],
        )
        for length, ratio in ((4096, 0.5), (8192, 1.1))
    ),
)
TTFT = result(
    {"shapes": ["small"], "scale": 1.0},
    *(
        Row(
            {"length": length, "keep": keep, "selected": int(length * keep)},
            [
                ttft.figures(keep, 4.0, 2.0, sparse, {"score": 0.1, "prefill": 0.3})
                | {"memory": 0.5, "peak": 1}
                for sparse in (0.5, 1.0)
            ],
        )
        for length in (1024, 4096)
        for keep in (0.1, 0.2)
    ),
)
SNAPSHOT = result(
    {"megabytes": 300},
    *(
        Row({"operation": name, "megabytes": 300.0}, [{"rate": rate, "share": share}])
        for name, rate, share in (
            ("save", 0.5, 0.9),
            ("disk write", 0.55, None),
            ("load", 0.5, 0.25),
            ("disk read", 2.0, None),
        )
    ),
)
OVERHEAD = result(
    {},
    *(
        Row(
            {"part": "turn", "tokens": length, "selected": length // 5},
            [
                {"plain_draft": 1.0, "plain_target": 2.0, "plain_dense": dense and 4 * dense}
                | {"dense": dense, "speedup": dense and dense / 2.0, "engine": dense and 4.0}
                | {"sparse": 2.0, "ratio": 1.5}
                | {"score": 0.5, "prefill": 1.5}
            ],
        )
        for length, dense in ((4096, 20.0), (16384, None))
    ),
    Row({"part": "prompt", "tokens": 4096}, [{"building": 0.1, "ttft": 1.0, "share": 0.1}]),
    Row({"part": "selection", "tokens": 131_072}, [{"seconds": 0.0094}]),
)
DRAFT = result(
    {"shapes": ["embedded"]},
    *(
        Row(
            {"length": length},
            [
                dict.fromkeys(("plain", "dense", "sparse", "prefill", "sparse_prefill"), 0.3)
                | {"of_plain": 0.3, "of_dense": of_dense, "of_prefill": 0.3}
            ],
        )
        for length, of_dense in ((8192, 0.9), (32768, 0.3))
    ),
)


def test_overhead_has_its_goals_at_each_length() -> None:
    both, _ = overhead.RATIOS[-1]
    assert {goal.goal: goal.met for goal in overhead.goals(OVERHEAD)} == {
        f"{both}, 4,096 tokens: at least 1.05": True,
        f"{both}, 16,384 tokens: at least 1.05": True,
        "building a prompt of 4,096 tokens, embedded pair: under 5 % of TTFT": False,
        "selecting from 131,072 tokens: under 10 ms": True,
    }
    table = overhead.table(OVERHEAD, True).markdown()
    assert table.count("target prefills everything") == 1, "where it was measured"
    assert set(overhead.charts(OVERHEAD)) == {"overhead-4096.svg", "overhead-16384.svg"}


def test_time_saved_and_our_engines_speed_are_two_figures() -> None:
    """One ratio had both: mlx-lm's dense prefill over our sparse turn."""
    table = overhead.table(OVERHEAD, True).markdown()
    assert "| speedup (dense / sparse turn) | 10.00 (10.00 to 10.00) |" in table
    assert "| engine (mlx-lm / dense turn) | 4.00 (4.00 to 4.00) |" in table
    assert "On a Mac the second is about 1" in overhead.about(OVERHEAD)
    head = ttft.BENCH.table(TTFT, True).markdown().splitlines()[0]
    assert "| mlx-lm, s | dense, s | sparse, s | engine | speedup |" in head


def test_summary_and_report_are_of_the_stored_figures() -> None:
    """Whoever edits one by hand, or measures again without `--summary`, sees it here."""
    stored = json.loads((ROOT / "benchmarks/results/performance/overhead.json").read_text("utf-8"))
    figures = Result.from_json(stored["result"])
    summary = (ROOT / "docs/performance.md").read_text("utf-8")
    assert with_figures(summary, figures) == summary
    page = (ROOT / "benchmarks/results/performance.md").read_text("utf-8")
    for name in ("speedup", "engine", "ratio"):
        assert figures.rows[0].spread(name).text() in summary
        assert figures.rows[0].spread(name).text() in page


def test_a_text_without_a_block_for_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="no lines"):
        with_figures("# A text", OVERHEAD)


def test_a_draft_is_judged_at_its_longest_prompt() -> None:
    goals = list(draft.goals(DRAFT))
    assert [goal.met for goal in goals] == [True, True]
    assert all("32,768 tokens" in goal.goal for goal in goals)


def test_predictions_are_judged() -> None:
    def turn(regret: float, sparse: float, error: float | None = None) -> dict[str, Any]:
        near = float(regret <= 1.25)
        run = {"known": 3, "regret": regret, "sparse_chosen": sparse, "near": near}
        return run | {"error": error, "error_other": error}

    quick = [turn(1.0, 1.0, 0.1), turn(1.0, 1.0, 0.1), turn(1.4, 0.0, 0.3)]
    close = [turn(1.0, 0.0)]
    figures = result(
        {},
        Row({"pair": "quick", "crossing": 900}, quick),
        Row({"pair": "close", "crossing": None}, close),
        Row({"pair": "all", "crossing": None}, [*quick, *close]),
    )
    assert [goal.met for goal in planner.goals(figures)] == [True, False]
    table = planner.BENCH.table(figures, True).markdown()
    assert "| 67% | 67% | 1.00 (1.00 to 1.40) | 900 |" in table
    assert "| close | 1 |  |  |  |  | 0% | 100% | 1.00 |  |" in table


def of(**results: Result) -> dict[str, Measured]:
    return {
        name: Measured(f"python -m benchmarks {name}", found) for name, found in results.items()
    }


def test_every_section_has_its_command_and_table_or_says_how_to_measure_it() -> None:
    text, charts = report(BENCHES, of(decode=DECODE, memory=MEMORY, ttft=TTFT), "performance")
    for bench in BENCHES:
        assert f"## {bench.title}" in text
        measured = bench.name in ("decode", "memory", "ttft")
        assert measured or f"To measure it: `{bench.command()}`." in text
    assert "```sh\npython -m benchmarks decode\n```" in text
    assert "| small | 4,096 | 800 | 96.0 (90.0 to 100.0) |" in text
    assert "Measured on a machine." in text
    assert set(charts) == {"memory.svg", "ttft.svg", "ttft-phases.svg", "g.svg"}
    for name, chart in charts.items():
        assert f"](performance/{name})" in text
        ElementTree.fromstring(chart)


def test_tables_have_as_many_cells_in_every_row() -> None:
    found = of(decode=DECODE, memory=MEMORY, ttft=TTFT, snapshot=SNAPSHOT, overhead=OVERHEAD)
    text, _ = report(BENCHES, found, "p")
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1, block


@pytest.mark.parametrize(
    ("bench", "figures", "met"),
    [
        (decode.BENCH, DECODE, [False, True]),
        (memory.BENCH, MEMORY, [True, False]),
        (snapshot.BENCH, SNAPSHOT, [True, False]),
    ],
)
def test_goals_are_computed(bench: Bench, figures: Result, met: list[bool]) -> None:
    assert [goal.met for goal in bench.goals(figures)] == met


def test_failures_and_other_machines_are_named() -> None:
    failed = Measured("python -m benchmarks store", None, "The disk is full (exit status 1).")
    other = result(MEMORY.options, *MEMORY.rows, machine="another")
    text, _ = report(BENCHES, of(decode=DECODE, memory=other) | {"store": failed}, "performance")
    assert "It failed: The disk is full (exit status 1)." in text
    assert "Measured on another." in text
    assert "Measured on a machine." in text


def test_the_same_figures_make_the_same_report() -> None:
    assert report(BENCHES, of(ttft=TTFT), "p") == report(BENCHES, of(ttft=TTFT), "p")

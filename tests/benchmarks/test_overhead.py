"""Measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import pytest

from benchmarks import overhead
from benchmarks.harness import Options, Progress, Row
from tests.benchmarks.measuring import measured, printed


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "STEP", 64)
    monkeypatch.setattr(overhead, "DENSE_UP_TO", 128)


@pytest.fixture
def no_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row({"part": "prompt", "tokens": 301}, [{"building": 0.01, "ttft": 0.5, "share": 0.02}])
    monkeypatch.setattr(overhead, "prompts", lambda *_: iter([row]))


@pytest.mark.usefixtures("small", "no_prompts")
def test_the_figures_are_ratios_of_one_run() -> None:
    result = measured(overhead.BENCH, Options(1, (128, 160)))
    few, many, _, selection = result.rows
    assert [few["tokens"], many["tokens"]] == [128, 160]
    for row in (few, many):
        (run,) = row.runs
        assert 0.2 * row["tokens"] < row["selected"] < 0.7 * row["tokens"]
        phases = ("wait", "tokenise", "score", "lookahead", "select", "prefill", "decode")
        assert sum(run[phase] for phase in phases) == pytest.approx(run["sparse"], abs=0.01)
        assert min(run["plain_draft"], run["plain_target"]) > 0
        both = run["plain_draft"] + run["plain_target"]
        assert run["ratio"] == pytest.approx(both / run["sparse"])
    (run,) = few.runs
    assert run["speedup"] == pytest.approx(run["dense"] / run["sparse"])
    assert run["engine"] == pytest.approx(run["plain_dense"] / run["dense"])
    assert many.values("speedup") == many.values("engine") == []
    assert selection["tokens"] == overhead.SELECTION_TOKENS
    assert selection.median("seconds") > 0


@pytest.mark.usefixtures("small", "no_prompts")
def test_the_table_names_the_machine_and_every_figure() -> None:
    text = printed(overhead.BENCH, Options(1, (128,)))
    for part in ("cores", "mlx ", "mlx-lm: ", "specchat: ", "overhead", "speedup"):
        assert part in text
    assert "building a prompt of 301 tokens" in text
    assert "selecting from 131,072 tokens" in text


def test_building_a_prompt_is_measured_in_real_turns() -> None:
    (row,) = overhead.prompts((80,), Progress(1))
    (run,) = row.runs
    assert 80 < row["tokens"] < 160, "with the template's and the question's"
    assert 0 < run["building"] < run["ttft"]
    assert run["share"] == pytest.approx(run["building"] / run["ttft"])

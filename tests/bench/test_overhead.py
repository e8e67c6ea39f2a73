"""`specchat bench overhead` measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import io
import json

import pytest

from app.bench import overhead
from app.bench.overhead_parts import LONG, Built, built


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "STEP", 64)
    monkeypatch.setattr(overhead, "DENSE_UP_TO", 128)


@pytest.fixture
def no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "built", lambda *_: iter([Built(301, 0.01, 0.5, 0.02)]))


@pytest.mark.usefixtures("small", "no_pair")
def test_the_figures_are_ratios_of_one_run() -> None:
    out = io.StringIO()
    assert overhead.overhead(1, True, out, (128, 160)) == 0
    report = json.loads(out.getvalue())
    assert [found["prompt_tokens"] for found in report["lengths"]] == [128, 160]
    for found in report["lengths"]:
        runs, length = found["runs"], found["prompt_tokens"]
        assert len(runs) == 1
        for run in runs:
            assert 0.2 * length < run["kept"] < 0.7 * length
            assert {"score", "lookahead", "select", "prefill", "decode"} <= set(run["phases"])
            assert sum(run["phases"].values()) == pytest.approx(run["ours"], abs=0.01)
            assert min(run["plain_draft"], run["plain_target"], run["half_way"]) > 0
            if run["dense"] is not None:
                assert run["speedup"] == pytest.approx(run["dense"] / run["ours"])
                assert run["engine"] == pytest.approx(run["plain_dense"] / run["dense"])
        for name, ours in (("ratio", "ours"), ("ratio_half_way", "half_way")):
            ratios = [(r["plain_draft"] + r["plain_target"]) / r[ours] for r in runs]
            assert found[name] == pytest.approx(ratios[0])
    few, many = report["lengths"]
    assert few["speedup"] > 0
    assert few["engine"] > 0
    assert many["speedup"] is many["engine"] is None
    assert report["selecting"]["tokens"] == LONG
    assert report["selecting"]["seconds"] > 0


@pytest.mark.usefixtures("small", "no_pair")
def test_the_table_names_the_machine_and_every_figure() -> None:
    out = io.StringIO()
    overhead.overhead(1, False, out, (128,))
    text = out.getvalue()
    for part in ("cores", "mlx ", "plain mlx-lm", "ours", "half way", "overhead ratio", "saved by"):
        assert part in text
    assert "building 301 tokens of prompt" in text
    assert "(2.0% of 0.500 s to the first token)" in text
    assert "selecting from 131,072 tokens" in text


def test_building_a_prompt_is_measured_in_real_turns() -> None:
    (row,) = built((80,), 0.2, 1)
    assert 80 < row.tokens < 160, "with the template's and the question's"
    assert 0 < row.building < row.ttft
    assert row.share == pytest.approx(row.building / row.ttft)

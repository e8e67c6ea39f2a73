"""`specchat bench overhead` measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import io
import json

import pytest

from app.bench import overhead


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "PROMPT", 300)
    monkeypatch.setattr(overhead, "STEP", 64)


@pytest.mark.usefixtures("small")
def test_the_figures_are_ratios_of_one_run() -> None:
    out = io.StringIO()
    assert overhead.overhead(2, True, out) == 0
    report = json.loads(out.getvalue())
    assert len(report["runs"]) == 2
    for run in report["runs"]:
        assert 0.2 * 300 < run["kept"] < 0.5 * 300
        assert {"score", "lookahead", "select", "prefill", "decode"} <= set(run["phases"])
        assert sum(run["phases"].values()) == pytest.approx(run["ours"], abs=0.01)
        assert min(run["plain_draft"], run["plain_target"], run["plain_dense"]) > 0
    ratios = [(r["plain_draft"] + r["plain_target"]) / r["ours"] for r in report["runs"]]
    assert report["ratio"] == pytest.approx(sum(ratios) / 2)


@pytest.mark.usefixtures("small")
def test_the_table_names_the_machine_and_every_figure() -> None:
    out = io.StringIO()
    overhead.overhead(1, False, out)
    text = out.getvalue()
    for part in ("cores", "mlx ", "plain mlx-lm", "ours", "overhead ratio", "speed-up"):
        assert part in text

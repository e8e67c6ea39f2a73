"""Measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import pytest

from benchmarks import serve
from benchmarks.harness import Options, Progress, Result, Row


@pytest.mark.slow
def test_both_ways_read_the_same_and_go_on_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MODES", {"sparse": True})
    rows = list(serve.measure(Options(1), Progress(1)))
    assert [row["turn"] for row in rows] == ["sparse, turn 1", "sparse, turn 2"]
    first, second = rows
    assert first.median("cached") == 0, "neither starts from what the other one has read"
    assert second.median("cached") > 100
    for row in rows:
        assert 0 < row.median("app") < 60
        assert row.median("ratio") == pytest.approx(row.median("http") / row.median("app"))


def test_the_goal_is_a_tenth() -> None:
    rows = [
        Row({"turn": "full, turn 2"}, [{"app": 1.0, "http": r, "ratio": r, "cached": 5.0}])
        for r in (1.05, 1.2)
    ]
    goals = list(serve.goals(Result("2 cores", {}, rows)))
    assert [goal.met for goal in goals] == [True, False]

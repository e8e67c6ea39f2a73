"""Measures what it says it does."""

from __future__ import annotations

import pytest

from app.engine.turn import calibration
from app.protocol.cost_model import Costs, LinearCost
from app.protocol.options import Mode
from app.protocol.stats import Reading
from benchmarks import planner
from benchmarks.harness import Options
from tests.benchmarks.measuring import measured, printed


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "SHORTEST", 64)
    monkeypatch.setattr(planner, "LONGEST", 128)
    monkeypatch.setattr(planner, "LONGEST_LATER", 96)
    runs = ((Mode.SPARSE, 64), (Mode.FULL, 128))
    monkeypatch.setattr(calibration, "_RUNS", runs)


def test_every_turn_is_predicted_and_measured_both_ways() -> None:
    *pairs, every = measured(planner.BENCH, Options(1, turns=10)).rows
    assert [row["pair"] for row in pairs] == list(planner.SHAPES)
    assert len(every.runs) == sum(len(row.runs) for row in pairs) == 10
    for run in every.runs:
        assert min(run["predicted"], run["predicted_other"], run["auto"]) > 0
        assert run["regret"] >= 1
        assert (run["error"] is None) == (run["known"] < planner.JUDGED_AFTER)
    assert every.median("error") > 0
    assert len(list(planner.goals(measured(planner.BENCH, Options(1, turns=2))))) == 1


def test_auto_may_lose_as_much_as_it_does_not_skip_anything_for() -> None:
    def near(sparse: float, full: float) -> float:
        return planner.judged(3, Reading.DENSE, 1.0, 1.0, 1.0, sparse, full)["near"]

    assert near(8.1, 10.0)
    assert not near(7.0, 10.0)
    assert near(0.1, 0.9)


def test_the_table_names_the_machine_and_both_shapes() -> None:
    text = printed(planner.BENCH, Options(1, turns=2))
    assert "mlx" in text
    assert [line.split()[0] for line in text.splitlines()[-3:]] == ["quick", "close", "all"]


def test_the_crossing_is_where_both_modes_take_the_same_time() -> None:
    besides = LinearCost(0.0, 0.0), LinearCost(0.7, 0.0)
    costs = Costs(LinearCost(0.0, 1e-3), LinearCost(0.0, 1e-4), *besides)
    crossing = planner.crossing(costs, 0.2)
    assert crossing is not None
    assert 1_400 <= crossing < 1_800  # 0.3 n and 0.7 s are 0.8 n
    assert planner.crossing(Costs(LinearCost(0, 1), LinearCost(0, 1), *besides), 0.2) is None
    assert planner.crossing(Costs(), 0.2) is None

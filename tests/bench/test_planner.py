"""The bench of the planner measures what it says it does."""

from __future__ import annotations

import io
import json

import pytest

from app.bench import planner
from app.engine import calibration
from app.protocol.cost_model import Costs, LinearCost
from app.protocol.options import Mode


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "SHORTEST", 64)
    monkeypatch.setattr(planner, "LONGEST", 128)
    monkeypatch.setattr(planner, "LONGEST_LATER", 96)
    readings = ((Mode.SPARSE, 64), (Mode.FULL, 128))
    monkeypatch.setattr(calibration, "_READINGS", readings)


def test_every_turn_is_foretold_and_measured_both_ways() -> None:
    out = io.StringIO()
    assert planner.planner(10, 1, True, out) == 0
    figures = json.loads(out.getvalue())
    turns = figures["turns"]
    assert len(turns) == 10
    assert {turn["shape"] for turn in turns} == set(planner.SHAPES)
    assert any(turn["later"] for turn in turns)
    for turn in turns:
        assert min(turn["foretold"], turn["foretold_other"], turn["took"]) > 0
        assert turn["regret"] >= 1
    assert 0 < figures["error"] <= figures["error_p90"]
    assert 0 <= figures["within"] <= 1


def test_auto_may_lose_what_it_does_not_skip_anything_for() -> None:
    def near(sparse: float, full: float) -> bool:
        figures = (1.0, 1.0, 1.0, sparse, full)
        return planner.Asked("quick", 3, False, 2_000, 0.2, "dense", *figures).near

    assert near(8.1, 10.0)
    assert not near(7.0, 10.0)
    assert near(0.1, 0.9)


def test_the_table_names_the_machine_and_both_shapes() -> None:
    out = io.StringIO()
    assert planner.planner(2, 1, False, out) == 0
    lines = out.getvalue().splitlines()
    assert "mlx" in lines[1]
    assert [line.split()[0] for line in lines[4:7]] == ["quick", "close", "all"]


def test_the_crossing_is_where_the_two_ways_take_the_same() -> None:
    besides = LinearCost(0.0, 0.0), LinearCost(0.7, 0.0)
    costs = Costs(LinearCost(0.0, 1e-3), LinearCost(0.0, 1e-4), *besides)
    crossing = planner.crossing(costs, 0.2)
    assert crossing is not None
    assert 1_400 <= crossing < 1_800  # 0.3 n and 0.7 s are 0.8 n
    assert planner.crossing(Costs(LinearCost(0, 1), LinearCost(0, 1), *besides), 0.2) is None
    assert planner.crossing(Costs(), 0.2) is None

"""Measures what it says, and refuses what does not fit."""

from __future__ import annotations

import pytest

from app.engine.backend import memory as engine_memory
from app.errors import UserError
from benchmarks import memory, shapes
from benchmarks.harness import Options
from benchmarks.token_turn import check_fits, loaded
from tests.benchmarks.measuring import measured


def test_peaks_are_measured_beside_their_prediction() -> None:
    (row,) = measured(memory.BENCH, Options(1, (300,), (0.2,), ("small",))).rows
    (run,) = row.runs
    assert 0.2 * 300 < row["selected"] < 0.5 * 300
    assert run["ratio"] == pytest.approx(run["sparse"] / run["plain"])
    for name in ("dense", "sparse"):
        assert run[f"predicted_{name}"] == pytest.approx(run[name], rel=0.5)


def test_a_length_that_does_not_fit_is_refused_with_what_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, _ = shapes.random_pair("small", 0.2)
    model = loaded(target, shapes.shapes()["small"]["target"], 512)
    check_fits(model, (1024,), 512)
    monkeypatch.setattr(engine_memory, "free", lambda: 10e9)
    with pytest.raises(UserError, match=r"of 4,194,304 tokens needs about .* up to \d"):
        check_fits(model, (1024, 4 << 20), 512)


def test_a_shape_that_does_not_fit_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_memory, "free", lambda: 1e6)
    with pytest.raises(UserError, match="lower --scale"):
        shapes.random_pair("small")

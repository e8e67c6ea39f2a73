"""`specchat bench memory` measures what it says, and refuses what does not fit."""

from __future__ import annotations

import io
import json

import pytest

from app.bench import memory, shapes
from app.bench.memory import Asked
from app.bench.memory_check import check
from app.bench.token_turn import loaded
from app.engine import memory as engine_memory
from app.errors import UserError


def test_peaks_are_measured_beside_what_was_foreseen() -> None:
    out = io.StringIO()
    assert memory.memory(Asked("small", (300,), 0.2, runs=1), True, out) == 0
    (row,) = json.loads(out.getvalue())["rows"]
    (run,) = row["runs"]
    assert 0.2 * 300 < run["kept"] < 0.5 * 300
    assert row["ratio"] == [run["sparse"] / run["plain"]] * 3
    for name in ("dense", "sparse"):
        assert run[f"foreseen_{name}"] == pytest.approx(run[name], rel=0.5)


def test_a_length_that_does_not_fit_is_refused_with_what_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, _ = shapes.random_pair("small", 0.2)
    model = loaded(target, shapes.shapes()["small"]["target"], 512)
    check(model, (1024,), 512)
    monkeypatch.setattr(engine_memory, "free", lambda: 10e9)
    with pytest.raises(UserError, match=r"4,194,304 tokens densely needs about .* up to \d"):
        check(model, (1024, 4 << 20), 512)


def test_a_shape_that_does_not_fit_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_memory, "free", lambda: 1e6)
    with pytest.raises(UserError, match="lower --scale"):
        shapes.random_pair("small")

"""Speeds of a model are kept over updates, and a slower one is reported."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from app import paths
from app.cli.doctor import doctor
from app.engine.cache.prefill import device_backend
from app.engine.model import speed_history
from app.engine.model.loader import load_one
from app.engine.model.speed_history import MeasuredSpeed, SpeedHistory, measure
from tests import tiny
from tests.tables import table

BEFORE = MeasuredSpeed("2026-10-01", "mlx 0.32.3, mlx-lm 0.32.2", {512: 900.0, 2048: 800.0}, 50.0)


def after(reading: dict[int, float], writing: float) -> MeasuredSpeed:
    return MeasuredSpeed("2026-11-01", "mlx 0.32.4, mlx-lm 0.32.2", reading, writing)


@table(
    "now, clause",
    [
        (after({512: 900.0, 2048: 800.0}, 50.0), ""),
        (after({512: 730.0, 2048: 650.0}, 41.0), ""),
        (after({512: 700.0, 2048: 800.0}, 50.0), "reading 512 tokens at 700 tokens/s"),
        (after({512: 900.0}, 30.0), "writing at 30 tokens/s instead of 50"),
        (after({8192: 1.0}, 60.0), ""),
    ],
)
def test_a_fifth_slower_is_reported(now: MeasuredSpeed, clause: str, tmp_path: Path) -> None:
    history = SpeedHistory(tmp_path, "a model", device_backend())
    assert history.add(BEFORE) is None
    earlier = history.add(now)
    assert (earlier == BEFORE) == bool(clause)
    assert clause in now.slower_than(BEFORE)


def test_the_best_speed_of_each_version_stays(tmp_path: Path) -> None:
    """Else two updates that are each a little slower, or one busy hour, would hide the loss."""
    history = SpeedHistory(tmp_path, "a model", device_backend())
    history.add(BEFORE)
    busy = MeasuredSpeed("2026-10-02", BEFORE.versions, {512: 100.0}, 5.0)
    assert history.add(busy) is not None
    assert history.add(after({512: 690.0, 2048: 640.0}, 50.0)) is not None
    earlier = history.add(MeasuredSpeed("2026-11-02", "mlx 0.33", {512: 550.0}, 50.0))
    assert earlier is not None
    assert earlier.reading[512] == 690.0


def test_other_models_do_not_count(tmp_path: Path) -> None:
    SpeedHistory(tmp_path, "a model", device_backend()).add(BEFORE)
    slow = after({512: 1.0}, 1.0)
    assert SpeedHistory(tmp_path, "another", device_backend()).add(slow) is None


def test_speeds_are_measured_within_the_context(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", "llama")
    model = load_one(str(folder), "m", None)
    now = measure(model, device_backend())
    assert now.writing > 0
    assert all(speed > 0 for speed in now.reading.values())
    assert max(now.reading) <= model.info.context_length
    assert now.versions.startswith("mlx ")


def test_doctor_reports_a_slower_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data_path", "cache_path", "config_path", "logs_path"):
        monkeypatch.setattr(paths, name, lambda name=name: tmp_path / name)
    folder = tiny.save(tmp_path / "model", "llama")
    measured = [BEFORE, after({512: 300.0, 2048: 800.0}, 50.0)]
    monkeypatch.setattr(speed_history, "measure", lambda *_: measured.pop(0))
    assert doctor(io.StringIO(), str(folder)) == 0
    out = io.StringIO()
    assert doctor(out, str(folder)) == 1
    assert out.getvalue().splitlines()[-1] == (
        "The model is slower than on 2026-10-01: reading 512 tokens at 300 tokens/s instead of"
        " 900. Close other programs, and run this again. If it stays slower, install the versions"
        " of then (mlx 0.32.3, mlx-lm 0.32.2; now mlx 0.32.4, mlx-lm 0.32.2)."
    )

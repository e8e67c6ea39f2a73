"""`specchat doctor` reports, and says every fault in one sentence."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from packaging.requirements import Requirement

from app import paths
from app.cli import doctor as room
from app.cli.doctor import doctor
from app.cli.main import run as specchat
from app.engine.model import speed_history
from app.engine.model.speed_history import MeasuredSpeed
from app.models import embedded
from app.models.errors import ModelError
from tests import tiny
from tests.tables import table


def run() -> tuple[int, list[str]]:
    out = io.StringIO()
    return doctor(out), out.getvalue().splitlines()


@pytest.fixture(autouse=True)
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of its own and a whole pair, wherever the tests run."""
    for name in ("data_path", "cache_path", "config_path", "logs_path"):
        folder = tmp_path / name
        monkeypatch.setattr(paths, name, lambda folder=folder: folder)
    monkeypatch.setattr(embedded, "integrity", lambda: ())


def test_a_healthy_place() -> None:
    status, lines = run()
    assert status == 0
    assert lines[-1] == "No problems found."
    report = {line[:15].strip(): line[15:].strip() for line in lines[:-2]}
    for label in ("specchat", "Python", "mlx", "mlx-lm", "textual", "SQLite"):
        assert report[label]
    assert report["device"].startswith(("CPU", "GPU"))
    assert "GFLOP/s" in report["matrix products"]
    assert re.fullmatch(r".+ of .+ for models; .+ in total, .+ available", report["memory"])
    assert report["demo model"] == "intact"
    assert report["data folder"].endswith("(created when needed)")


def test_a_folder_that_exists() -> None:
    paths.data_path().mkdir()
    status, lines = run()
    assert status == 0
    assert any(line.startswith("data folder") and "(writable)" in line for line in lines)


def test_how_full_the_cache_folder_is() -> None:
    """It was 1.1 GB, and nothing said so, or what it might become."""
    kept = paths.cache_path() / "snapshots" / "an interrupted one"
    kept.mkdir(parents=True)
    with (kept / "1-target-0.safetensors").open("wb") as file:
        file.truncate(1_100_000_000)  # a hole: it takes no room
    status, lines = run()
    assert status == 0
    (line,) = [line for line in lines if line.startswith("cache folder")]
    assert line.endswith("(writable, 1.1 of 0.5 GB)")


def version(name: str, found: str | None) -> Callable[[str], str | None]:
    return lambda asked: found if asked == name else "99.0"


@table(
    "line, found, words",
    [
        ("mlx-lm>=0.32.2", "0.31.0", "mlx-lm is 0.31.0, but specchat needs >=0.32.2"),
        ("textual==8.2.8", "8.3.0", "textual is 8.3.0, but specchat needs ==8.2.8"),
        ("textual==8.2.8", None, "textual is missing"),
    ],
)
def test_a_wrong_version(
    monkeypatch: pytest.MonkeyPatch, line: str, found: str | None, words: str
) -> None:
    requirement = Requirement(line)
    monkeypatch.setattr(room, "_requirements", lambda: [requirement])
    monkeypatch.setattr(room, "_version", version(requirement.name, found))
    status, lines = run()
    assert status == 1
    assert words in lines[-1]
    assert lines[-1].endswith(".")


def test_our_own_requirements_are_known() -> None:
    names = {each.name for each in room._requirements()}
    assert {"mlx", "mlx-lm", "textual"} <= names
    assert "pytest" not in names


def test_an_altered_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "integrity", lambda: ("One file was altered.",))
    status, lines = run()
    assert status == 1
    assert lines[-1] == "One file was altered."
    assert any(line.startswith("demo model") and "damaged" in line for line in lines)


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setattr(paths, "data_path", lambda place=place: place)
        status, lines = run()
        assert status == 1
        assert lines[-1].startswith("The data folder")
        assert "is not writable" in lines[-1]


def test_mlx_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    status, lines = run()
    assert status == 1
    assert lines[-1].startswith("MLX cannot be loaded")


def test_a_named_model_is_checked_as_on_its_first_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = MeasuredSpeed("2026-10-01", "mlx 0.32.4", {512: 900.0}, 50.0)
    monkeypatch.setattr(speed_history, "measure", lambda *_: speed)
    folder = tiny.save(tmp_path / "model", "gpt2")
    for _ in range(2):
        out = io.StringIO()
        assert doctor(out, str(folder)) == 0
        report = out.getvalue()
        assert "all finite" in report
        assert "reads 512 tokens at 900/s; writes 50 tokens/s" in report
        assert "This model cannot skip text (its results change by" in report
        (record,) = (e for e in paths.costs_path().iterdir() if "dense_only" in e.read_text())
        record.write_text(record.read_text().replace("gaps_change_answers", "gaps_fail"))
    (weights,) = folder.glob("*.safetensors")
    arrays = mx.load(str(weights))
    assert isinstance(arrays, dict)
    mx.save_safetensors(str(weights), {name: array * mx.nan for name, array in arrays.items()})
    out = io.StringIO()
    assert doctor(out, str(folder)) == 1
    assert "some are not numbers" in out.getvalue().splitlines()[-1]
    with pytest.raises(ModelError):
        doctor(io.StringIO(), str(tmp_path / "nothing"))


@table("words", [("--runs", "3"), ("--length", "64k"), ("--draft", "D")])
def test_what_only_the_stress_run_does_is_not_ignored(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert specchat(["doctor", *words]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == (
        "",
        f"specchat: {words[0]} is only for the stress test: add --stress, or remove it.\n",
    )

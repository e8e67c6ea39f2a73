"""Runs each measurement by itself and stores its figures."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from app.errors import UserError
from benchmarks import every as module
from benchmarks.__main__ import parser
from benchmarks.benches import BENCHES
from benchmarks.harness import Result
from tests.benchmarks.test_report import DECODE, SNAPSHOT


def options(path: Path, *words: str) -> argparse.Namespace:
    return parser().parse_args(["all", "--report", str(path), *words])


@pytest.fixture
def program(tmp_path: Path) -> tuple[str, ...]:
    """Prints made-up figures, and fails as `snapshot`."""
    figures = tmp_path / "figures.json"
    figures.write_text(json.dumps(DECODE.to_json()))
    script = tmp_path / "program.py"
    script.write_text(
        "import sys\n"
        "if sys.argv[1] == 'snapshot': sys.exit('The disk is full')\n"
        f"print(open({str(figures)!r}).read())\n"
    )
    return (sys.executable, str(script))


def test_one_that_fails_leaves_a_sentence_and_the_others_stay(
    tmp_path: Path, program: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "docs" / "performance.md"
    assert module.bench_all(options(path, "--only", "decode,snapshot"), BENCHES, program) == 1
    text = path.read_text()
    assert "It failed: The disk is full (exit status 1)." in text
    assert "python -m benchmarks decode" in text
    stored = json.loads((path.parent / "performance" / "decode.json").read_text())
    assert Result.from_json(stored["result"]).rows == list(DECODE.rows)
    assert not list(path.parent.rglob("*.part"))
    assert "2/2 python -m benchmarks snapshot" in capsys.readouterr().err
    whole = {"command": "python -m benchmarks snapshot", "result": SNAPSHOT.to_json(), "error": ""}
    (path.parent / "performance" / "snapshot.json").write_text(json.dumps(whole))
    assert module.bench_all(options(path, "--only", "decode"), BENCHES, program) == 0
    assert "It failed" not in path.read_text()


def test_stopped_it_says_how_to_go_on_and_leaves_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_run", stop)
    path = tmp_path / "performance.md"
    path.write_text("before")
    assert module.bench_all(options(path, "--only", "ttft,ui"), BENCHES) == 130
    assert path.read_text() == "before"
    assert "--only ttft,ui" in capsys.readouterr().err


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no benchmark 'speed'"):
        module.bench_all(options(tmp_path / "x.md", "--only", "speed"), BENCHES)


def test_every_entry_is_a_command_line() -> None:
    for bench in BENCHES:
        for quick in (False, True):
            words = [*bench.arguments(quick), "--json"]
            assert parser().parse_args(list(words)).measure == bench.name

"""`specchat doctor --stress`: however a run ends, the report says so."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.cli import stress as room
from app.cli.main import run as specchat
from app.cli.stress import Stress, one_run, stress
from app.cli.terminal import ProgressLine
from app.protocol.options import Mode

FIGURES = {
    "machine": "a machine",
    "models": ["big", "small"],
    "tokens": 1000,
    "read": 200,
    "seconds": 1.5,
    "phases": {"score": 0.5, "prefill": 1.0},
    "mlx_peak": 2**30,
    "failed": None,
}


def playing(code: str, runs: int = 1, timeout: float = 30) -> Stress:
    """Runs that do what `code` says."""
    say = f"import json, os, signal, sys, time\nFIGURES = json.loads({json.dumps(FIGURES)!r})\n"
    say += "def say(**what): print(json.dumps(what), flush=True)\n"
    command = (sys.executable, "-c", say + code)
    return Stress(runs, 1000, "embedded", None, command, timeout)


def test_runs_that_work(tmp_path: Path) -> None:
    out = io.StringIO()
    what = playing("say(phase='score', done=5, total=1000); say(**FIGURES)", runs=3)
    assert stress(what, tmp_path / "logs", out) == 0
    report = out.getvalue()
    assert "a machine\nbig + small" in report
    rows = [line for line in report.splitlines() if line.startswith("run ")]
    assert [row.split()[2] for row in rows] == ["sparse", "full", "sparse"]
    assert "read 200 of 1,000 tokens  first word 1.5 s" in rows[0]
    assert "3 runs: none failed" in report
    assert str(tmp_path / "logs" / "stress.txt") in report


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        (
            "sys.stderr.write('metal: no memory\\n'); sys.stderr.flush(); os.abort()",
            "SIGABRT: metal",
        ),
        ("sys.exit('it broke')", "exit status 1: it broke"),
        ("pass", "exit status 0"),
        ("say(failed='There is no such model: look.')", "There is no such model"),
        ("say(**{**FIGURES, 'failed': 'Sparse reading failed.'})", "Sparse reading failed."),
        ("time.sleep(60)", "hung: it printed nothing"),
    ],
    ids=["killed", "aborted", "raised", "silent", "refused", "fell back", "hung"],
)
def test_runs_that_fail(tmp_path: Path, code: str, words: str) -> None:
    out = io.StringIO()
    assert stress(playing(code, timeout=1 if "sleep" in code else 30), tmp_path, out) == 1
    assert f"FAILED {words}" in out.getvalue()
    assert "1 failed. Please report" in out.getvalue()


def test_a_failure_is_no_reason_to_stop(tmp_path: Path) -> None:
    out = io.StringIO()
    code = "sys.exit(3) if sys.argv[1] == 'sparse' else say(**FIGURES)"
    assert stress(playing(code, runs=4), tmp_path, out) == 1
    assert "4 runs: 2 failed" in out.getvalue()
    assert "a machine" in out.getvalue()


def test_the_file_has_the_run_that_took_the_machine_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def went_down(*_: object) -> None:
        raise SystemError(report())

    def report() -> str:
        return (tmp_path / "stress.txt").read_text()

    monkeypatch.setattr(room, "one_run", went_down)
    with pytest.raises(SystemError, match=r"Run 1, sparse, starts\.\n$"):
        stress(playing("pass"), tmp_path, io.StringIO())


def test_a_file_that_cannot_be_written_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = io.StringIO()
    assert stress(playing("say(**FIGURES)"), tmp_path / "file" / "below", out) == 0
    assert "also in" not in out.getvalue()


def test_stopped_it_reports_what_there_is_and_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def sample(pid: int, *_: object) -> None:
        pids.append(pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(room, "_sample_memory", sample)
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        stress(playing("time.sleep(60)", runs=5), tmp_path, out)
    assert "0 runs of 5; it was stopped" in out.getvalue()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_how_far_it_is_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    class Line(ProgressLine):
        def show(self, text: str) -> None:
            shown.append(text)

        def clear(self) -> None:
            shown.append("")

    code = "say(phase='prefill', done=2048, total=32000); say(**FIGURES)"
    run = one_run(playing(code), Mode.FULL, Line())
    assert shown == ["prefill 2,048 of 32,000", ""]
    assert run.stats["tokens"] == 1000
    assert run.process >= 0


@pytest.mark.slow
def test_the_embedded_pair(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert specchat(["doctor", "--stress", "--runs", "2", "--length", "1k"]) == 0
    out = capsys.readouterr().out
    assert "2 runs: none failed" in out
    assert "embedded" in out or "target" in out


@pytest.mark.slow
def test_ctrl_c_in_earnest(home: Path) -> None:
    command = [sys.executable, "-m", "app", "doctor", "--stress", "--length", "64k"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        time.sleep(5)
        program.send_signal(signal.SIGINT)
        out, _ = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "it was stopped" in out

"""`specchat doctor --stress`: long prompts read again and again, each by a fresh process.

Reading a long prompt is where a machine's memory and its graphics driver are tried hardest. Every
run is a process of its own, so that one that is killed, aborts or hangs is a line of the report.
The report is also written to a file, line by line, since the machine itself may go down.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, TextIO

import psutil

from app.crash import last_stderr_line
from app.protocol.options import Mode

MODES = (Mode.SPARSE, Mode.FULL)
"""In turn."""
SAMPLE = 0.5
"""Seconds between two looks at memory."""
PATIENCE = 600.0
"""Seconds without a word after which a run counts as hung."""
REPORT = "stress.txt"

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stress:
    """What is read, how often. `command` is what runs it, but for mode, tokens and models."""

    runs: int
    tokens: int
    target: str
    draft: str | None
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "app.bench.stress_worker")
    patience: float = PATIENCE

    def words(self, mode: Mode) -> list[str]:
        models = [self.target, *([self.draft] if self.draft else [])]
        return [*self.command, mode.value, str(self.tokens), *models]


@dataclass(slots=True)
class Run:
    """What came of one run. Bytes; `figures` are what the process said itself, if it came to it."""

    mode: Mode
    figures: dict[str, Any] = field(default_factory=dict)
    failed: str = ""
    process: int = 0
    available: int = field(default_factory=lambda: psutil.virtual_memory().available)
    swapped: int = 0


def stress(what: Stress, folder: Path, out: TextIO) -> int:
    """Run it and report to `out` and to a file in `folder`; returns the exit status, 1 if a run
    failed. Ctrl-C ends the run that is on, reports, and goes on as KeyboardInterrupt."""
    done: list[Run] = []
    with _Report(folder / REPORT, out) as report:
        report.line(f"specchat {version('specchat')}, {platform.platform()}")
        report.line(f"{what.runs} runs of about {what.tokens:,} tokens")
        try:
            for number in range(1, what.runs + 1):
                mode = MODES[(number - 1) % len(MODES)]
                report.note(f"Run {number}, {mode.value}, begins.")
                run = one_run(what, mode, _progress(f"run {number} of {what.runs}, {mode.value}"))
                if not any(each.figures for each in done) and run.figures:
                    report.line(f"{run.figures['machine']}\n{' + '.join(run.figures['models'])}\n")
                report.line(_row(number, run))
                done.append(run)
        finally:
            report.line("\n" + _summary(done, what.runs))
            if report.path:
                report.line(f"This report is also in {report.path}")
    return 1 if any(run.failed for run in done) else 0


# --------------------------------------------------------------------------- one run


def one_run(what: Stress, mode: Mode, show: Show) -> Run:
    run, swap = Run(mode), psutil.swap_memory().used
    with tempfile.TemporaryFile() as errors:
        # In a group of its own: Ctrl-C comes to us alone.
        child = subprocess.Popen(
            what.words(mode), stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        try:
            _follow(child, run, what.patience, swap, show)
        finally:
            show("")
            if child.poll() is None:
                child.kill()
            status = child.wait()
        errors.seek(0)
        said = last_stderr_line(errors.read().decode(errors="replace"))
    if not run.failed and (status or not run.figures):
        ended = signal.Signals(-status).name if status < 0 else f"ended with {status}"
        run.failed = f"{ended}: {said}" if said else ended
    return run


def _follow(
    child: subprocess.Popen[bytes], run: Run, patience: float, swap: int, show: Show
) -> None:
    """Listen to it, and look at memory, until it ends or falls silent."""
    assert child.stdout is not None
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_hand_on, args=(child.stdout, lines), daemon=True).start()
    heard = looked = time.monotonic()
    while True:
        with suppress(queue.Empty):
            if not (line := lines.get(timeout=SAMPLE)):
                return
            heard = time.monotonic()
            _take(json.loads(line), run, show)
        now = time.monotonic()
        if now - looked >= SAMPLE:
            looked = now
            _look(child.pid, run, swap)
        if now - heard > patience:
            run.failed = f"hung: it said nothing for {patience:.0f} s"
            return


def _hand_on(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(b"")


def _take(said: dict[str, Any], run: Run, show: Show) -> None:
    if "phase" in said:
        show(f"{said['phase']} {said['done']:,} of {said['total']:,}")
        return
    run.failed = said.get("failed") or ""
    if "tokens" in said:
        run.figures = said


def _look(pid: int, run: Run, swap: int) -> None:
    with suppress(psutil.Error):
        run.process = max(run.process, psutil.Process(pid).memory_info().rss)
    run.available = min(run.available, psutil.virtual_memory().available)
    run.swapped = max(run.swapped, psutil.swap_memory().used - swap)


def _progress(what: str) -> Show:
    """One line that changes, on a terminal only."""

    def show(text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{what}: {text}" if text else "\r\x1b[K")
            sys.stderr.flush()

    return show


# --------------------------------------------------------------------------- the report


class _Report:
    """Lines for the reader and for a file, each on the disk before the next run begins. Where the
    file cannot be written, the reader's must do."""

    def __init__(self, path: Path, out: TextIO) -> None:
        self._out, self._file = out, None
        self.path: Path | None = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")
        except OSError:
            self.path = None

    def __enter__(self) -> _Report:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()
        self.note(text)

    def note(self, text: str) -> None:
        """For the file alone."""
        with suppress(OSError):
            if self._file is not None:
                self._file.write(text + "\n")
                self._file.flush()
                os.fsync(self._file.fileno())


def _row(number: int, run: Run) -> str:
    parts = [f"run {number:>2}  {run.mode.value:<6}"]
    if run.figures:
        phases = run.figures["phases"]
        parts.append(f"read {run.figures['read']:,} of {run.figures['tokens']:,} tokens")
        parts.append(f"first word {run.figures['seconds']:.1f} s")
        parts.append(
            f"(score {phases.get('score', 0):.1f}, prefill {phases.get('prefill', 0):.1f})"
        )
        parts.append(f"MLX {_size(run.figures['mlx_peak'])}")
    parts.append(f"process {_size(run.process)}, {_size(run.available)} left")
    parts.append(f"swapped {_size(run.swapped)}")
    return "  ".join(parts) + (f"\n        FAILED {run.failed}" if run.failed else "")


def _size(count: int) -> str:
    return f"{count / 1024**2:,.0f} MB" if count < 1024**3 else f"{count / 1024**3:.1f} GB"


def _summary(done: Sequence[Run], wanted: int) -> str:
    failed = sum(bool(run.failed) for run in done)
    stopped = f" of {wanted}; it was stopped" if len(done) < wanted else ""
    if not failed:
        return f"{len(done)} runs{stopped}: none failed. Timings are worth reporting too."
    return (
        f"{len(done)} runs{stopped}: {failed} failed. Please report all of the above. If the"
        " machine itself went down, add the newest file of /Library/Logs/DiagnosticReports on a"
        " Mac, or the last lines of `dmesg` on Linux."
    )

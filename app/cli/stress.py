"""`specchat doctor --stress`: prefills a long prompt repeatedly, each time in a new process.

The prefill of a long prompt is the hardest test of a machine's memory and graphics driver. With a
process for each run, a run that is killed, aborts or hangs becomes a line of the report. The report
is also written to a file, line by line, since the machine itself may crash.
"""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import psutil

from app.cli.logs import last_stderr_line
from app.cli.terminal import ProgressLine
from app.errors import UserError
from app.protocol.events import Failed, Finished, PhaseProgress
from app.protocol.memory import format_bytes
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document

MODES = (Mode.SPARSE, Mode.FULL)
"""The runs alternate between these modes."""
SAMPLE_SECONDS = 0.5
"""Seconds between two samples of memory use."""
TIMEOUT = 600.0
"""Seconds without output after which a run counts as hung."""
REPORT = "stress.txt"
QUESTION = 'What does it say of "Corresponding Source"?'
ANSWER_TOKENS = 8

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stress:
    """What to run. `command`, followed by mode, tokens and models, starts one run."""

    runs: int
    tokens: int
    target: str
    draft: str | None
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "app.cli.stress")
    timeout: float = TIMEOUT

    def arguments(self, mode: Mode) -> list[str]:
        models = [self.target, *([self.draft] if self.draft else [])]
        return [*self.command, mode.value, str(self.tokens), *models]


@dataclass(slots=True)
class Run:
    """The outcome of one run. Memory is in bytes; `stats` is what the process reported, if
    anything."""

    mode: Mode
    stats: dict[str, Any] = field(default_factory=dict)
    failed: str = ""
    process: int = 0
    available: int = field(default_factory=lambda: psutil.virtual_memory().available)
    swapped: int = 0


def stress(options: Stress, folder: Path, out: TextIO) -> int:
    """Run the test and report to `out` and to a file in `folder`. Return the exit status, 1 if a
    run failed. Ctrl-C ends the current run, writes the report and raises KeyboardInterrupt."""
    done: list[Run] = []
    with _Report(folder / REPORT, out) as report:
        report.line(f"specchat {version('specchat')}, {platform.platform()}")
        report.line(f"{options.runs} runs of about {options.tokens:,} tokens")
        try:
            for number in range(1, options.runs + 1):
                mode = MODES[(number - 1) % len(MODES)]
                report.note(f"Run {number}, {mode.value}, starts.")
                line = ProgressLine(f"run {number} of {options.runs}, {mode.value}: ")
                run = one_run(options, mode, line)
                if not any(each.stats for each in done) and run.stats:
                    report.line(f"{run.stats['machine']}\n{' + '.join(run.stats['models'])}\n")
                report.line(_row(number, run))
                done.append(run)
        finally:
            report.line("\n" + _summary(done, options.runs))
            if report.path:
                report.line(f"This report is also in {report.path}")
    return 1 if any(run.failed for run in done) else 0


# --------------------------------------------------------------------------- one run


def one_run(options: Stress, mode: Mode, line: ProgressLine) -> Run:
    run, swap = Run(mode), psutil.swap_memory().used
    with tempfile.TemporaryFile() as errors:
        # In its own process group, so that Ctrl-C interrupts only this process.
        child = subprocess.Popen(
            options.arguments(mode),
            bufsize=0,  # `select` sees no lines in a buffer
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            _follow(child, run, options.timeout, swap, line.show)
        finally:
            line.clear()
            if child.poll() is None:
                child.kill()
            status = child.wait()
        errors.seek(0)
        error = last_stderr_line(errors.read().decode(errors="replace"))
    if not run.failed and (status or not run.stats):
        ending = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        run.failed = f"{ending}: {error}" if error else ending
    return run


def _follow(
    child: subprocess.Popen[bytes], run: Run, timeout: float, swap: int, show: Show
) -> None:
    """Read the child's output and sample its memory until it ends or hangs."""
    assert child.stdout is not None
    last_output = last_sample = time.monotonic()
    while True:
        if select.select([child.stdout], [], [], SAMPLE_SECONDS)[0]:
            if not (line := child.stdout.readline()):
                return
            last_output = time.monotonic()
            _on_line(json.loads(line), run, show)
        now = time.monotonic()
        if now - last_sample >= SAMPLE_SECONDS:
            last_sample = now
            _sample_memory(child.pid, run, swap)
        if now - last_output > timeout:
            run.failed = f"hung: it printed nothing for {timeout:.0f} s"
            return


def _on_line(line: dict[str, Any], run: Run, show: Show) -> None:
    if "phase" in line:
        show(f"{line['phase']} {line['done']:,} of {line['total']:,}")
        return
    run.failed = line.get("failed") or ""
    if "tokens" in line:
        run.stats = line


def _sample_memory(pid: int, run: Run, swap: int) -> None:
    with suppress(psutil.Error):
        run.process = max(run.process, psutil.Process(pid).memory_info().rss)
    run.available = min(run.available, psutil.virtual_memory().available)
    run.swapped = max(run.swapped, psutil.swap_memory().used - swap)


# --------------------------------------------------------------------------- the report


class _Report:
    """Writes lines to the output and to a file, each flushed to the disk before the next run
    starts. If the file cannot be written, there is only the output."""

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
        """Write a line to the file only."""
        with suppress(OSError):
            if self._file is not None:
                self._file.write(text + "\n")
                self._file.flush()
                os.fsync(self._file.fileno())


def _row(number: int, run: Run) -> str:
    parts = [f"run {number:>2}  {run.mode.value:<6}"]
    if run.stats:
        phases = run.stats["phases"]
        parts.append(f"read {run.stats['read']:,} of {run.stats['tokens']:,} tokens")
        parts.append(f"first word {run.stats['seconds']:.1f} s")
        parts.append(
            f"(score {phases.get('score', 0):.1f}, prefill {phases.get('prefill', 0):.1f})"
        )
        parts.append(f"MLX {format_bytes(run.stats['mlx_peak'])}")
    parts.append(f"process {format_bytes(run.process)}, {format_bytes(run.available)} left")
    parts.append(f"swapped {format_bytes(run.swapped)}")
    return "  ".join(parts) + (f"\n        FAILED {run.failed}" if run.failed else "")


def _summary(done: Sequence[Run], planned: int) -> str:
    failed = sum(bool(run.failed) for run in done)
    stopped = f" of {planned}; it was stopped" if len(done) < planned else ""
    if not failed:
        return f"{len(done)} runs{stopped}: none failed. Timings are worth reporting too."
    return (
        f"{len(done)} runs{stopped}: {failed} failed. Please report all of the above. If the"
        " machine itself crashed, add the newest file of /Library/Logs/DiagnosticReports on a"
        " Mac, or the last lines of `dmesg` on Linux."
    )


# --------------------------------------------------------------------------- the process of one run


def main(arguments: Sequence[str]) -> int:
    """Run once. `arguments` are `MODE TOKENS TARGET [DRAFT]`. Print JSON objects, one per line:
    progress, and finally the statistics or an error."""
    mode, tokens, target, *draft = arguments
    try:
        measure(Mode(mode), int(tokens), target, draft[0] if draft else None)
    except UserError as error:
        _print(failed=str(error))
    return 0


def measure(mode: Mode, tokens: int, target: str, draft: str | None) -> None:
    from app.chat import wording
    from app.chat.conversation import Conversation, Question
    from app.chat.engine_session import EngineSession
    from app.chat.model_pairs import resolve_pair
    from app.chat.sample import FILE, text_of
    from app.cli.bench import machine

    load = resolve_pair(target, draft)
    with EngineSession() as session:
        loaded = session.load(load)
        context = loaded.target.context_length or tokens
        document = Document(FILE, text_of(min(tokens, context * 9 // 10)))
        question = Question(QUESTION, (document,), mode)
        _, command = Conversation(Sampling(max_tokens=ANSWER_TOKENS)).start_turn(question)
        for event in session.run(command):
            match event:
                case PhaseProgress():
                    _print(phase=event.phase.value, done=event.done, total=event.total)
                case Failed():
                    _print(failed=wording.failure(event.failure).sentence)
                case Finished(statistics=stats) if stats is not None:
                    _print(
                        machine=machine(),
                        models=[each.name for each in (loaded.target, loaded.draft) if each],
                        tokens=stats.prompt_tokens,
                        read=stats.read_tokens,
                        seconds=stats.ttft,
                        phases={each.phase.value: each.seconds for each in stats.phases},
                        mlx_peak=stats.peak_bytes,
                        failed=None if stats.fallback is None else wording.reason(stats.fallback),
                    )


def _print(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

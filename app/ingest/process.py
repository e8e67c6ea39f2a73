"""Runs another program with limits on its time and output."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.ingest.limits import ReadBudget

_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """`seconds` start again whenever the process makes progress; `total_seconds` do not. `output`
    and `memory` are in bytes."""

    seconds: float
    output: int
    total_seconds: float = math.inf
    memory: int | None = None


def run_bounded(
    command: Sequence[str],
    limits: ProcessLimits,
    budget: ReadBudget,
    progressed: Callable[[], bool] = lambda: False,
    **options: Any,
) -> tuple[int | None, bytes]:
    """Run a program with these options of `Popen`. Returns exit status and output. The status is
    None if it exceeded a limit or could not be started. `progressed` is called while it runs, and
    returns whether it made progress. The process never outlives this call. Raises what
    `budget.check` raises."""
    options.setdefault("stdin", subprocess.DEVNULL)
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, **options)
        except OSError:
            return None, b""
        stopped = False
        try:
            left, end = limits.seconds, time.monotonic() + limits.total_seconds
            while process.poll() is None:
                if progressed():
                    left = limits.seconds
                budget.check()
                left = min(left, end - time.monotonic())
                too_long = left <= 0 or os.fstat(output.fileno()).st_size > limits.output
                if too_long or (limits.memory is not None and _memory(process.pid) > limits.memory):
                    stopped = True
                    break
                try:
                    process.wait(min(_POLL_SECONDS, left))
                except subprocess.TimeoutExpired:
                    left -= _POLL_SECONDS
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        written = output.read(limits.output + 1)
        stopped = stopped or len(written) > limits.output
        return None if stopped else process.returncode, written


def _memory(pid: int) -> int:
    """Bytes of memory of a process; 0 if it has ended. macOS limits no process itself."""
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0

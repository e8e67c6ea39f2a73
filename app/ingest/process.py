"""Runs another program with limits on its time and output."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from app.ingest.limits import ReadBudget

_POLL_SECONDS = 0.05


def run_bounded(
    command: Sequence[str],
    seconds: float,
    max_bytes: int,
    budget: ReadBudget,
    *,
    stdin: IO[bytes] | None = None,
    folder: str | None = None,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    progressed: Callable[[], bool] = lambda: False,
    total_seconds: float = float("inf"),
    memory: int | None = None,
) -> tuple[int | None, bytes]:
    """Run a program. Returns exit status and output. The status is None if it ran longer than
    `seconds`, wrote more than `max_bytes`, took more than `memory` bytes, or could not be started.
    `progressed` is called while it runs; if it returns True, `seconds` start again, but all
    together are at most `total_seconds`. The process never outlives this call. Raises what
    `budget.check` raises."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=output,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=environment,
                pass_fds=pass_fds,
            )
        except OSError:
            return None, b""
        stopped = False
        try:
            left, end = seconds, time.monotonic() + total_seconds
            while process.poll() is None:
                if progressed():
                    left = seconds
                budget.check()
                left = min(left, end - time.monotonic())
                too_long = left <= 0 or os.fstat(output.fileno()).st_size > max_bytes
                if too_long or (memory is not None and _memory(process.pid) > memory):
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
        written = output.read(max_bytes + 1)
        stopped = stopped or len(written) > max_bytes
        return None if stopped else process.returncode, written


def _memory(pid: int) -> int:
    """Bytes of memory of a process; 0 if it has ended. macOS limits no process itself."""
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0

"""Another program, with bounds on its time and its output."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from app.ingest.budget import ReadBudget

_LOOK_SECONDS = 0.05


def run_bounded(
    command: Sequence[str],
    seconds: float,
    most: int,
    watch: ReadBudget,
    *,
    stdin: IO[bytes] | None = None,
    folder: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, bytes] | None:
    """Exit status and output; None when it took longer than `seconds`, wrote more than `most`
    bytes, or could not be started. Raises what `watch.check` raises. It never outlives this."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=output,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=environment,
            )
        except OSError:
            return None
        try:
            left = watch.time_left(seconds)
            while process.poll() is None and left > 0:
                watch.check()
                if os.fstat(output.fileno()).st_size > most:
                    return None
                try:
                    process.wait(min(_LOOK_SECONDS, left))
                except subprocess.TimeoutExpired:
                    left -= _LOOK_SECONDS
            if process.poll() is None:
                return None
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        written = output.read(most + 1)
        return None if len(written) > most else (process.returncode, written)

"""Files and folders named on the command line: read, and told what became of them."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
import termios
from collections.abc import Sequence

from app.ingest.limits import Limits
from app.ingest.reader import STDIN, read
from app.ingest.records import Progress, ReadResult, ReadResults, Reason
from app.util.sanitize import sanitize_line

MAX_LISTED = 10
"""Things left out of a folder that are told one by one."""
SILENCE_SECONDS = 1.0
"""Seconds of silence after which one is told what is waited for."""
_EXPECTED = (Reason.IGNORED, Reason.EMPTY)


def read_inputs(paths: Sequence[str], limits: Limits | None = None) -> ReadResults:
    """What `paths` stand for, `-` being standard input, which is read too where nothing is named
    and it holds anything. Tells on standard error what was taken of folders, and what was not and
    why. Raises IngestError."""
    if not paths and _is_piped() and _holds_anything():
        paths = (STDIN,)
    elif STDIN not in paths and _is_waiting():
        sys.stderr.write("Standard input is not read beside -f: name it, too, with `-f -`.\n")
    live = ProgressLine()
    try:
        gathered = read(paths, sys.stdin.buffer if sys.stdin else None, limits, live.show)
    finally:
        live.clear()
    for intake in gathered.results:
        for line in _report_lines(intake):
            sys.stderr.write(sanitize_line(line) + "\n")
    return gathered


def _is_piped() -> bool:
    """Whether standard input may be a document: no terminal, and not /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # none, or a test's own
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _holds_anything() -> bool:
    """Waits for its first byte or its end, and says so: a program that never writes may have left
    its own to this one."""
    if not select.select([sys.stdin], [], [], SILENCE_SECONDS)[0]:
        sys.stderr.write("Waiting for standard input; `</dev/null` says that there is none.\n")
    return bool(sys.stdin.buffer.peek(1))  # type: ignore[union-attr]


def _is_waiting() -> bool:
    """Whether something was written into a pipe that leads here."""
    if not _is_piped() or not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        return False
    count = fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(count, sys.byteorder) > 0


def _report_lines(intake: ReadResult) -> list[str]:
    lines = [f"Read {intake.summary}."] if intake.tree is not None else []
    # What one expects to be left out comes last.
    skipped = sorted(intake.skipped, key=lambda each: (not each.rest, each.reason in _EXPECTED))
    lines += [f"Left out: {each.sentence}" for each in skipped[:MAX_LISTED]]
    if len(skipped) > MAX_LISTED:
        lines.append(f"Left out: {len(skipped) - MAX_LISTED:,} more.")
    odd = [each for each in intake.files if each.lossy]
    lines += [
        f"{each.path} is not all UTF-8: what is not reads as \\xff." for each in odd[:MAX_LISTED]
    ]
    if len(odd) > MAX_LISTED:
        lines.append(f"{len(odd) - MAX_LISTED:,} more files are not all UTF-8.")
    return lines


class ProgressLine:
    """One line that changes while folders are read, on a terminal only."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = False

    def show(self, progress: Progress) -> None:
        if self._live:
            self._shown = True
            figures = f"{progress.files:,} taken of {progress.entries:,} looked at"
            sys.stderr.write(f"\r\x1b[Kreading: {figures}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")

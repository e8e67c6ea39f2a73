"""Reads the files and folders named on the command line, and reports what was skipped."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
import termios
from collections.abc import Sequence

from app.cli.terminal import ProgressLine
from app.ingest.limits import ReadLimits
from app.ingest.reader import STDIN, read
from app.ingest.records import ReadProgress, ReadResult, ReadResults, SkipReason
from app.util.sanitize import sanitize_line

MAX_LISTED = 10
"""Skipped files that are listed one by one."""
SILENCE_SECONDS = 1.0
"""Seconds of silence on standard input before a message says that it is waited for."""
_EXPECTED = (SkipReason.IGNORED, SkipReason.EMPTY)


def read_inputs(paths: Sequence[str], limits: ReadLimits | None = None) -> ReadResults:
    """The documents in `paths`, where `-` is standard input. Without paths, standard input is read
    if something is piped in. What was read of folders, and what was skipped and why, goes to
    standard error. Raises IngestError."""
    if not paths and _is_piped() and _has_input():
        paths = (STDIN,)
    elif STDIN not in paths and _is_waiting():
        sys.stderr.write("Standard input is not read with -f: add `-f -` to read it too.\n")
    line = ProgressLine()
    try:
        inputs = read(
            paths,
            sys.stdin.buffer if sys.stdin else None,
            limits,
            lambda progress: line.show(_progress_text(progress)),
        )
    finally:
        line.clear()
    for result in inputs.results:
        for text in _report_lines(result):
            sys.stderr.write(sanitize_line(text) + "\n")
    return inputs


def _is_piped() -> bool:
    """Whether standard input may be a document: not a terminal, and not /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is none, or a test replaced it
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _has_input() -> bool:
    """Whether standard input has a byte before its end. Waits for either, and says so: this program
    may have inherited a pipe into which nothing is ever written."""
    if not select.select([sys.stdin], [], [], SILENCE_SECONDS)[0]:
        sys.stderr.write("Waiting for standard input; add `</dev/null` if there is none.\n")
    return bool(sys.stdin.buffer.peek(1))  # type: ignore[union-attr]


def _is_waiting() -> bool:
    """Whether a pipe on standard input has data."""
    if not _is_piped() or not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        return False
    count = fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(count, sys.byteorder) > 0


def _report_lines(result: ReadResult) -> list[str]:
    lines = [f"Read {result.summary}."] if result.tree is not None else []
    # Files that one expects to be skipped come last.
    skipped = sorted(result.skipped, key=lambda each: (not each.rest, each.reason in _EXPECTED))
    lines += [f"Skipped: {each.sentence}" for each in skipped[:MAX_LISTED]]
    if len(skipped) > MAX_LISTED:
        lines.append(f"Skipped: {len(skipped) - MAX_LISTED:,} more.")
    doubtful = [each.sentence for each in result.files if each.doubtful]
    lines += doubtful[:MAX_LISTED]
    if len(doubtful) > MAX_LISTED:
        lines.append(
            f"{len(doubtful) - MAX_LISTED:,} more files have guessed encodings or bad bytes."
        )
    return lines


def _progress_text(progress: ReadProgress) -> str:
    counts = f"{progress.files:,} files of {progress.entries:,} visited"
    return "Reading: " + ", ".join(filter(None, (counts, progress.page_text)))

"""Files and folders named on the command line: read, and told what became of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from app.ingest.limits import Limits
from app.ingest.reader import read
from app.ingest.records import Gathered, Intake, Progress, Reason
from app.ui.sanitize import sanitize_line

LISTED = 10
"""Things left out of a folder that are told one by one."""
_EXPECTED = (Reason.IGNORED, Reason.EMPTY)


def read_given(paths: Sequence[str], limits: Limits | None = None) -> Gathered:
    """What `paths` stand for, `-` being standard input. Tells on standard error what was taken of
    folders, and what was not and why. Raises IngestError."""
    live = Live()
    try:
        gathered = read(paths, sys.stdin.buffer if sys.stdin else None, limits, live.show)
    finally:
        live.clear()
    for intake in gathered.intakes:
        for line in _told(intake):
            sys.stderr.write(sanitize_line(line) + "\n")
    return gathered


def _told(intake: Intake) -> list[str]:
    lines = [f"Read {intake.summary}."] if intake.tree is not None else []
    # What one expects to be left out comes last.
    skipped = sorted(intake.skipped, key=lambda each: (not each.rest, each.reason in _EXPECTED))
    lines += [f"Left out: {each.sentence}" for each in skipped[:LISTED]]
    if len(skipped) > LISTED:
        lines.append(f"Left out: {len(skipped) - LISTED:,} more.")
    odd = [each for each in intake.taken if each.lossy]
    lines += [f"{each.path} is not all UTF-8: what is not reads as \\xff." for each in odd[:LISTED]]
    if len(odd) > LISTED:
        lines.append(f"{len(odd) - LISTED:,} more files are not all UTF-8.")
    return lines


class Live:
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

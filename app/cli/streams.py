"""Handles standard streams that are closed, full or no longer read."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from app.errors import UserError


class OutputError(UserError):
    """Standard output cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"Standard output cannot be written ({error.strerror})", "redirect it to another file"
        )


class _Output(io.FileIO):
    """Its errors differ from those of other files."""

    def write(self, data: bytes) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error) from error


class _Messages(io.FileIO):
    """Standard error, where a failure stops nothing."""

    def write(self, data: bytes) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError:
            return len(data)


def guard_streams() -> None:
    """Called at the start: opens missing streams, and makes errors of output one sentence."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Closed: the next file would get its number, and be written into. Writing to a
            # read-only descriptor fails like writing to a closed one.
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout, "replace")
    sys.stderr = _text(_Messages(2, "w", closefd=False), sys.stderr, "backslashreplace")


def _text(raw: io.FileIO, before: TextIO | None, errors: str) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding if before is not None else None,
        errors=errors,
        line_buffering=raw.isatty() or raw.fileno() == 2,
    )


def discard_output() -> None:
    """Discard buffered output, so that flushing it at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

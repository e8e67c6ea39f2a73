"""Standard streams that may be closed, full or no longer read by anybody."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from app.errors import UserError


class OutputError(UserError):
    """What was to be printed cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"Standard output cannot be written ({error.strerror})", "send it somewhere else"
        )


class _Output(io.FileIO):
    """As the kernel says, but told apart from errors of other files."""

    def write(self, data: bytes) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error) from error


class _Remarks(io.FileIO):
    """Standard error: what nobody can read stops no work."""

    def write(self, data: bytes) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError:
            return len(data)


def guard_streams() -> None:
    """For a program that starts: its streams are there, and fail in one sentence or not at all."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Closed: the next file would get its number, and be printed into. To an output that
            # may only be read, writing fails as to one that is closed.
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout, "replace")
    sys.stderr = _text(_Remarks(2, "w", closefd=False), sys.stderr, "backslashreplace")


def _text(raw: io.FileIO, before: TextIO | None, errors: str) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding if before is not None else None,
        errors=errors,
        line_buffering=raw.isatty() or raw.fileno() == 2,
    )


def discard_output() -> None:
    """Let what is still to be printed go nowhere, so that nothing complains of it at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

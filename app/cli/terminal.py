"""Handles closed, full or unread standard streams; a progress line; Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self, TextIO

from app.cli.status import INTERRUPTED
from app.errors import UserError


class OutputError(UserError):
    """Standard output cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"Standard output cannot be written ({error.strerror})", "redirect it to another file"
        )


class _Output(io.FileIO):
    """Standard output. Its errors raise OutputError, to tell them from errors of other files."""

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
    """Open missing standard streams, and report output errors as one sentence. Call this first."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Otherwise the next file that is opened would get this number and be written to.
            # Writing to a read-only descriptor fails like writing to a closed one.
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


class ProgressLine:
    """A line on standard error that begins with `label` and that each `show` replaces. Shown on a
    terminal only. A context manager that clears the line at the end."""

    def __init__(self, label: str = "") -> None:
        self.live, self._label = sys.stderr.isatty(), label
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Show as much of `text` as fits. It must be sanitised."""
        text = self._label + text
        if self.live and text != self._shown:
            from shutil import get_terminal_size

            self._shown = text
            sys.stderr.write(f"\r\x1b[K{text[: get_terminal_size().columns - 1]}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            self._shown = ""
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextmanager
def cancel_on_sigint(cancel: Callable[[], object]) -> Iterator[None]:
    """In the block, Ctrl-C calls `cancel`, which must be safe in a signal handler. A second Ctrl-C
    ends the process."""

    def on_sigint(*_: object) -> None:
        cancel()
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))

    before = signal.signal(signal.SIGINT, on_sigint)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

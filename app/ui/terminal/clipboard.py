"""The system's clipboard, by the programs that come with the system.

Through a terminal it cannot be read, and in Terminal.app not even written.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

TIMEOUT_SECONDS = 2.0
"""Another program may own the text and not respond."""


class Clipboard(Protocol):
    """Both methods return at once. A read after a write returns what was written."""

    def read(self) -> Future[str | None]:
        """Its text; None if it has no text, or cannot be read."""

    def write(self, text: str) -> object: ...


class SystemClipboard:
    def __init__(self, reads: Sequence[str], writes: Sequence[str]) -> None:
        """The command lines of two programs."""
        self._reads, self._writes = reads, writes
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="clipboard")

    def read(self) -> Future[str | None]:
        return self._executor.submit(self._read)

    def write(self, text: str) -> Future[None]:
        return self._executor.submit(self._write, text)

    def _read(self) -> str | None:
        try:
            done = subprocess.run(
                self._reads,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_SECONDS,
                env=_environment(),
            )
        except (OSError, subprocess.SubprocessError):
            return None
        text = done.stdout.decode(errors="replace")
        return text if done.returncode == 0 and text else None

    def _write(self, text: str) -> None:
        # Some programs keep running to serve the text, so they must not inherit our streams.
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                self._writes,
                input=text.encode(errors="replace"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_SECONDS,
                env=_environment(),
            )


def system_clipboard() -> SystemClipboard | None:
    """None if there is no clipboard, or no program for it."""
    programs: list[tuple[str, str]] = []
    if sys.platform == "darwin":
        programs.append(("pbpaste", "pbcopy"))
    elif os.environ.get("WAYLAND_DISPLAY"):
        programs.append(("wl-paste --no-newline --type text", "wl-copy"))
    if sys.platform != "darwin" and os.environ.get("DISPLAY"):
        programs.append(("xclip -selection clipboard -out", "xclip -selection clipboard -in"))
    for reads, writes in programs:
        reader, writer = _resolve(reads), _resolve(writes)
        if reader and writer:
            return SystemClipboard(reader, writer)
    return None


def _resolve(command: str) -> list[str]:
    """The command with the program's full path; empty if it is not installed."""
    name, *arguments = command.split()
    program = shutil.which(name)
    return [program, *arguments] if program else []


def _environment() -> dict[str, str]:
    """pbpaste and pbcopy use the locale's encoding, which is ASCII if no locale is set."""
    return {**os.environ, "LC_CTYPE": "UTF-8"} if sys.platform == "darwin" else {**os.environ}

"""Runs a program in a pseudo-terminal, to type keys and wait for text."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ENTER, ESCAPE, BACKSPACE = b"\r", b"\x1b", b"\x7f"
PASTE, PASTE_END = b"\x1b[200~", b"\x1b[201~"
IMPORT_TEXTUAL = (sys.executable, "-P", "-c", "import textual.app")
"""A process that only imports Textual, with which a start is compared."""
READ_BYTES = 1 << 16
END_SECONDS = 10.0


def own_folders(folder: Path) -> dict[str, str]:
    """Environment variables that isolate a program from the user's files."""
    names = ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    return {name: str(folder / name) for name in names}


class Terminal:
    """Context manager that runs a command and ends it on exit. `size`: (columns, rows)."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        size: tuple[int, int] = (120, 36),
    ) -> None:
        self._command, self._environment, self._size = command, environment, size
        self._unread = bytearray()

    def __enter__(self) -> Self:
        self.started = time.perf_counter()
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            columns, rows = self._size
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execvpe(self._command[0], list(self._command), dict(self._environment))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.kill(self.pid, signal.SIGTERM)
        deadline = time.perf_counter() + END_SECONDS
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            self._read(0.05)
            if time.perf_counter() > deadline:
                os.kill(self.pid, signal.SIGKILL)
        os.close(self._terminal)

    def write(self, keys: bytes) -> None:
        """Write on a thread, because a program that draws does not read meanwhile."""
        threading.Thread(target=self._write, args=(keys,), daemon=True).start()

    def wait_for(self, *texts: str, seconds: float = 60.0) -> float:
        """Wait until one of `texts` is drawn, in one style on one line, and discard the output up
        to it. Returns `time.perf_counter()`. Raises TimeoutError."""
        expected = re.compile(b"|".join(re.escape(text.encode()) for text in texts))
        deadline = time.perf_counter() + seconds
        while (found := expected.search(self._unread)) is None:
            if not self._read(deadline - time.perf_counter()):
                raise TimeoutError(f"'{texts[0]}' was not drawn within {seconds:.0f} s")
        del self._unread[: found.end()]
        return time.perf_counter()

    def discard(self) -> None:
        """Discard the output so far."""
        while self._read(0):
            pass
        self._unread.clear()

    def _write(self, keys: bytes) -> None:
        while keys:
            keys = keys[os.write(self._terminal, keys) :]

    def _read(self, seconds: float) -> bool:
        """Whether there was any output within `seconds`."""
        if not select.select([self._terminal], [], [], max(0.0, seconds))[0]:
            return False
        try:
            self._unread += os.read(self._terminal, READ_BYTES)
        except OSError:  # Linux raises this after the program has ended
            return False
        return True

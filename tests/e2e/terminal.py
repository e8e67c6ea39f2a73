"""A real terminal for tests: a tmux server of our own, driven from outside."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "app"]
LICENCE = ROOT / "assets" / "demo" / "gpl-3.0.txt"
MARKS = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
"""Marks of the tests that use a `Terminal`."""
POLL_SECONDS = 0.05
WAIT_SECONDS = 60.0 * PATIENCE
"""Seconds that a test waits for the screen: these machines are slow at times."""


class Terminal:
    """Runs one command in tmux. As a context manager it kills its server at the end, and only its.

    The server has a socket of its own and reads no configuration, so what the machine's user has
    in tmux is neither seen nor touched.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: tuple[int, int] = (80, 24),
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = command
        self._size = size
        self._folder = folder
        self._environment = {"TERM": "tmux-256color", **(environment or {})}

    def __enter__(self) -> Terminal:
        self._scratch = tempfile.TemporaryDirectory(prefix="specchat-tmux-")
        width, height = map(str, self._size)
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        program = shlex.join(["env", *variables, *self._command])
        after = "; status=$?; echo; echo exited with $status; exec sleep 3600"
        self._tmux("new-session", "-d", "-x", width, "-y", height, "sh", "-c", program + after)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tmux("kill-server", check=False)
        self._scratch.cleanup()

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: `Enter`, `Escape`, `C-t`, `PPage`."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def paste(self, text: str) -> None:
        """A bracketed paste. `-r`: without it tmux writes a carriage return for each newline."""
        file = Path(self._scratch.name) / "paste"
        file.write_bytes(text.encode())
        self._tmux("load-buffer", "-b", "paste", str(file))
        self._tmux("paste-buffer", "-p", "-r", "-d", "-b", "paste")

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def wait_for(self, *texts: str, seconds: float = WAIT_SECONDS) -> str:
        """The first screen that shows all of `texts`."""
        return self.wait_until(lambda screen: all(text in screen for text in texts), seconds, texts)

    def wait_until(
        self,
        condition: Callable[[str], bool],
        seconds: float = WAIT_SECONDS,
        what: object = "a condition",
    ) -> str:
        deadline = time.monotonic() + seconds
        while not condition(screen := self.screen()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what}\n{screen}")
            time.sleep(POLL_SECONDS)
        return screen

    @property
    def pid(self) -> int:
        """Of the shell that runs the command."""
        return int(self._tmux("display-message", "-p", "#{pane_pid}"))

    def close(self) -> None:
        """As when the user closes the window."""
        self._tmux("kill-server")

    def _tmux(self, *arguments: str, check: bool = True) -> str:
        socket = Path(self._scratch.name) / "socket"
        environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
        finished = subprocess.run(
            ["tmux", "-S", str(socket), "-f", "/dev/null", "-u", *arguments],
            capture_output=True,
            text=True,
            timeout=30 * PATIENCE,
            cwd=self._folder,
            env=environment | {"LC_ALL": "C.UTF-8"},
        )
        if check and finished.returncode:
            raise AssertionError(f"tmux {arguments}: {finished.stderr}")
        return finished.stdout

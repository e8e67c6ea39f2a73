"""The small process that starts the app, and cleans up behind it when it is killed.

Metal aborts a process whose commands fail, and the system kills the largest one when memory runs
out. Neither leaves the app time to give the terminal back, so somebody else has to.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO

from app.crash import Crash, last_stderr_line
from app.paths import logs_path

MARK = "SPECCHAT_PARENT"
FORWARDED = (signal.SIGTERM, signal.SIGHUP)
REQUESTED = (*FORWARDED, signal.SIGINT)
"""Signals that somebody ended it with: no fault, also where they came before the app could act."""
# What Textual's driver switches on, switched off in its order.
RESTORE = "".join(
    (
        "\x1b[?2026l",  # draw at once again
        "\x1b[?2004l\x1b[?7h\x1b[?2048l",  # pastes, line wrap, sizes
        "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l",  # the mouse
        "\x1b[<u",  # the kitty keyboard, before the screen is left
        "\x1b[?1049l\x1b[?25h\x1b[?1004l\x1b[0m",  # the screen, the cursor, the focus, colours
    )
)


@dataclass(frozen=True)
class Supervisor:
    """Who watches this process."""

    pid: int
    log: int
    """The descriptor of a file for what libraries say on standard error."""

    @property
    def alive(self) -> bool:
        return os.getppid() == self.pid


def current_supervisor(environment: Mapping[str, str] = os.environ) -> Supervisor | None:
    """None in a process that nobody watches."""
    pid, _, log = environment.get(MARK, "").partition(":")
    return Supervisor(int(pid), int(log)) if pid == str(os.getppid()) else None


def supervise() -> int:
    """Run this very command in a process of its own and wait for it; returns the exit status,
    128 + n after signal n."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def restore() -> None:
        with suppress(termios.error):  # the terminal may have gone
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
        _say(RESTORE)

    with tempfile.TemporaryFile() as log:
        status = _run(log, restore)
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        log.seek(0)
        said = log.read().decode(errors="replace")
    ended_by = signal.Signals(os.WTERMSIG(status))
    restore()
    if ended_by in REQUESTED:
        return 128 + ended_by
    crash = Crash(ended_by.name, last_stderr_line(said))
    kept = crash.record(logs_path(), said)
    _say(f"{crash.sentence}\nStart `specchat` again to go on.\n")
    if kept is not None:
        _say(f"What the libraries said is in {kept}\n")
    return 128 + ended_by


def _say(text: str) -> None:
    with suppress(OSError):  # the terminal may have gone
        sys.stderr.write(text)
        sys.stderr.flush()


def _run(log: BinaryIO, restore: Callable[[], None]) -> int:
    """Returns the child's status as `os.waitpid` tells it. `restore` gives the terminal back."""
    child = 0
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:  # that one, terminals send to both
            return
        if not child:
            early.append(number)
            return
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in REQUESTED:
        signal.signal(number, pass_on)
    os.set_inheritable(log.fileno(), True)
    mark = {MARK: f"{os.getpid()}:{log.fileno()}"}
    child = os.posix_spawn(
        sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **mark}
    )
    for missed in early:
        os.kill(child, missed)
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        with suppress(OSError):  # the terminal may have gone
            if os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():  # not one begun with `&`
                restore()  # a child that was stopped by SIGSTOP could not
        os.kill(os.getpid(), signal.SIGSTOP)  # the shell waits for this process, not for the child
        os.kill(child, signal.SIGCONT)

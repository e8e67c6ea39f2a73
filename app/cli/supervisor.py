"""The parent process of the app. It restores the terminal if the app is killed, and restarts the
app if it lost the GPU.

Metal aborts a process whose commands fail, and the system kills the largest one when memory runs
out. Neither leaves the app time to restore the terminal. The app's first frame waits for this
process, so it imports little.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import NamedTuple

from app.cli.status import FAILED, RESTART

MARK = "SPECCHAT_PARENT"
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
REQUESTED = (*FORWARDED, signal.SIGINT)
"""Signals by which the user or the system ends the app; they are not crashes."""
MIN_SECONDS = 600.0
"""If the app loses the GPU sooner than this after a restart, it is not restarted again."""
LOST_AGAIN = (
    "The system stopped specchat's work on the GPU again, soon after a restart. Close other"
    " programs that use the GPU, or restart this machine, then start `specchat` again. Nothing you"
    " wrote is lost.\n"
)
# Undoes what Textual's driver switches on, in its order.
RESTORE = "".join(
    (
        "\x1b[?2026l",  # synchronised output
        "\x1b[?2004l\x1b[?7h\x1b[?2048l",  # pastes, line wrap, sizes
        "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l",  # the mouse
        "\x1b[<u",  # the kitty keyboard, before the screen is left
        "\x1b[?1049l\x1b[?25h\x1b[?1004l\x1b[0m",  # the screen, the cursor, the focus, colours
        "\x1b>",  # the keypad
    )
)
POP_TITLE = "\x1b[23;2t"


class Supervisor(NamedTuple):
    """The parent of this process."""

    pid: int
    log: int
    """The descriptor of a file for the libraries' standard error."""
    restarted: bool = False
    """Whether this process replaces one that had lost the GPU."""

    @property
    def alive(self) -> bool:
        return os.getppid() == self.pid


def current_supervisor(environment: Mapping[str, str] = os.environ) -> Supervisor | None:
    """The parent, or None in a process without one."""
    pid, *numbers = environment.get(MARK, "").split(":")
    if pid != str(os.getppid()):
        return None
    log, restarted = map(int, numbers)
    return Supervisor(int(pid), log, bool(restarted))


def supervise() -> int:
    """Run the same command in a child process, and again whenever it exits with RESTART. Return
    its exit status, or 128 + n after signal n."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def restore(more: str = "") -> None:
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
        _write(RESTORE + more)

    def is_changed() -> bool:
        with suppress(termios.error):
            return termios.tcgetattr(terminal) != before
        return False

    with open(_unnamed_file(), "r+b", buffering=0) as log:
        restarted_at: float | None = None
        while True:
            status = _run(log.fileno(), restore, restarted=restarted_at is not None)
            if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != RESTART:
                break
            now = time.monotonic()
            if restarted_at is not None and now - restarted_at < MIN_SECONDS:
                _write(LOST_AGAIN)
                return FAILED
            restarted_at = now
        if os.WIFEXITED(status):
            if is_changed():  # it could not wait for the terminal
                restore(POP_TITLE)
            return os.WEXITSTATUS(status)
        log.seek(0)
        stderr = log.read().decode(errors="replace")
    from app.cli.logs import Crash, last_stderr_line
    from app.paths import logs_path
    from app.util.sanitize import sanitize_line

    ended_by = signal.Signals(os.WTERMSIG(status))
    restore(POP_TITLE)
    if ended_by in REQUESTED:
        return 128 + ended_by
    crash = Crash(ended_by.name, last_stderr_line(stderr))
    path = crash.record(logs_path(), stderr)
    _write(f"{sanitize_line(crash.sentence)}\nStart `specchat` again to continue.\n")
    if path is not None:
        _write(f"Messages of the libraries were saved to {path}\n")
    return 128 + ended_by


def _unnamed_file() -> int:
    """The descriptor of a new file without a name. `tempfile` takes longer to import."""
    folder = os.environ.get("TMPDIR", "/tmp")
    name = os.path.join(folder, f"specchat-{os.getpid()}-{time.time_ns()}")
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.unlink(name)
    return descriptor


def _write(text: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        sys.stderr.write(text)
        sys.stderr.flush()


def _run(log: int, restore: Callable[[], None], restarted: bool) -> int:
    """Run the child; returns its status from `os.waitpid`. `restore` restores the terminal."""
    child = 0
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:  # the terminal sends it to both processes
            return
        if not child:
            early.append(number)
            return
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in REQUESTED:
        signal.signal(number, forward)
    os.set_inheritable(log, True)
    mark = {MARK: f"{os.getpid()}:{log}:{int(restarted)}"}
    child = os.posix_spawn(
        sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **mark}
    )
    for missed in early:
        os.kill(child, missed)
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        with suppress(OSError):  # the terminal may be gone
            if os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():  # not a background job
                restore()  # a child stopped by SIGSTOP could not do this
        os.kill(os.getpid(), signal.SIGSTOP)  # the shell waits for this process
        os.kill(child, signal.SIGCONT)

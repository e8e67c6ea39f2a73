"""The `specchat` command."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

REPEAT_SECONDS = 0.02


def main() -> int:
    sys.unraisablehook = _repeat_interrupt
    try:
        from app.cli.main import run
        from app.cli.terminal import guard_streams

        guard_streams()
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130  # INTERRUPTED in app/cli/status.py
    _exit_at_once_if_busy(status)
    return status


def _repeat_interrupt(unraisable: UnraisableHookArgs) -> None:
    """Ctrl-C again when Python dropped it, as it does inside `__del__` and weak references'
    callbacks (each import has one)."""
    if unraisable.exc_type is KeyboardInterrupt:
        main_thread = threading.main_thread().ident
        again = threading.Timer(REPEAT_SECONDS, signal.pthread_kill, (main_thread, signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


def _exit_at_once_if_busy(status: int) -> None:
    """Exit without cleanup while the engine thread is inside MLX (loading, or in a long step): it
    would abort the process at the interpreter's end. It has nothing to save."""
    if any(thread.name == "engine" and thread.is_alive() for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())

"""The `specchat` command."""

from __future__ import annotations

import os
import sys
import threading


def main() -> int:
    try:
        from app.cli.main import run
        from app.cli.streams import guard_streams

        guard_streams()
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130  # INTERRUPTED in app/cli/exit_codes.py
    _exit_at_once_if_busy(status)
    return status


def _exit_at_once_if_busy(status: int) -> None:
    """Exit without cleanup while the engine thread is inside MLX (loading, or in a long step): it
    would abort the process at the interpreter's end. It has nothing to save."""
    if any(thread.name == "engine" and thread.is_alive() for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())

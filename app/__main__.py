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
        status = 130  # what shells expect after Ctrl-C
    _leave_at_once_if_busy(status)
    return status


def _leave_at_once_if_busy(status: int) -> None:
    """An engine thread that is still inside MLX (loading, or in a long step) would abort the
    process when the interpreter ends under it. It holds nothing that must be saved."""
    if any(thread.name == "engine" and thread.is_alive() for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())

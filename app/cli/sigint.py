"""What Ctrl-C does while the engine works."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.cli.exit_codes import INTERRUPTED


@contextmanager
def cancel_on_sigint(cancel: Callable[[], object]) -> Iterator[None]:
    """Inside, Ctrl-C calls `cancel`, which must be safe in a signal handler, and pressed again ends
    the process."""

    def act(*_: object) -> None:
        cancel()
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))

    before = signal.signal(signal.SIGINT, act)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

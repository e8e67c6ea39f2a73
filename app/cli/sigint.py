"""Ctrl-C cancels, and a second one ends the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.cli.exit_codes import INTERRUPTED


@contextmanager
def cancel_on_sigint(cancel: Callable[[], object]) -> Iterator[None]:
    """Inside, Ctrl-C calls `cancel`, which must be safe in a signal handler; a second Ctrl-C ends
    the process."""

    def on_sigint(*_: object) -> None:
        cancel()
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))

    before = signal.signal(signal.SIGINT, on_sigint)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

"""Ends the app after SIGTERM, SIGHUP or SIGQUIT, also while its event loop is busy.

Handlers of the event loop wait until it is idle. While keys are queued, or the terminal takes no
output, it never is.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
GRACE_SECONDS = 3.0
SIGNAL_EXIT_BASE = 128  # and the signal's number: the exit status that shells expect


class EndingSignals:
    """Calls `quit` with the exit status when a signal arrives. If `is_saving` is not set soon
    after, calls `save` on a thread and ends the process; the parent process restores the
    terminal."""

    def __init__(
        self, quit: Callable[[int], None], save: Callable[[], None], is_saving: threading.Event
    ) -> None:
        self._quit, self._save, self._is_saving = quit, save, is_saving
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()  # safe in a signal handler
        self._before: dict[int, Any] = {}

    def start(self) -> None:
        """Call this on the main thread."""
        threading.Thread(target=self._wait, name="ending", daemon=True).start()
        for number in SIGNALS:
            self._before[number] = signal.signal(number, lambda got, _: self._received.put(got))

    def stop(self) -> None:
        """Handle signals as before. Call this on the main thread."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        self._received.put(0)

    def _wait(self) -> None:
        number = self._received.get()
        if not number:
            return
        status = SIGNAL_EXIT_BASE + number
        self._quit(status)
        if not self._is_saving.wait(GRACE_SECONDS):
            try:
                self._save()
            finally:
                os._exit(status)

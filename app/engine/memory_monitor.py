"""Reads memory once a second on a thread of its own, and before each step on the engine's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from app.engine.memory_probes import MemoryProbe
from app.engine.pressure_levels import Change, Ladder
from app.protocol.memory import PressureLevel

PERIOD = 1.0
SOONEST = 0.1
"""Seconds between two readings on the engine's thread at least: a token may take less."""


class Watch:
    """`changed` is called on the watch's own thread when another rung was reached; `take` hands the
    changes to the engine's thread, which acts."""

    def __init__(self, probe: MemoryProbe, changed: Callable[[], None] = lambda: None) -> None:
        self._probe, self._changed = probe, changed
        self._ladder = Ladder()
        self._lock = threading.Lock()
        self._changes: list[Change] = []
        self._read = float("-inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def rung(self) -> PressureLevel:
        return self._ladder.rung

    def take(self) -> list[Change]:
        """Read, unless that was done a moment ago, and return the changes nobody has seen yet."""
        self._look()
        with self._lock:
            changes, self._changes = self._changes, []
        return changes

    def _poll(self) -> None:
        while not self._over.wait(PERIOD):
            self._look()
            if self._changes:
                self._changed()

    def _look(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._read < SOONEST:
                return
            self._read = now
            with suppress(OSError, RuntimeError, ValueError):  # a probe that fails tells nothing
                change = self._ladder.take(now, self._probe.read())
                if change is not None:
                    self._changes.append(change)

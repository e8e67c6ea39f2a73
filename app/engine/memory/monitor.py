"""Samples memory once a second on its own thread, and before each step on the engine thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from app.engine.backend.memory_probes import MemoryProbe
from app.engine.memory.pressure_levels import LevelChange, PressureTracker
from app.protocol.memory import PressureLevel

SAMPLE_INTERVAL = 1.0
MIN_SAMPLE_INTERVAL = 0.1
"""Seconds between two samples on the engine thread: a token may take less."""


class MemoryMonitor:
    """`on_change` is called on the monitor's thread when the level changes; `take_changes` hands
    the changes to the engine thread."""

    def __init__(self, probe: MemoryProbe, on_change: Callable[[], None] = lambda: None) -> None:
        self._probe, self._on_change = probe, on_change
        self._tracker = PressureTracker()
        self._lock = threading.Lock()
        self._changes: list[LevelChange] = []
        self._sampled_at = float("-inf")
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def level(self) -> PressureLevel:
        return self._tracker.level

    def take_changes(self) -> list[LevelChange]:
        """Sample, unless that just happened, and return the changes since the last call."""
        self._sample()
        with self._lock:
            changes, self._changes = self._changes, []
        return changes

    def _run(self) -> None:
        while not self._closed.wait(SAMPLE_INTERVAL):
            self._sample()
            if self._changes:
                self._on_change()

    def _sample(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._sampled_at < MIN_SAMPLE_INTERVAL:
                return
            self._sampled_at = now
            with suppress(OSError, RuntimeError, ValueError):  # a probe that fails tells nothing
                change = self._tracker.update(now, self._probe.read())
                if change is not None:
                    self._changes.append(change)

"""Derives memory pressure levels from samples that a thread takes.

The level rises at once, to CRITICAL only if samples agree for half a second. It falls after samples
have been well below it for some seconds. It changes at most every `MIN_CHANGE_INTERVAL` seconds, so
that nothing is dropped and reloaded in quick succession.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from app.engine.backend.memory_probes import MemoryProbe, MemorySample, SystemPressure
from app.protocol.memory import PressureLevel

THRESHOLDS = {PressureLevel.WARN: 0.85, PressureLevel.TIGHT: 0.90, PressureLevel.CRITICAL: 0.95}
"""Shares of the memory ceiling at which each level starts."""
HYSTERESIS = 0.05
"""A level ends when the share is this far below its threshold."""
SYSTEM_LEVELS = {
    SystemPressure.NORMAL: PressureLevel.NORMAL,
    SystemPressure.WARN: PressureLevel.WARN,
    SystemPressure.CRITICAL: PressureLevel.CRITICAL,
}
SWAP_RATE_WARNING = 100e6
"""At this many bytes per second written to swap, the level is at least WARN."""
MIN_CHANGE_INTERVAL = 5.0
"""Minimum seconds between changes of the level."""
CRITICAL_AFTER = 0.5
"""Samples must be CRITICAL for this many seconds before the level is."""
RELAX_AFTER = 5.0
"""Samples must be lower for this many seconds before the level falls."""


@dataclass(frozen=True, slots=True)
class LevelChange:
    level: PressureLevel
    previous: PressureLevel
    sample: MemorySample


class PressureTracker:
    """Derives the level from samples in order of time."""

    def __init__(self) -> None:
        self.level = PressureLevel.NORMAL
        self._changed = float("-inf")
        self._critical_since: float | None = None
        self._lower_since: float | None = None

    def update(self, now: float, sample: MemorySample) -> LevelChange | None:
        """Add a sample; returns the change of the level, if any. `now`: seconds of any clock."""
        due, lowest = level_for(sample), level_for(sample, HYSTERESIS)
        self._critical_since = _since(self._critical_since, due is PressureLevel.CRITICAL, now)
        lower = lowest.severity < self.level.severity
        self._lower_since = _since(self._lower_since, lower, now)
        if now - self._changed < MIN_CHANGE_INTERVAL:
            return None
        if due.severity > self.level.severity:
            if due is PressureLevel.CRITICAL and not _lasts(
                self._critical_since, now, CRITICAL_AFTER
            ):
                return None  # a false alarm would stop an answer
            return self._change(now, due, sample)
        if lower and _lasts(self._lower_since, now, RELAX_AFTER):
            return self._change(now, lowest, sample)
        return None

    def _change(self, now: float, level: PressureLevel, sample: MemorySample) -> LevelChange:
        change = LevelChange(level, self.level, sample)
        self.level, self._changed, self._lower_since = level, now, None
        return change


def level_for(sample: MemorySample, margin: float = 0.0) -> PressureLevel:
    """The level of a single sample, with every threshold lowered by `margin`."""
    shared = [level for level, share in THRESHOLDS.items() if sample.share >= share - margin]
    swapping = PressureLevel.WARN if sample.swap_rate >= SWAP_RATE_WARNING else PressureLevel.NORMAL
    return max(
        PressureLevel.NORMAL,
        *shared,
        swapping,
        SYSTEM_LEVELS[sample.system],
        key=lambda level: level.severity,
    )


def _since(since: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if since is None else since


def _lasts(since: float | None, now: float, seconds: float) -> bool:
    return since is not None and now - since >= seconds


SAMPLE_INTERVAL = 1.0
MIN_SAMPLE_INTERVAL = 0.1
"""Minimum seconds between samples: the engine thread asks at every token."""


class MemoryMonitor:
    """Samples memory on a thread of its own. That thread calls `on_change` when the level changes;
    the engine thread then calls `take_changes`."""

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
        """Take a sample, unless one was just taken, and return the changes since the last call."""
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
            with suppress(OSError, RuntimeError, ValueError):  # ignore a failing probe
                change = self._tracker.update(now, self._probe.read())
                if change is not None:
                    self._changes.append(change)

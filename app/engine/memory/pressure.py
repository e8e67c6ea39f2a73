"""Memory pressure levels, from samples that a thread takes.

The level rises at once, but to CRITICAL only if samples half a second apart agree; it falls once
samples have stayed well below it for some seconds; and it changes at most every
`MIN_CHANGE_INTERVAL` seconds, so that nothing is dropped and loaded in turn.
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
"""Shares of the ceiling from which on each level applies."""
HYSTERESIS = 0.05
"""How far below its threshold a level is left."""
SYSTEM_LEVELS = {
    SystemPressure.NORMAL: PressureLevel.NORMAL,
    SystemPressure.WARN: PressureLevel.WARN,
    SystemPressure.CRITICAL: PressureLevel.CRITICAL,
}
SWAP_RATE_WARNING = 100e6
"""Bytes per second written to swap from which on the level is at least WARN."""
MIN_CHANGE_INTERVAL = 5.0
"""Seconds."""
CRITICAL_AFTER = 0.5
"""Seconds for which samples have to be CRITICAL."""
RELAX_AFTER = 5.0
"""Seconds for which samples have to be lower before the level falls."""


@dataclass(frozen=True, slots=True)
class LevelChange:
    level: PressureLevel
    previous: PressureLevel
    sample: MemorySample


class PressureTracker:
    """Takes samples in order of time, and tells when the level changes."""

    def __init__(self) -> None:
        self.level = PressureLevel.NORMAL
        self._changed = float("-inf")
        self._critical_since: float | None = None
        self._lower_since: float | None = None

    def update(self, now: float, sample: MemorySample) -> LevelChange | None:
        """`now` is in seconds of any clock."""
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
                return None  # a false alarm costs an answer, waiting half a second
            return self._change(now, due, sample)
        if lower and _lasts(self._lower_since, now, RELAX_AFTER):
            return self._change(now, lowest, sample)
        return None

    def _change(self, now: float, rung: PressureLevel, reading: MemorySample) -> LevelChange:
        change = LevelChange(rung, self.level, reading)
        self.level, self._changed, self._lower_since = rung, now, None
        return change


def level_for(sample: MemorySample, margin: float = 0.0) -> PressureLevel:
    """The level of one sample alone, with every threshold lowered by `margin`."""
    shared = [rung for rung, share in THRESHOLDS.items() if sample.share >= share - margin]
    swapping = PressureLevel.WARN if sample.swap_rate >= SWAP_RATE_WARNING else PressureLevel.NORMAL
    return max(
        PressureLevel.NORMAL,
        *shared,
        swapping,
        SYSTEM_LEVELS[sample.system],
        key=lambda rung: rung.severity,
    )


def _since(since: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if since is None else since


def _lasts(since: float | None, now: float, seconds: float) -> bool:
    return since is not None and now - since >= seconds


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

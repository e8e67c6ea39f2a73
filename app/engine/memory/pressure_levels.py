"""Memory pressure levels from memory samples. Pure: no clock, no MLX.

The level rises at once, but to CRITICAL only if samples half a second apart agree; it falls once
samples have stayed well below it for some seconds; and it changes at most every
`MIN_CHANGE_INTERVAL` seconds, so that nothing is dropped and loaded in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.backend.memory_probes import MemorySample, SystemPressure
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

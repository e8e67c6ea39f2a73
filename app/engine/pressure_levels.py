"""The ladder: from what a probe reads to how careful to be. Pure: no clock, no MLX.

It climbs at once, but to the top only when two readings half a second apart agree; it comes down
when readings have stayed well below a rung for some seconds; and it never changes more often than
every `GAP` seconds, so that nothing is dropped and fetched again in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.memory_probes import Level, MemoryReading
from app.protocol.memory import PressureLevel

SHARES = {PressureLevel.WARN: 0.85, PressureLevel.TIGHT: 0.90, PressureLevel.CRITICAL: 0.95}
"""Of the ceiling, from where on each rung is due."""
MARGIN = 0.05
"""How far below a rung's share it has to come before the rung is left."""
LEVELS = {
    Level.NORMAL: PressureLevel.NORMAL,
    Level.WARN: PressureLevel.WARN,
    Level.CRITICAL: PressureLevel.CRITICAL,
}
SWAPPING = 100e6
"""Bytes a second going to swap from which on it is WARN in any case."""
GAP = 5.0
"""Seconds between two changes at least."""
CONFIRMED = 0.5
"""Seconds for which readings have to say CRITICAL."""
SETTLED = 5.0
"""Seconds for which readings have to be lower before the ladder comes down."""


@dataclass(frozen=True, slots=True)
class Change:
    rung: PressureLevel
    was: PressureLevel
    reading: MemoryReading


class Ladder:
    """Fed with readings in the order of time; says when the rung changes."""

    def __init__(self) -> None:
        self.rung = PressureLevel.NORMAL
        self._changed = float("-inf")
        self._critical_since: float | None = None
        self._lower_since: float | None = None

    def take(self, now: float, reading: MemoryReading) -> Change | None:
        """Take in a reading made at `now`, in seconds of any clock."""
        due, lowest = rung_for(reading), rung_for(reading, MARGIN)
        self._critical_since = _since(self._critical_since, due is PressureLevel.CRITICAL, now)
        lower = lowest.severity < self.rung.severity
        self._lower_since = _since(self._lower_since, lower, now)
        if now - self._changed < GAP:
            return None
        if due.severity > self.rung.severity:
            if due is PressureLevel.CRITICAL and not _lasts(self._critical_since, now, CONFIRMED):
                return None  # one that is wrong costs an answer, one that waits half a second
            return self._change(now, due, reading)
        if lower and _lasts(self._lower_since, now, SETTLED):
            return self._change(now, lowest, reading)
        return None

    def _change(self, now: float, rung: PressureLevel, reading: MemoryReading) -> Change:
        change = Change(rung, self.rung, reading)
        self.rung, self._changed, self._lower_since = rung, now, None
        return change


def rung_for(reading: MemoryReading, margin: float = 0.0) -> PressureLevel:
    """The rung that one reading alone asks for, with every share lowered by `margin`."""
    shared = [rung for rung, share in SHARES.items() if reading.share >= share - margin]
    swapping = PressureLevel.WARN if reading.swapping >= SWAPPING else PressureLevel.NORMAL
    return max(
        PressureLevel.NORMAL,
        *shared,
        swapping,
        LEVELS[reading.level],
        key=lambda rung: rung.severity,
    )


def _since(since: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if since is None else since


def _lasts(since: float | None, now: float, seconds: float) -> bool:
    return since is not None and now - since >= seconds

"""A probe that reads what a test says."""

from __future__ import annotations

from app.engine.backend.memory_probes import MemorySample, SystemPressure

GB = 1_000_000_000


def reading(
    share: float = 0.3, level: SystemPressure = SystemPressure.NORMAL, swapping: float = 0.0
) -> MemorySample:
    """`share` of a ceiling of 10 GB is used."""
    return MemorySample(level, int(share * 10 * GB), 10 * GB, swapping)


class ScriptedProbe:
    """Reads `now`, which a test may change at any time."""

    def __init__(self, now: MemorySample | None = None) -> None:
        self.now = now or reading()
        self.asked = 0

    def read(self) -> MemorySample:
        self.asked += 1
        return self.now

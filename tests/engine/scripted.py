"""A probe that reads what a test says."""

from __future__ import annotations

from app.engine.memory_probes import Level, MemoryReading

GB = 1_000_000_000


def reading(
    share: float = 0.3, level: Level = Level.NORMAL, swapping: float = 0.0
) -> MemoryReading:
    """`share` of a ceiling of 10 GB is used."""
    return MemoryReading(level, int(share * 10 * GB), 10 * GB, swapping)


class ScriptedProbe:
    """Reads `now`, which a test may change at any time."""

    def __init__(self, now: MemoryReading | None = None) -> None:
        self.now = now or reading()
        self.asked = 0

    def read(self) -> MemoryReading:
        self.asked += 1
        return self.now

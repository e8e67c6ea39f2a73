"""Memory use and memory pressure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

GIB = 1 << 30


def format_bytes(count: float) -> str:
    """Format bytes of memory, in binary gigabytes, as memory is sold."""
    if count < 0.95 * GIB:
        return f"{count / (1 << 20):,.0f} MB"
    return f"{count / GIB:,.1f}".removesuffix(".0") + " GB"


class PressureLevel(StrEnum):
    """Level of memory pressure, in ascending order."""

    NORMAL = "calm"
    WARN = "warn"
    """Idle caches are dropped, and prefill steps are halved."""
    TIGHT = "tight"
    """The draft is unloaded."""
    CRITICAL = "critical"
    """The turn stops at the next step boundary."""

    @property
    def severity(self) -> int:
        return tuple(PressureLevel).index(self)


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Memory in bytes: the machine's total and available memory, this process, MLX's active,
    cached and peak memory, and the upper limit for MLX on this machine (`ceiling`)."""

    total: int
    available: int
    process: int
    active: int
    cached: int
    peak: int
    ceiling: int

    @property
    def used(self) -> int:
        """Bytes of `ceiling` in use: weights, caches, and buffers that MLX keeps for reuse."""
        return self.active + self.cached

"""Memory: its use, and how tight it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

GIB = 1 << 30


def format_bytes(count: float) -> str:
    """An amount of memory in binary gigabytes, as memory is sold."""
    if count < 0.95 * GIB:
        return f"{count / (1 << 20):,.0f} MB"
    return f"{count / GIB:,.1f}".removesuffix(".0") + " GB"


class PressureLevel(StrEnum):
    """How tight memory is, in ascending order."""

    NORMAL = "calm"
    WARN = "warn"
    """Idle caches are dropped, and prefill steps halved."""
    TIGHT = "tight"
    """The draft is unloaded."""
    CRITICAL = "critical"
    """The turn stops at the next step boundary."""

    @property
    def severity(self) -> int:
        return tuple(PressureLevel).index(self)


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes: the machine's total and available memory, this process, MLX active, cached, peak,
    and the most MLX should take here."""

    total: int
    available: int
    process: int
    active: int
    cached: int
    peak: int
    ceiling: int

    @property
    def used(self) -> int:
        """What models take of `ceiling`: weights, caches, and buffers for reuse."""
        return self.active + self.cached

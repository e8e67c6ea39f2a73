"""What is free, and what a plan will cost. Bytes throughout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import psutil
from mlx_lm.models.cache import RotatingKVCache

from app.engine.caches import Cache
from app.engine.messages import MemoryFigures

SHARE = 0.85
"""Of the machine's memory, what MLX may take where the device names no limit of its own."""

SPARE = 1 / 16
"""Of the ceiling, what may lie idle in MLX's buffer cache between two steps."""


class NotEnoughMemory(RuntimeError):
    """One sentence that says how much a plan needs and how much there is."""


def figures() -> MemoryFigures:
    """The machine's and MLX's memory now."""
    system = psutil.virtual_memory()
    return MemoryFigures(
        total=system.total,
        available=system.available,
        process=psutil.Process().memory_info().rss,
        active=mx.get_active_memory(),
        cached=mx.get_cache_memory(),
        peak=mx.get_peak_memory(),
        ceiling=ceiling(),
    )


def ceiling() -> int:
    """The most that MLX should take on this machine."""
    recommended = mx.device_info().get("max_recommended_working_set_size")
    return int(recommended) if recommended else int(psutil.virtual_memory().total * SHARE)


def release_spare() -> None:
    """Give buffers that MLX holds for reuse back to the system, once they are many.

    Doing it after every step would make the next step fetch the same memory again, page by page.
    """
    if mx.get_cache_memory() > ceiling() * SPARE:
        mx.clear_cache()


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What a model's cache takes: `growing` bytes for every token, `window` at most besides."""

    growing: float
    window: float

    @classmethod
    def of(cls, cache: Cache) -> CacheSize:
        """Read off a model's own cache in use. Rows are counted, since buffers are longer than what
        they hold."""
        flat = [part for c in cache for part in getattr(c, "caches", (c,))]
        windowed = [c for c in flat if isinstance(c, RotatingKVCache)]
        return cls(
            growing=sum(_row_bytes(c) for c in flat if c not in windowed),
            window=sum(_row_bytes(c) * c.max_size for c in windowed),
        )

    def bytes(self, tokens: int) -> float:
        """For a prompt of that many tokens."""
        return self.growing * tokens + self.window


def _row_bytes(cache: Any) -> float:
    arrays = (getattr(cache, "keys", None), getattr(cache, "values", None))
    return sum(a.nbytes / a.shape[-2] for a in arrays if isinstance(a, mx.array))


def check_fits(what: str, needed: float) -> None:
    """Raise NotEnoughMemory unless `needed` more bytes are to be had."""
    now = figures()
    free = min(now.available + now.cached, now.ceiling - now.active)
    if needed > free:
        raise NotEnoughMemory(
            f"{what} needs about {gigabytes(needed)}, and {gigabytes(max(free, 0))} is free"
        )


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def is_exhausted(error: BaseException) -> bool:
    """Whether this is MLX or Python saying that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "malloc" in text or "out of memory" in text

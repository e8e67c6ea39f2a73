"""What is free, and what a plan will cost. Bytes throughout."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import psutil

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


def bytes_per_token(cache: Cache) -> float:
    """What one more token costs, from the shapes of a cache in use.

    Counts the layers that grow: a buffer's rows are read from its shape, since buffers are longer
    than what they hold.
    """
    return sum(_row_bytes(c) for c in cache)


def _row_bytes(cache: Any) -> float:
    parts = getattr(cache, "caches", None)
    if parts is not None:
        return sum(_row_bytes(c) for c in parts)
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

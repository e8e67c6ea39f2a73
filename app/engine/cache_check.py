"""Whether a cache holds what is noted of it.

What a model was fed and what is noted as read are two things: a step that fails has changed some
layers already. A cache on which the two differ would answer for other tokens than those asked for,
and nothing would show it. So they are compared wherever a cache is used again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache
from numpy.typing import NDArray

from app.engine.caches import PositionedCache, WindowedCache, flatten
from app.engine.prefix_cache import PrefixCache

Runs = list[tuple[int, int]]
"""Positions as runs `(start, end)`, ascending, with a gap between any two."""


def find_mismatch(held: PrefixCache) -> str | None:
    """How what the layers hold differs from what is noted, as a clause; None where it does not."""
    noted, every = _runs_of(held.cached), flatten(held.cache)
    # Some models make a cache for a layer that shares another one's, and never use it.
    used = [(number, cache) for number, cache in enumerate(every) if not _is_unused(cache)]
    if not used:
        return f"it is empty, and should hold {len(held):,} tokens" if noted else None
    for number, cache in used:
        if (found := _layer_mismatch(cache, held, noted)) is not None:
            return f"layer {number} {found}"
    return None


def _layer_mismatch(cache: Any, held: PrefixCache, noted: Runs) -> str | None:
    if isinstance(cache, PositionedCache):
        return _positioned_mismatch(cache, noted)
    if isinstance(cache, ArraysCache):
        return None if held.has_recorded_states(cache) else "has seen more or less than was noted"
    if isinstance(offset := getattr(cache, "offset", None), int):
        if offset != len(held):
            return f"holds {offset:,} tokens instead of {len(held):,}"
        if not held.cached.all():
            return "cannot hold tokens with gaps between them"
    return None


def _positioned_mismatch(cache: PositionedCache, noted: Runs) -> str | None:
    stored, size = _merged(cache.positions.runs), cache.size()
    if sum(end - start for start, end in stored) != size or _rows(cache.inner.keys) < size:
        return f"holds {size:,} entries, at other positions than it says"
    since = cache.evicted_below if isinstance(cache, WindowedCache) else 0
    if _from(stored, since) != _from(noted, since):
        return f"holds other positions than the {sum(e - s for s, e in noted):,} that were read"
    return None


def _is_unused(cache: Any) -> bool:
    if isinstance(cache, PositionedCache):
        return cache.size() == 0 and not cache.positions.runs
    if isinstance(cache, ArraysCache):
        return all(state is None for state in cache.cache)
    return getattr(cache, "offset", None) == 0


def _rows(keys: Any) -> int:
    """How many entries there is memory for."""
    leaves: Any = tree_flatten(keys)
    return min((array.shape[-2] for _, array in leaves if array is not None), default=0)


def _runs_of(read: NDArray[np.bool_]) -> Runs:
    edges = np.flatnonzero(np.diff(read, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _merged(runs: Iterable[tuple[int, int]]) -> Runs:
    merged: Runs = []
    for start, end in sorted(runs):
        if merged and merged[-1][1] == start:
            start = merged.pop()[0]
        merged.append((start, end))
    return merged


def _from(runs: Runs, position: int) -> Runs:
    """What of them is at `position` or after it."""
    return [(max(start, position), end) for start, end in runs if end > position]

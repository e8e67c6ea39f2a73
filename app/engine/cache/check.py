"""Checks that a cache holds the tokens recorded for it.

The tokens fed to a model and the tokens recorded as cached can differ: a step that fails has
changed some layers already. Such a cache would answer for other tokens than those in the prompt,
and nothing would show it. So the two are compared wherever a cache is used again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mlx_lm.models.cache import ArraysCache

from app.engine.cache.caches import PositionedCache, WindowedCache, flatten, stores_rows
from app.engine.cache.growth import capacity
from app.engine.cache.positions import Positions
from app.engine.cache.prefix_cache import PrefixCache


def find_mismatch(prefix: PrefixCache) -> str | None:
    """How the layers' contents differ from the recorded tokens, as a clause; None if they agree."""
    recorded = np.flatnonzero(prefix.cached).astype(np.int32)
    # Some models make a cache for a layer that shares another one's, and never use it.
    used = [(n, cache) for n, cache in enumerate(flatten(prefix.cache)) if not _is_unused(cache)]
    if not used:
        return f"it is empty, and should hold {len(prefix):,} tokens" if len(recorded) else None
    for number, cache in used:
        if (problem := _layer_mismatch(cache, prefix, recorded)) is not None:
            return f"layer {number} {problem}"
    return None


def _layer_mismatch(cache: Any, prefix: PrefixCache, recorded: Positions) -> str | None:
    if isinstance(cache, PositionedCache):
        absent = np.count_nonzero(prefix.absent) if stores_rows(cache) else 0
        return _positioned_mismatch(cache, recorded, int(absent))
    if isinstance(cache, ArraysCache):
        return None if prefix.has_recorded_states(cache) else "has read more or less than recorded"
    if isinstance(offset := getattr(cache, "offset", None), int):
        if offset != len(prefix):
            return f"holds {offset:,} tokens instead of {len(prefix):,}"
        if not prefix.cached.all():
            return "cannot hold tokens with gaps between them"
    return None


def _positioned_mismatch(cache: PositionedCache, recorded: Positions, absent: int) -> str | None:
    stored, size = cache.positions.array(), cache.size()
    if len(stored) != size or capacity(cache.inner) < size - absent:
        return f"holds {size:,} entries, at other positions than it says"
    if not cache.positions.ascending:
        stored = np.sort(stored)
    first = cache.evicted_below if isinstance(cache, WindowedCache) else 0
    stored, expected = (a[np.searchsorted(a, first) :] for a in (stored, recorded))
    if not np.array_equal(stored, expected):
        return f"holds other positions than the {len(recorded):,} that were read"
    return None


def _is_unused(cache: Any) -> bool:
    if isinstance(cache, PositionedCache):
        return cache.size() == 0 and not cache.positions.runs
    if isinstance(cache, ArraysCache):
        return all(state is None for state in cache.cache)
    return getattr(cache, "offset", None) == 0

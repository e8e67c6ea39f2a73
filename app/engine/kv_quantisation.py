"""Keys and values in 8 or 4 bits, where a model's attention can work with them.

Layers that see everything are quantised, in groups along each head's width, as mlx-lm does it.
Windows and recurrent states stay as they are: they do not grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache

from app.engine.caches import Cache, flatten
from app.engine.prefill import forward, make_stock_cache

BITS = (8, 4)
GROUP_SIZES = (64, 32)
"""Numbers that share a scale; the widest that divides a head."""
PROBE_TOKENS = 12
MAX_ERROR = 0.2
"""Of the logits' size, what 8 bits may change in them. A model that takes the packed numbers for
something else is wrong by its whole size."""


class NotQuantisable(ValueError):
    """Why a model's cache cannot be quantised; a clause."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """`group` numbers share a scale of `bits` bits each."""

    bits: int
    group_size: int


def find_quantisation(model: Any, bits: int) -> Quantisation:
    """How this model's cache is quantised; tried on a few tokens. Raises NotQuantisable."""
    if bits not in BITS:
        raise NotQuantisable(f"{bits} bits are none of 8 and 4")
    found = Quantisation(bits, _group_size(model))
    _check_error(model, Quantisation(max(BITS), found.group_size))
    return found


def _group_size(model: Any) -> int:
    cache = make_stock_cache(model)
    mx.eval(forward(model, cache, np.zeros(1, np.int32)))
    grown = [c for c in flatten(cache) if type(c) is KVCache]
    if not grown:
        raise NotQuantisable("none of its layers keeps everything")
    widths = {int(array.shape[-1]) for c in grown for array in (c.keys, c.values)}
    for size in GROUP_SIZES:
        if all(width % size == 0 for width in widths):
            return size
    raise NotQuantisable(
        f"its heads are {min(widths)} wide, and {GROUP_SIZES[-1]} numbers have to share a scale"
    )


def quantise_cache(cache: Cache, how: Quantisation) -> Cache:
    """The empty stock `cache` with its growing layers quantised."""
    return [_quantise_layer(c, how) for c in cache]


def _quantise_layer(cache: Any, how: Quantisation) -> Any:
    if type(cache) is KVCache:
        return QuantizedKVCache(how.group_size, how.bits)
    if type(cache) is CacheList:
        return CacheList(*(_quantise_layer(c, how) for c in cache.caches))
    return cache


def _check_error(model: Any, how: Quantisation) -> None:
    """On a few tokens. What goes wrong with 8 bits goes wrong with any number."""
    ids = (np.arange(PROBE_TOKENS) * 5 + 1).astype(np.int32)
    expected = forward(model, make_stock_cache(model), ids).astype(mx.float32)
    try:
        found = forward(model, quantise_cache(make_stock_cache(model), how), ids).astype(mx.float32)
        error = float(np.array(mx.linalg.norm(found - expected) / mx.linalg.norm(expected)))
    except (ValueError, TypeError, AttributeError, IndexError, RuntimeError) as problem:
        reason = " ".join(str(problem).split())[:120].rstrip(".")
        raise NotQuantisable(f"its attention cannot work with that ({reason})") from problem
    if not error <= MAX_ERROR:  # also when it is no number
        raise NotQuantisable(f"already 8 bits change its answers by {error:.0%}")

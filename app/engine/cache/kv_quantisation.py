"""Keys and values in 8 or 4 bits.

Full-attention layers are quantised, in groups along each head's width, as mlx-lm does it. Windows
and recurrent states stay as they are: they do not grow. Attention that takes packed numbers gets
them; other attention gets one layer's keys and values dequantised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache

from app.engine.backend.memory import reraise_device_failure
from app.engine.cache.caches import Cache, DequantisedCache, flatten
from app.engine.cache.positions import PositionRuns
from app.engine.cache.prefill import forward, make_stock_cache
from app.estimate.memory import KV_GROUP_SIZES

BITS = (8, 4)
PROBE_TOKENS = 12
MAX_ERROR = 0.2
"""Relative error of the logits that 8 bits may cause. In a model that misreads the packed numbers
it is near 1."""


class NotQuantisable(ValueError):
    """Why a model's cache cannot be quantised; a clause."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    bits: int
    group_size: int
    packed: bool = True
    """Whether the model's attention takes packed numbers."""


def find_quantisation(model: Any, bits: int) -> Quantisation:
    """How to quantise this model's cache; tried on a few tokens. Raises NotQuantisable."""
    group_size = find_group_size(model, bits)
    try:
        _check_error(model, Quantisation(max(BITS), group_size))
    except NotQuantisable:
        _check_error(model, Quantisation(max(BITS), group_size, packed=False))
        return Quantisation(bits, group_size, packed=False)
    return Quantisation(bits, group_size)


def find_group_size(model: Any, bits: int) -> int:
    """How many numbers share a scale, from the shapes alone: no weights are read. Raises
    NotQuantisable."""
    if bits not in BITS:
        raise NotQuantisable(f"{bits} bits are not supported, only 8 and 4")
    cache = make_stock_cache(model)
    forward(model, cache, np.zeros(1, np.int32))  # never evaluated
    growing = [c for c in flatten(cache) if type(c) is KVCache and not c.empty()]
    if not growing:
        raise NotQuantisable("it has no full-attention layers")
    widths = {int(array.shape[-1]) for c in growing for array in (c.keys, c.values)}
    for size in KV_GROUP_SIZES:
        if all(width % size == 0 for width in widths):
            return size
    raise NotQuantisable(
        f"its heads are {min(widths)} wide, and {KV_GROUP_SIZES[-1]} numbers have to share a scale"
    )


def quantise_cache(cache: Cache, quantisation: Quantisation) -> Cache:
    """The empty stock `cache` with its growing layers quantised."""
    start = PositionRuns()
    return [_quantise_layer(c, quantisation, start) for c in cache]


def _quantise_layer(cache: Any, quantisation: Quantisation, start: PositionRuns) -> Any:
    if type(cache) is KVCache:
        stock = QuantizedKVCache(quantisation.group_size, quantisation.bits)
        return stock if quantisation.packed else DequantisedCache(stock, start)
    if type(cache) is CacheList:
        return CacheList(*(_quantise_layer(c, quantisation, start) for c in cache.caches))
    return cache


def _check_error(model: Any, quantisation: Quantisation) -> None:
    """What fails with 8 bits fails with any number of bits."""
    ids = (np.arange(PROBE_TOKENS) * 5 + 1).astype(np.int32)
    expected = forward(model, make_stock_cache(model), ids).astype(mx.float32)
    try:
        cache = quantise_cache(make_stock_cache(model), quantisation)
        found = forward(model, cache, ids).astype(mx.float32)
        error = float(np.array(mx.linalg.norm(found - expected) / mx.linalg.norm(expected)))
    except (ValueError, TypeError, AttributeError, IndexError, RuntimeError) as problem:
        reraise_device_failure(problem)
        reason = " ".join(str(problem).split())[:120].rstrip(".")
        raise NotQuantisable(f"its attention does not support it ({reason})") from problem
    if not error <= MAX_ERROR:  # also when it is not a number
        raise NotQuantisable(f"8 bits already change its answers by {error:.0%}")

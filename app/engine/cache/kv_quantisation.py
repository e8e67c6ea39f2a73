"""Quantises the KV cache to 8 or 4 bits.

Full-attention layers are quantised in groups along the head dimension, as in mlx-lm. Sliding
windows and recurrent states are not: they do not grow. Attention that cannot read packed values
gets each layer's keys and values dequantised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache

from app.engine.backend.memory import reraise_device_failure
from app.engine.cache.caches import Cache, DequantisedCache, flatten
from app.engine.cache.positions import PositionRuns
from app.engine.cache.prefill import forward, make_stock_cache
from app.estimate.memory import KV_GROUP_SIZES

PROBE_TOKENS = 12
MAX_ERRORS = {8: 0.2, 4: 0.4}
"""Maximum relative error of the logits by bits. It is near 1 if a model misreads packed values, or
if its keys are too large for 4 bits, as those of Qwen2.5 (docs/real-models.md)."""


class NotQuantisable(ValueError):
    """Why a model's cache cannot be quantised, as a clause."""


class TooFewBits(NotQuantisable):
    """The logits change too much."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    bits: int
    group_size: int
    packed: bool = True
    """Whether the model's attention reads packed values."""


def find_quantisation(model: Any, bits: int) -> Quantisation:
    """How to quantise this model's cache, tested on a few tokens. Raises NotQuantisable."""
    packed = Quantisation(bits, find_group_size(model, bits))
    try:
        _check_error(model, packed)
    except NotQuantisable:
        unpacked = replace(packed, packed=False)
        _check_error(model, unpacked)
        return unpacked
    return packed


def find_group_size(model: Any, bits: int) -> int:
    """How many values share a scale. Uses only shapes and reads no weights. Raises
    NotQuantisable."""
    if bits not in MAX_ERRORS:
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
    """Replace the full-attention layers of an empty stock cache by quantised ones."""
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
    """Raise NotQuantisable if attention fails or the logits change too much."""
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
    if not error <= MAX_ERRORS[quantisation.bits]:  # also true for NaN
        raise TooFewBits("its answers would be very different")

"""Heads of zeros, so that a model's attention can be divided by the number of ranks.

mlx-lm gives each rank the same number of heads. SmolLM2 has 3 heads of keys, each for 3 heads of
queries, and two ranks cannot divide them. With a fourth group whose weights are all zero each gets
two, and nothing changes: the values of the added heads are zero, and so is what they add.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedLinear

COUNTS = (
    ("n_heads", "n_kv_heads"),
    ("num_attention_heads", "num_key_value_heads"),
    ("num_heads", "num_kv_heads"),
    ("num_heads", "num_key_value_heads"),
)
"""What mlx-lm's attention layers call their heads of queries, and of keys and values."""


class Indivisible(ValueError):
    """A model's heads cannot be divided: a clause."""


def pad_heads(model: Any, ranks: int) -> None:
    """Add heads of zeros to each layer that needs them. Raises Indivisible."""
    for layer in model.layers:
        if (attention := getattr(layer, "self_attn", None)) is not None:
            _pad_layer(attention, ranks)


def _pad_layer(attention: Any, ranks: int) -> None:
    names = next((pair for pair in COUNTS if all(hasattr(attention, n) for n in pair)), None)
    if names is None:
        heads = int(getattr(attention, "num_heads", ranks))
        if heads % ranks:
            raise Indivisible(f"it has {heads} heads")
        return
    queries, keys = (int(getattr(attention, name)) for name in names)
    if keys % ranks == 0:
        return
    parts = [getattr(attention, f"{name}_proj", None) for name in "qkvo"]
    if any(not isinstance(part, Linear | QuantizedLinear) for part in parts):
        raise Indivisible(f"it has {keys} heads of keys")
    added = -keys % ranks
    more = added * queries // keys
    q, k, v, o = (part for part in parts if part is not None)
    norm: Any = getattr(attention, "q_norm", None)
    if norm is not None and norm.weight.shape[0] != q.weight.shape[0] // queries:
        raise Indivisible("it normalises all of its heads together")
    _pad_rows(q, queries, more)
    _pad_rows(k, keys, added)
    _pad_rows(v, keys, added)
    _pad_columns(o, queries, more)
    if (sinks := getattr(attention, "sinks", None)) is not None:
        attention.sinks = mx.pad(sinks, (0, more))
    setattr(attention, names[0], queries + more)
    setattr(attention, names[1], keys + added)


def _pad_rows(linear: Any, heads: int, more: int) -> None:
    """Outputs (heads, width) get `more` heads."""
    for name in ("weight", "scales", "biases", "bias"):
        if (array := linear.get(name)) is not None:
            rows = array.shape[0] // heads * more
            setattr(linear, name, mx.pad(array, [(0, rows)] + [(0, 0)] * (array.ndim - 1)))


def _pad_columns(linear: Any, heads: int, more: int) -> None:
    """Inputs (heads, width) get `more` heads."""
    for name in ("weight", "scales", "biases"):
        if (array := linear.get(name)) is not None:
            if array.shape[1] % heads:
                raise Indivisible("groups of its quantised weights span heads")
            setattr(linear, name, mx.pad(array, [(0, 0), (0, array.shape[1] // heads * more)]))

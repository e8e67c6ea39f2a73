"""The rotary embeddings of a model that mlx-lm has built, corrected where they differ from what
its configuration says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module
from mlx.nn.layers.positional_encoding import RoPE
from numpy.typing import NDArray

from app.util.model_config import (
    Config,
    Parameters,
    has_rope_parameters,
    layer_parameters,
    rope_type,
    rotated_numbers,
    text_part,
)

Floats = NDArray[np.float64]

ROTARY_FORMAT = 3
"""Raised whenever models are computed otherwise than before, so that older caches are not used."""
_ROTARY = re.compile("RoPE|Rotary")
"""In the names of classes of rotary embeddings."""
_CHECKED = (1, 1_000)
"""Positions at which two rotations are compared."""
_CLOSE = 0.02
"""Largest difference of sines and cosines between equal rotations, computed in float32."""
_DYNAMIC = "DynamicNTKScalingRoPE"
"""A class of mlx-lm whose base depends on the number of tokens that are read at a time."""
_CORRECTED = ("YarnRoPE", "DeepseekV2YarnRotaryEmbedding", _DYNAMIC)
"""This one, and classes that drop keys (`truncate`, `attention_factor`)."""


class FixedRoPE(Module):
    """Rotary embeddings with these wavelengths, in tokens divided by 2 pi: (dims / 2,). `mscale`
    multiplies the rotated part of queries and keys."""

    def __init__(self, wavelengths: Floats, mscale: float, traditional: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._freqs = mx.array(wavelengths.astype(np.float32))
        self.dims = 2 * len(wavelengths)
        self.mscale = mscale
        self.traditional = traditional

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        if self.mscale != 1.0:
            x = x.at[..., : self.dims].multiply(self.mscale)
        return mx.fast.rope(
            x,
            self.dims,
            traditional=self.traditional,
            base=None,
            scale=1.0,
            offset=offset,
            freqs=self._freqs,
        )


def correct_rotary(model: Any, config: Config) -> None:
    """Replace the rotary embeddings of `model` that differ from its configuration. Raises KeyError
    and ValueError if the configuration lacks a parameter, or names an unknown type."""
    text = text_part(config)
    context = int(text.get("max_position_embeddings") or 0)
    has_parameters, modules = has_rope_parameters(text), [*rotary_modules(model)]
    is_ignored = _ignores_scaling([each for *_, each in modules])
    for layer, owner, name, rope in modules:
        parameters = layer_parameters(text, layer)
        kind, dims = type(rope).__name__, rotated_numbers(text, parameters) or _dims(rope)
        if isinstance(rope, RoPE):
            parameters.setdefault("rope_theta", rope.base)
        elif "rope_theta" not in parameters:
            continue
        if not has_parameters:
            # The classes read the older keys, and know which layers have a base of their own.
            if isinstance(rope, RoPE) and dims < rope.dims:
                parameters["rope_theta"] = rope.base
            elif kind not in _CORRECTED and not is_ignored:
                continue
        wavelengths, scale = rotation(parameters, dims, context)
        traditional = _is_traditional(rope)
        if (
            kind == _DYNAMIC
            or dims != _dims(rope)
            or not _is_equal(rope, wavelengths, scale, traditional)
        ):
            owner[name] = FixedRoPE(wavelengths, scale, traditional)


def _ignores_scaling(ropes: Sequence[Any]) -> bool:
    """Whether no layer was scaled, and all have the same base: if the configuration has scaling,
    the class ignores it. Others scale only the layers with full attention."""
    return all(isinstance(rope, RoPE) and rope.scale == 1.0 for rope in ropes) and (
        len({rope.base for rope in ropes}) == 1
    )


def rotary_modules(model: Any) -> Iterator[tuple[int, Any, str, Any]]:
    """Number of a layer, a module in it, and the name of its rotary embeddings and those."""
    for number, layer in enumerate(model.layers):
        for _, owner in layer.named_modules():
            for name, child in list(owner.items()):
                if isinstance(child, Module) and _ROTARY.search(type(child).__name__):
                    yield number, owner, name, child


def rotation(parameters: Parameters, dims: int, context: int) -> tuple[Floats, float]:
    """The wavelengths of `dims` rotated numbers, in tokens divided by 2 pi: (dims / 2,); and the
    scale of queries and keys. The formulas are those of transformers 5
    (`modeling_rope_utils.py`). `context`: maximum length. Raises KeyError if a parameter is
    missing, and ValueError for an unknown type."""
    kind, base = rope_type(parameters), float(parameters["rope_theta"])
    plain = base ** (np.arange(0, dims, 2) / dims)
    match kind:
        case "default" | "mrope":
            return plain, 1.0
        case "linear":
            return plain * parameters["factor"], 1.0
        case "dynamic":
            # Its base grows with the text beyond the context, where nothing is read.
            base *= parameters.get("alpha", 1.0) ** (dims / (dims - 2))
            return base ** (np.arange(0, dims, 2) / dims), 1.0
        case "proportional":
            rotated = int(parameters.get("partial_rotary_factor", 1.0) * dims // 2)
            plain[rotated:] = np.inf
            return plain * parameters.get("factor", 1.0), 1.0
        case "llama3":
            return _llama3(parameters, plain), 1.0
        case "yarn" | "deepseek_yarn" | "telechat3-yarn":
            return _yarn(parameters, plain, context)
        case "longrope" | "su":
            return _longrope(parameters, plain, context)
    raise ValueError(f"Its rotary embeddings are of the type {kind!r}, which is unknown")


def _llama3(parameters: Parameters, plain: Floats) -> Floats:
    factor, low = parameters["factor"], parameters["low_freq_factor"]
    turns = parameters["original_max_position_embeddings"] / (2 * np.pi * plain)
    smooth = np.clip((turns - low) / (parameters["high_freq_factor"] - low), 0, 1)
    slowed: Floats = 1 / ((1 - smooth) / (factor * plain) + smooth / plain)
    return slowed


def _yarn(parameters: Parameters, plain: Floats, context: int) -> tuple[Floats, float]:
    original = parameters["original_max_position_embeddings"]
    factor = parameters.get("factor") or context / original
    dims, base = 2 * len(plain), float(parameters["rope_theta"])

    def dimension(turns: float) -> float:
        """The number of the dimension that turns so often within the original length."""
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = dimension(parameters.get("beta_fast") or 32)
    high = dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    high += 0.001 if low == high else 0.0
    slow = np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
    return 1 / (slow / (factor * plain) + (1 - slow) / plain), _yarn_scale(parameters, factor)


def _yarn_scale(parameters: Parameters, factor: float) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if (given := parameters.get("attention_factor")) is not None:
        return float(given)
    one, all_dims = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return scale(one) / scale(all_dims) if one and all_dims else scale(1.0)


def _longrope(parameters: Parameters, plain: Floats, context: int) -> tuple[Floats, float]:
    """The long factors, whatever the length of a text: a cache cannot change from the short ones
    to them while a conversation grows."""
    original = parameters["original_max_position_embeddings"]
    factor = parameters.get("factor") or context / original
    scale = parameters.get("attention_factor") or parameters.get("long_mscale")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return plain * np.array(parameters["long_factor"], float), float(scale)


def _dims(rope: Any) -> int:
    """How many numbers of a head `rope` rotates."""
    given = getattr(rope, "dims", None) or getattr(rope, "dim", None)
    return int(given) if given else 2 * int(rope._freqs.size)


def _is_traditional(rope: Any) -> bool:
    """Whether `rope` rotates pairs of neighbours, rather than the two halves of a head."""
    if hasattr(rope, "traditional"):
        return bool(rope.traditional)
    dims = _dims(rope)
    turned = np.array(rope(mx.zeros((1, 1, 1, dims)).at[..., 0].add(1.0), offset=1)).reshape(-1)
    return bool(abs(turned[1]) > abs(turned[dims // 2]))


def _is_equal(rope: Any, wavelengths: Floats, scale: float, traditional: bool) -> bool:
    """Whether `rope` scales and rotates by these wavelengths."""
    dims = 2 * len(wavelengths)
    for position in _CHECKED:
        found = np.array(rope(mx.ones((1, 1, 1, dims)), offset=position)).reshape(-1)
        first, second = (found[::2], found[1::2]) if traditional else np.split(found, 2)
        sine, cosine = np.sin(position / wavelengths), np.cos(position / wavelengths)
        off = np.abs([first - scale * (cosine - sine), second - scale * (cosine + sine)])
        if off.max() > _CLOSE * max(scale, 1.0):
            return False
    return True

"""The networks of text encoders: BERT and (XLM-)RoBERTa (arXiv 1810.04805), and ModernBERT (arXiv
2412.13663). Configuration and weights are those of Hugging Face's checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from app.engine.backend import mlx_patches
from app.util.weight_files import weight_files

Weights = dict[str, mx.array]
Config = dict[str, Any]

TOKEN_TABLES = "embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight"
"""Names of the token embeddings in BERT and ModernBERT."""
_SCALES = "scales", "biases"
ROWS = 4096
"""Rows of a quantised matrix that are unpacked at once."""
_NETWORK = "embeddings.", "encoder.layer.", "layers.", "final_norm."
"""Beginnings of the names of weights that are used; heads for other tasks have others."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a network. `first_position` is the position of the first token. `mean`: a text's
    vector is the mean over its tokens, otherwise that of its first token. For ModernBERT, `windows`
    are the distances to which each layer attends (0: unlimited), and `bases` its RoPE bases."""

    layers: int
    heads: int
    max_tokens: int
    eps: float = 1e-12
    activation: str = "gelu"
    first_position: int = 0
    mean: bool = True
    windows: tuple[int, ...] = ()
    bases: tuple[float, ...] = ()


def parse_shape(config: Config, mean: bool) -> Shape:
    """The shape of a `config.json`."""
    layers, positions = config["num_hidden_layers"], config["max_position_embeddings"]
    if config["model_type"] == "modernbert":
        every = config.get("global_attn_every_n_layers") or 3
        ropes = config.get("rope_parameters") or {}
        whole = (ropes.get("full_attention") or {}).get("rope_theta")
        local = (ropes.get("sliding_attention") or {}).get("rope_theta")
        kinds = config.get("layer_types") or [
            "sliding_attention" if layer % every else "full_attention" for layer in range(layers)
        ]
        limited = [kind == "sliding_attention" for kind in kinds]
        bases = (
            whole or config.get("global_rope_theta") or 160_000.0,
            local or config.get("local_rope_theta") or 10_000.0,
        )
        return Shape(
            layers,
            config["num_attention_heads"],
            positions,
            config.get("norm_eps") or 1e-5,
            config.get("hidden_activation") or "gelu",
            mean=mean,
            windows=tuple(each * ((config.get("local_attention") or 128) // 2) for each in limited),
            bases=tuple(bases[each] for each in limited),
        )
    # RoBERTa numbers positions from the padding token's id on.
    padding = config.get("pad_token_id")
    first = 0 if config["model_type"] == "bert" else (1 if padding is None else padding) + 1
    return Shape(
        layers,
        config["num_attention_heads"],
        positions - first,
        config.get("layer_norm_eps") or 1e-12,
        config.get("hidden_act") or "gelu",
        first,
        mean,
    )


ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "gelu": lambda x: x * (1 + mx.erf(x / math.sqrt(2))) / 2,
    "relu": lambda x: mx.maximum(x, 0),
    "silu": lambda x: x * mx.sigmoid(x),
}


def encode(weights: Weights, shape: Shape, ids: mx.array, mask: mx.array) -> mx.array:
    """Vectors (n, width) of length 1 for token ids (n, length); `mask` is False for padding, which
    is at the end."""
    hidden = (_modern_bert if shape.bases else _bert)(weights, shape, ids, mask)
    vectors = (hidden * mask[:, :, None]).sum(axis=1) if shape.mean else hidden[:, 0]
    return vectors / mx.linalg.norm(vectors, axis=1, keepdims=True)


def _bert(weights: Weights, shape: Shape, ids: mx.array, mask: mx.array) -> mx.array:
    first = shape.first_position
    positions = weights["embeddings.position_embeddings.weight"][first : first + ids.shape[1]]
    hidden = weights[TOKEN_TABLES[0]][ids].astype(mx.float32) + positions
    if (types := weights.get("embeddings.token_type_embeddings.weight")) is not None:
        hidden = hidden + types[0]
    hidden = _norm(weights, "embeddings.LayerNorm", hidden, shape.eps)
    activate = ACTIVATIONS[shape.activation]
    bias = mx.where(mask, 0.0, -1e9)[:, None, None, :]
    for layer in range(shape.layers):
        at = f"encoder.layer.{layer}"
        names = (f"{at}.attention.self.{name}" for name in ("query", "key", "value"))
        q, k, v = (_heads(_linear(weights, name, hidden), shape.heads) for name in names)
        mixed = _linear(weights, f"{at}.attention.output.dense", _attend(q, k, v, bias))
        hidden = _norm(weights, f"{at}.attention.output.LayerNorm", hidden + mixed, shape.eps)
        inner = activate(_linear(weights, f"{at}.intermediate.dense", hidden))
        out = hidden + _linear(weights, f"{at}.output.dense", inner)
        hidden = _norm(weights, f"{at}.output.LayerNorm", out, shape.eps)
    return hidden


def _modern_bert(weights: Weights, shape: Shape, ids: mx.array, mask: mx.array) -> mx.array:
    hidden = weights[TOKEN_TABLES[1]][ids].astype(mx.float32)
    hidden = _norm(weights, "embeddings.norm", hidden, shape.eps)
    activate = ACTIVATIONS[shape.activation]
    places = mx.arange(ids.shape[1])
    distances = mx.abs(places[:, None] - places)
    for layer in range(shape.layers):
        at, window = f"layers.{layer}", shape.windows[layer]
        seen = mask[:, None, None, :]
        if window:
            seen = seen & (distances <= window)
        # The first layer's input was normalised with the embeddings.
        attended = _norm(weights, f"{at}.attn_norm", hidden, shape.eps) if layer else hidden
        parts = mx.split(_linear(weights, f"{at}.attn.Wqkv", attended), 3, axis=-1)
        q, k, v = (_heads(part, shape.heads) for part in parts)
        q, k = (_rotated(each, shape.bases[layer]) for each in (q, k))
        mixed = _attend(q, k, v, mx.where(seen, 0.0, -1e9))
        hidden = hidden + _linear(weights, f"{at}.attn.Wo", mixed)
        normed = _norm(weights, f"{at}.mlp_norm", hidden, shape.eps)
        inner, gate = mx.split(_linear(weights, f"{at}.mlp.Wi", normed), 2, axis=-1)
        hidden = hidden + _linear(weights, f"{at}.mlp.Wo", activate(inner) * gate)
    return _norm(weights, "final_norm", hidden, shape.eps)


def _heads(hidden: mx.array, heads: int) -> mx.array:
    rows, length, _ = hidden.shape
    return hidden.reshape(rows, length, heads, -1).swapaxes(1, 2)


def _rotated(heads: mx.array, base: float) -> mx.array:
    width = heads.shape[-1]
    return mx.fast.rope(heads, width, traditional=False, base=base, scale=1.0, offset=0)


def _attend(q: mx.array, k: mx.array, v: mx.array, bias: mx.array) -> mx.array:
    shares = mx.softmax(q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5 + bias, axis=-1)
    mixed = (shares @ v).swapaxes(1, 2)
    return mixed.reshape(*mixed.shape[:2], -1)


def _linear(weights: Weights, name: str, hidden: mx.array) -> mx.array:
    product, bias = hidden @ weights[f"{name}.weight"].T, weights.get(f"{name}.bias")
    return product if bias is None else product + bias


def _norm(weights: Weights, name: str, hidden: mx.array, eps: float) -> mx.array:
    return mx.fast.layer_norm(hidden, weights[f"{name}.weight"], weights.get(f"{name}.bias"), eps)


class _LoadedWeights(dict[str, mx.array]):
    def __missing__(self, name: str) -> mx.array:
        raise ValueError(f"it has no weights named {name}")


def load_weights(folder: Path, config: Config) -> Weights:
    """The weights of a folder, named without the prefix of a task's model (`bert.`).
    Matrices are float32; a table of tokens, which is the largest, has at most 16 bits. Raises
    ValueError, also for a name that is looked up later and is missing."""
    stored: Weights = {}
    files = weight_files(folder)
    with mlx_patches.loading_only(files):
        for file in files:
            part = mx.load(str(file))
            assert isinstance(part, dict)
            stored |= part
    tables = [(name, end) for name in stored for end in TOKEN_TABLES if name.endswith(end)]
    if not tables:
        raise ValueError("it has no token embeddings")
    prefix = tables[0][0].removesuffix(tables[0][1])
    found = _LoadedWeights()
    for full, value in stored.items():
        base, name = full.removesuffix(".weight"), full.removeprefix(prefix)
        used = full.startswith(prefix) and name.startswith(_NETWORK)
        if not used or full.endswith((".scales", ".biases")):
            continue
        parts = [value]
        if f"{base}.scales" in stored:
            how, packed = config["quantization"], (stored[f"{base}.{n}"] for n in _SCALES)
            parts = [
                mx.dequantize(
                    rows[0], rows[1], rows[2], group_size=how["group_size"], bits=how["bits"]
                )
                for rows in zip(*(_rows(each) for each in (value, *packed)), strict=True)
            ]
        for number, part in enumerate(parts):
            if name not in TOKEN_TABLES:
                parts[number] = part.astype(mx.float32)
            elif part.dtype == mx.float32:
                parts[number] = part.astype(mx.float16)
            mx.eval(parts[number])  # one by one: all at once would take several times the memory
        found[name] = mx.concatenate(parts) if len(parts) > 1 else parts[0]
        mx.eval(found[name])
    return found


def _rows(matrix: mx.array) -> list[mx.array]:
    return [matrix[at : at + ROWS] for at in range(0, len(matrix), ROWS)]

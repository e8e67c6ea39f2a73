"""Derives a config.json from a GGUF file, and maps the names of its tensors to mlx-lm's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from app.extras.gguf.file import GgufError, GgufFile, Tensor

OTHER = "use a model in mlx-lm's format, or another GGUF file"

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.switch_mlp.gate_proj",
    "ffn_up_exps": "mlp.switch_mlp.up_proj",
    "ffn_down_exps": "mlp.switch_mlp.down_proj",
}
_FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")


def _without(names: dict[str, str], *keys: str) -> dict[str, str]:
    return {key: value for key, value in names.items() if key not in keys}


_NAMES: dict[str, dict[str, str]] = {
    "llama": _LAYER,
    "qwen2": _LAYER,
    "qwen3": _LAYER | _HEAD_NORMS,
    "qwen3moe": _without(_LAYER, *_FEED_FORWARD) | _HEAD_NORMS | _EXPERTS,
    "gemma3": _LAYER
    | _HEAD_NORMS
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "phi3": _without(_LAYER, "attn_q", "attn_k", "attn_v", "ffn_gate")
    | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
}
"""Tensors of a layer in each architecture: GGUF's names and mlx-lm's names."""
SUPPORTED = tuple(_NAMES)
_MAX_INTEGER = 1 << 31
_BIASED = {"qwen2": ("attn_q", "attn_k", "attn_v")}
_USED_IN_CONFIG = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def check_architecture(gguf: GgufFile) -> None:
    """Raise GgufError if specchat cannot convert this architecture."""
    if gguf.architecture not in _NAMES:
        name = gguf.architecture[:40] or "unknown"
        raise GgufError(
            f"The model in '{gguf.paths[0]}' has the architecture {name!r}, and specchat only"
            f" converts {', '.join(SUPPORTED)}",
            OTHER,
        )
    if gguf.architecture == "llama" and gguf.metadata.integer(".expert_count"):
        raise GgufError(f"'{gguf.paths[0]}' is a llama with experts (Mixtral)", OTHER)


# ---------------------------------------------------------------------------- config.json


def config_of(gguf: GgufFile) -> dict[str, Any]:
    """The model's config.json, without special tokens and quantisation. Raises GgufError if a value
    is missing or impossible."""
    check_architecture(gguf)
    heads = _integer(gguf, "attention.head_count")
    width = _integer(gguf, "embedding_length")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2 or embedding.shape[1] != width:
        raise GgufError(f"'{gguf.paths[0]}' has no embeddings of width {width:,}", OTHER)
    if width % heads and gguf.metadata.integer(".attention.key_length") is None:
        raise GgufError(f"'{gguf.paths[0]}' has {heads:,} heads for a width of {width:,}", OTHER)
    head_dim = _integer(gguf, "attention.key_length", width // heads)
    config = {
        "hidden_size": width,
        "num_hidden_layers": _integer(gguf, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _integer(gguf, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": _number(gguf, "attention.layer_norm_rms_epsilon"),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": _integer(gguf, "context_length"),
        "rope_theta": _number(gguf, "rope.freq_base", 10_000.0),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
    }
    if gguf.architecture != "qwen3moe":
        config["intermediate_size"] = _integer(gguf, "feed_forward_length")
    if config["num_hidden_layers"] > len(gguf.tensors):
        raise GgufError(f"'{gguf.paths[0]}' is incomplete: layers are missing", OTHER)
    _check_heads(gguf, head_dim, width // heads)
    return config | _OWN[gguf.architecture](gguf, config)


def _check_heads(gguf: GgufFile, head_dim: int, default: int) -> None:
    if gguf.metadata.integer(".attention.value_length") not in (None, head_dim):
        raise GgufError(f"'{gguf.paths[0]}' has keys and values of different widths", OTHER)
    if gguf.architecture in ("qwen2", "phi3") and head_dim != default:
        raise GgufError(f"'{gguf.paths[0]}' has heads of the unusual width {head_dim}", OTHER)
    rotated = gguf.metadata.integer(".rope.dimension_count")
    if gguf.architecture != "phi3" and rotated not in (None, head_dim):
        raise GgufError(f"'{gguf.paths[0]}' rotates {rotated} of {head_dim} dimensions", OTHER)


def _llama(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    biased = "blk.0.attn_q.bias" in gguf.tensors
    return {
        "model_type": "llama",
        "attention_bias": biased,
        "rope_scaling": _llama3_scaling(gguf, config) or _rope_scaling(gguf),
    }


def _qwen2(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": "qwen2", "rope_scaling": _rope_scaling(gguf)}


def _qwen3(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": "qwen3", "rope_scaling": _rope_scaling(gguf)}


def _qwen3_moe(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    width = _integer(gguf, "expert_feed_forward_length")
    return {
        "model_type": "qwen3_moe",
        "intermediate_size": _integer(gguf, "feed_forward_length", width),
        "moe_intermediate_size": width,
        "num_experts": _integer(gguf, "expert_count"),
        "num_experts_per_tok": _integer(gguf, "expert_used_count"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rope_scaling": _rope_scaling(gguf),
    }


_GEMMA_27B_LAYERS = 62


def _gemma3(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    # The largest model scales attention by its width over its heads; see llama.cpp's gemma3.
    largest = config["num_hidden_layers"] == _GEMMA_27B_LAYERS
    width_per_head = config["hidden_size"] // config["num_attention_heads"]
    return {
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": width_per_head if largest else config["head_dim"],
        "sliding_window": _integer(gguf, "attention.sliding_window"),
        "sliding_window_pattern": _integer(gguf, "attention.sliding_window_pattern", 6),
        "rope_local_base_freq": _number(gguf, "rope.freq_base_swa", 10_000.0),
        "rope_scaling": _rope_scaling(gguf),
    }


def _phi3(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    original = _integer(
        gguf, "rope.scaling.original_context_length", config["max_position_embeddings"]
    )
    rotated = _integer(gguf, "rope.dimension_count", config["head_dim"])
    long, short = (gguf.tensors.get(f"rope_factors_{each}.weight") for each in ("long", "short"))
    scaling = _rope_scaling(gguf)
    if long is not None and short is not None:
        scaling = {
            "type": "longrope",
            "long_factor": _floats(long).tolist(),
            "short_factor": _floats(short).tolist(),
        }
    return {
        "model_type": "phi3",
        "original_max_position_embeddings": original,
        "partial_rotary_factor": rotated / config["head_dim"],
        "rope_scaling": scaling,
    }


_OWN: dict[str, Callable[[GgufFile, dict[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "gemma3": _gemma3,
    "phi3": _phi3,
}


def _integer(gguf: GgufFile, key: str, default: int | None = None) -> int:
    value = gguf.metadata.integer(f".{key}")
    value = default if value is None else value
    if value is None or not 0 < value <= _MAX_INTEGER:
        raise GgufError(f"'{gguf.paths[0]}' has no usable {key}", OTHER)
    return value


def _number(gguf: GgufFile, key: str, default: float | None = None) -> float:
    value = gguf.metadata.number(f".{key}")
    value = default if value is None else value
    if value is None or value <= 0:
        raise GgufError(f"'{gguf.paths[0]}' has no usable {key}", OTHER)
    return value


def _rope_scaling(gguf: GgufFile) -> dict[str, Any] | None:
    kind = gguf.metadata.text(".rope.scaling.type")
    if kind in (None, "none", "longrope"):
        return None
    if kind not in ("linear", "yarn"):
        raise GgufError(f"'{gguf.paths[0]}' scales rotary positions by {kind[:40]!r}", OTHER)
    scaling = {"type": kind, "rope_type": kind, "factor": _number(gguf, "rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = _integer(
            gguf, "rope.scaling.original_context_length"
        )
    return scaling


def _llama3_scaling(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any] | None:
    """Rotary scaling of Llama 3.1 and later. The file has a factor for each frequency, and mlx-lm
    needs the numbers from which they were computed. In Meta's models these are all equal except for
    the largest factor."""
    tensor = gguf.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    own_way = GgufError(f"'{gguf.paths[0]}' scales rotary positions in an unknown way", OTHER)
    factors = _floats(tensor)
    if factors.size != config["head_dim"] // 2:
        raise own_way
    largest = float(factors.max())
    low, high, original = 1.0, 4.0, 8192
    exponents = np.arange(0, config["head_dim"], 2) / config["head_dim"]
    wavelengths = 2 * np.pi * config["rope_theta"] ** exponents
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / max(largest, 1.0) + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise own_way
    return {
        "type": "llama3",
        "rope_type": "llama3",
        "factor": round(largest, 4),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _floats(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    if tensor.kind != "F32":
        raise GgufError(f"The tensor {tensor.name!r} is not in 32-bit numbers", OTHER)
    values = tensor.data.view(np.float32)
    if not np.isfinite(values).all():
        raise GgufError(f"The tensor {tensor.name!r} has values that are not finite", OTHER)
    return values


# ---------------------------------------------------------------------------- names


def named_tensors(gguf: GgufFile, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor with mlx-lm's name for it, which ends in `.weight` or `.bias`. Raises
    GgufError if a tensor is missing or unknown, or has another shape than the configuration
    requires."""
    shapes = expected_shapes(gguf.architecture, config)
    if config.get("attention_bias"):
        for number in range(config["num_hidden_layers"]):
            for name in ("q", "k", "v"):
                weight = shapes[f"blk.{number}.attn_{name}.weight"]
                shapes[f"blk.{number}.attn_{name}.bias"] = weight[:1]
    for name, shape in shapes.items():
        tensor = gguf.tensors.get(name)
        if tensor is None:
            raise GgufError(f"'{gguf.paths[0]}' is incomplete: {name} is missing", OTHER)
        if tensor.shape != shape:
            raise GgufError(
                f"'{gguf.paths[0]}' is damaged: {name} has the shape {tensor.shape}, not {shape}",
                OTHER,
            )
        yield _mlx_name(gguf.architecture, name), tensor
    unknown = gguf.tensors.keys() - shapes.keys() - set(_USED_IN_CONFIG)
    if unknown:
        raise GgufError(
            f"'{gguf.paths[0]}' has the tensor {min(unknown)[:60]!r}, which specchat does not know",
            OTHER,
        )


def _mlx_name(architecture: str, name: str) -> str:
    match = _LAYER_NAME.fullmatch(name)
    if match is not None:
        number, part, kind = match.groups()
        return f"model.layers.{number}.{_NAMES[architecture][part]}.{kind}"
    stem, _, kind = name.rpartition(".")
    return f"{_TOP[stem]}.{kind}"


def expected_shapes(architecture: str, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that a model with this configuration needs, by GGUF's names."""
    width, vocabulary = config["hidden_size"], config["vocab_size"]
    layer = _layer_shapes(architecture, config)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, width),
        "output_norm.weight": (width,),
    }
    if not config["tie_word_embeddings"]:
        shapes["output.weight"] = (vocabulary, width)
    for number in range(config["num_hidden_layers"]):
        for part in _NAMES[architecture]:
            shapes[f"blk.{number}.{part}.weight"] = layer[part]
        for part in _BIASED.get(architecture, ()):
            shapes[f"blk.{number}.{part}.bias"] = layer[part][:1]
    return shapes


def _layer_shapes(architecture: str, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, head, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head
    fused = architecture == "phi3"
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn_q": (queries, width),
        "attn_k": (keys, width),
        "attn_v": (keys, width),
        "attn_qkv": (queries + 2 * keys, width),
        "attn_output": (width, queries),
        "attn_q_norm": (head,),
        "attn_k_norm": (head,),
        "post_attention_norm": (width,),
        "ffn_norm": (width,),
        "post_ffw_norm": (width,),
        "ffn_gate": (inner, width),
        "ffn_up": (2 * inner if fused else inner, width),
        "ffn_down": (width, inner),
    }
    if "num_experts" in config:
        experts, small = config["num_experts"], config["moe_intermediate_size"]
        shapes |= {
            "ffn_gate_inp": (experts, width),
            "ffn_gate_exps": (experts, small, width),
            "ffn_up_exps": (experts, small, width),
            "ffn_down_exps": (experts, width, small),
        }
    return shapes

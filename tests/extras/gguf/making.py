"""Writes tiny random models as GGUF files, with the names of the `gguf` package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from tests import tiny

NAMES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
}
"""GGUF's names of mlx-lm's architectures."""
Values = dict[str, Any]
MERGES = (("a", "b"),)
VOCABULARY = tiny.BYTES + len(MERGES)


def write_gguf(
    path: Path,
    name: str = "llama",
    seed: int = 0,
    kind: str = "F32",
    values: Values | None = None,
    extra: dict[str, NDArray[Any]] | None = None,
    **changes: Any,
) -> dict[str, mx.array]:
    """Write a random model of mlx-lm's architecture `name`; returns its weights by mlx-lm's names.

    `kind` is the type of its matrices, `values` replace metadata (None removes a key), `changes`
    are of its configuration.
    """
    model = tiny.build(name, seed, mx.float32, VOCABULARY, **changes)
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    config = {**tiny.config_of(name, VOCABULARY), **changes}
    architecture = NAMES[name]
    writer = GGUFWriter(str(path), architecture)
    for key, value in (metadata(architecture, config) | (values or {})).items():
        _add(writer, key, value)
    enum = next(each for each in MODEL_ARCH if MODEL_ARCH_NAMES[each] == architecture)
    names = get_tensor_name_map(enum, config["num_hidden_layers"])
    for mlx_name, weight in weights.items():
        if mlx_name.startswith("lm_head") and config.get("tie_word_embeddings"):
            continue
        gguf_name = names.get_name(_usual(mlx_name), try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, mlx_name
        array = _as_in_gguf(architecture, gguf_name, np.array(weight), config)
        _add_tensor(writer, gguf_name, array, kind)
    for gguf_name, array in (extra or {}).items():
        writer.add_tensor(gguf_name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def metadata(architecture: str, config: dict[str, Any]) -> Values:
    """What the file says of the model and its tokenizer."""
    values: Values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
    }
    if architecture not in ("qwen2", "phi3"):
        values["attention.key_length"] = values["attention.value_length"] = config["head_dim"]
    if architecture == "qwen3moe":
        values["expert_count"] = config["num_experts"]
        values["expert_used_count"] = config["num_experts_per_tok"]
        values["expert_feed_forward_length"] = config["moe_intermediate_size"]
    if architecture == "gemma3":
        values["attention.sliding_window"] = config["sliding_window"]
        values["attention.sliding_window_pattern"] = config["sliding_window_pattern"]
    own = {f"{architecture}.{key}": value for key, value in values.items()}
    return own | tokenizer()


def tokenizer() -> Values:
    words = tiny.byte_tokenizer(MERGES).get_vocab()
    tokens = sorted(words, key=words.__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in tiny.SPECIALS else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.eos_token_id": VOCABULARY - 1,
        "tokenizer.chat_template": tiny.TEMPLATE,
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _usual(name: str) -> str:
    """As transformers names what mlx-lm has under a name of its own."""
    return re.sub(r"mlp\.switch_mlp\.(\w+)_proj", r"mlp.experts.\1_proj", name)


def _as_in_gguf(
    architecture: str, name: str, array: NDArray[Any], config: dict[str, Any]
) -> NDArray[Any]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if architecture == "llama" and part in heads:  # as llama.cpp's converter permutes them
        halves = array.reshape(heads[part], 2, -1, *array.shape[1:])
        return halves.swapaxes(1, 2).reshape(array.shape)
    return array + 1 if architecture == "gemma3" and array.ndim == 1 else array


def _add_tensor(writer: GGUFWriter, name: str, array: NDArray[Any], kind: str) -> None:
    if array.ndim < 2 or kind == "F32":
        writer.add_tensor(name, array.astype(np.float32))
    else:
        dtype = GGMLQuantizationType[kind]
        writer.add_tensor(name, quants.quantize(array, dtype), raw_dtype=dtype)

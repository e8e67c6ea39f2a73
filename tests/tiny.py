"""Tiny models of real architectures with random weights, as mlx-lm builds them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.tables import slow

VOCABULARY = 128
WINDOW = 24

_SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
_LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
_GEMMA3: dict[str, Any] = {
    **_SIZES,
    "num_hidden_layers": 4,
    "rope_local_base_freq": 10000.0,
    "query_pre_attn_scalar": 16,
    "sliding_window": WINDOW,
    "sliding_window_pattern": 2,
}

_DEEPSEEK: dict[str, Any] = {
    **_SIZES,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 1.0,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "attention_bias": False,
}
_INDEXER: dict[str, Any] = {"index_head_dim": 32, "index_n_heads": 4, "index_topk": 16}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": dict(_SIZES),
    "qwen2": dict(_SIZES),
    "qwen3": dict(_SIZES),
    "qwen3_moe": {**_SIZES, **_EXPERTS},
    "qwen3_5": {
        **_SIZES,
        **_LINEAR,
        "rope_parameters": {
            "type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1, 2],
        },
    },
    "qwen3_next": {
        **_SIZES,
        **_LINEAR,
        **_EXPERTS,
        "shared_expert_intermediate_size": 32,
        "partial_rotary_factor": 0.5,
    },
    "nemotron_h": {
        **_SIZES,
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "*", "-", "M", "*"],
    },
    "gpt_oss": {
        **_SIZES,
        "num_hidden_layers": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma3": {"vocab_size": VOCABULARY, "text_config": {"model_type": "gemma3_text", **_GEMMA3}},
    "phi3": dict(_SIZES),
    "glm4": {**_SIZES, "attention_bias": True, "partial_rotary_factor": 0.5},
}

ORACLE = tuple(CONFIGS)
"""The eleven architectures of the design's oracle suite."""

HYBRID = ("qwen3_5", "qwen3_next", "nemotron_h")
SLIDING = ("gpt_oss", "gemma3")
PURE = tuple(name for name in ORACLE if name not in HYBRID)
RECURRENT = (*HYBRID, "lfm2", "granitemoehybrid", "falcon_h1")
"""All hybrids."""

QUICK = ("qwen3", "gpt_oss", "qwen3_next")
"""One dense, one sliding, one hybrid: the quick tests use these. All others are slow."""


def architectures(*names: str) -> list[Any]:
    """Rows for `pytest.mark.parametrize`: those of QUICK are quick, the others slow."""
    assert {*names} & {*QUICK}, "none of these is quick"
    return [name if name in QUICK else slow(name) for name in dict.fromkeys(names)]


EXTRA: dict[str, dict[str, Any]] = {
    "gpt2": {
        "n_ctx": 512,
        "n_embd": 48,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 512,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": VOCABULARY,
    },
    "gemma3_text": _GEMMA3,
    "gemma2": {**_SIZES, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 16},
    "falcon_h1": {
        **_SIZES,
        "attention_bias": False,
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "key_multiplier": 1.0,
        "lm_head_multiplier": 1.0,
        "mamba_chunk_size": 16,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 16,
        "mamba_d_ssm": 64,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_n_heads": 4,
        "mamba_norm_before_gate": True,
        "mamba_proj_bias": False,
        "mamba_rms_norm": True,
        "mlp_bias": False,
        "mlp_multipliers": [1.0, 1.0],
        "projectors_bias": False,
        "ssm_in_multiplier": 1.0,
        "ssm_multipliers": [1.0] * 5,
        "ssm_out_multiplier": 1.0,
    },
    "lfm2": {
        **_SIZES,
        "num_hidden_layers": 4,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 48,
        "block_ff_dim": 96,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": True,
        "full_attn_idxs": [1, 3],
    },
    "granitemoehybrid": {
        **_SIZES,
        "num_hidden_layers": 4,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.25,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "shared_intermediate_size": 64,
        "attention_bias": False,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
        "layer_types": ["mamba", "attention"] * 2,
        "position_embedding_type": "nope",
        "time_step_limit": [0.001, 100.0],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "mamba2": {
        **{key: _SIZES[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size")},
        "intermediate_size": 96,
        "num_heads": 6,
        "head_dim": 16,
        "state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": [0.001, 0.1],
        "time_step_rank": "auto",
        "max_position_embeddings": 4096,
        "layer_norm_epsilon": 1e-5,
    },
    "ministral3": {
        **_SIZES,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64,
        },
        "layer_types": ["full_attention"] * 3,
    },
    "mistral4": {
        **_DEEPSEEK,
        "qk_rope_head_dim": 8,
        "rope_parameters": {
            "type": "default",
            "rope_theta": 10000.0,
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64,
        },
    },
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": {**_DEEPSEEK, **_INDEXER},
    "gemma3n": {
        "text_config": {
            **_SIZES,
            "model_type": "gemma3n_text",
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCABULARY,
            "sliding_window": WINDOW,
            "rope_local_base_freq": 10000.0,
            "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "activation_sparsity_pattern": [0.0] * 6,
            "hidden_size_per_layer_input": 16,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
            "query_pre_attn_scalar": 16,
            "rope_scaling": None,
            "sliding_window_pattern": 2,
        }
    },
    "gemma4_text": {
        **_SIZES,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCABULARY,
        "global_head_dim": 32,
        "sliding_window_pattern": 2,
    },
}
"""More architectures that single tests need."""


def config_of(name: str, vocabulary: int = VOCABULARY) -> dict[str, Any]:
    config = copy.deepcopy(CONFIGS.get(name) or EXTRA[name])
    for part in (config, config.get("text_config", {})):
        if "vocab_size" in part:
            part["vocab_size"] = vocabulary
    return {"model_type": name, **config}


def build(
    name: str,
    seed: int = 0,
    dtype: mx.Dtype = mx.float32,
    vocabulary: int = VOCABULARY,
    **changes: Any,
) -> Any:
    """A model with random weights, sharp enough that what attention sees shows in the logits."""
    config = {**config_of(name, vocabulary), **changes}
    model_class, args_class = _get_classes(config)
    mx.random.seed(seed)
    model = model_class(args_class.from_dict(config))
    sharpened = [
        (path, (weight * 3 if weight.ndim >= 2 else weight).astype(dtype))
        for path, weight in tree_flatten(model.parameters())
        if mx.issubdtype(weight.dtype, mx.floating)
    ]
    model.update(tree_unflatten(sharpened))
    model.eval()
    mx.eval(model.state)
    return model


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BYTES = 256 + len(SPECIALS)
"""Vocabulary of the byte tokenizer that `save` writes."""


def byte_tokenizer(merges: tuple[tuple[str, str], ...] = ()) -> Tokenizer:
    """One token per byte, the merges given, and ChatML's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(a + b for a, b in merges)]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def save(
    folder: Path,
    name: str = "qwen3",
    seed: int = 0,
    dtype: mx.Dtype = mx.float32,
    template: str = TEMPLATE,
    **changes: Any,
) -> Path:
    """Write a loadable model folder with random weights and the byte tokenizer. `changes` are of
    its config."""
    folder.mkdir(parents=True, exist_ok=True)
    model = build(name, seed, dtype, BYTES, **changes)
    mx.save_safetensors(
        str(folder / "model.safetensors"),
        dict(tree_flatten(model.parameters())),
        metadata={"format": "mlx"},
    )
    config = {**config_of(name, BYTES), "eos_token_id": BYTES - 1, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder

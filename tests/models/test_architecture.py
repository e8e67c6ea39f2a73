"""What is measured of a configuration without allocating anything: against models that mlx-lm
builds and runs, and against sums by hand."""

from __future__ import annotations

import copy
import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import _decode_tagged_floats, _get_classes, quantize_model

from app.engine.cache.caches import flatten
from app.engine.cache.prefill import forward, make_stock_cache
from app.models.architecture import MAX_KEPT, digest, parse_architecture
from app.models.errors import ModelError
from app.models.fit import bytes_per_token, cache_bytes, step_bytes
from app.paths import cache_path
from app.sandbox import process, shapes
from app.sandbox.process import RequestLimits
from tests import tiny
from tests.tables import slow, table

TABLE = tomllib.loads((Path(__file__).parent / "configs.toml").read_text("utf-8"))["config"]

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "norm_eps": 1e-5,
    "vocab_size": 256,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
LINEAR: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
MULTIPLIERS = dict.fromkeys(
    ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"), 1.0
)
CONVOLUTION = {"conv_bias": False, "conv_L_cache": 3, "full_attn_idxs": [1, 3]}
WINDOWS = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"] * 2}
LATENT: dict[str, Any] = {
    **{key: value for key, value in SIZES.items() if key != "head_dim"},
    "num_key_value_heads": 4,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}


def around(kind: str, inner: str, numbers: dict[str, Any]) -> dict[str, Any]:
    """A model that also sees: the text model is inside."""
    text = {"model_type": inner, **numbers}
    outer = {"vocab_size": numbers["vocab_size"], "vision_config": {"hidden_size": 9}}
    return {"model_type": kind, "text_config": text, **outer}


QWEN35 = {**SIZES, **LINEAR}
GEMMA4 = {
    **SIZES,
    **WINDOWS,
    "global_head_dim": 64,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 256,
}
CONFIGS: dict[str, dict[str, Any]] = {
    **{
        kind: {"model_type": kind, **SIZES}
        for kind in ("llama", "qwen2", "qwen3", "smollm3", "phi3", "mistral", "seed_oss")
    },
    "glm4": {"model_type": "glm4", **SIZES, "partial_rotary_factor": 0.5},
    "llama with windows": {"model_type": "llama", **SIZES, **WINDOWS},
    "qwen3_moe": {"model_type": "qwen3_moe", **SIZES, **EXPERTS},
    "qwen3_5": {"model_type": "qwen3_5", **QWEN35},
    "qwen3_5 inside": around("qwen3_5", "qwen3_5_text", QWEN35),
    "qwen3_5_moe": around("qwen3_5_moe", "qwen3_5_moe_text", {**QWEN35, **EXPERTS}),
    "qwen3_next": {
        "model_type": "qwen3_next",
        **QWEN35,
        **EXPERTS,
        "partial_rotary_factor": 0.5,
    },
    "gemma2": {"model_type": "gemma2", **SIZES},
    "gemma3": around(
        "gemma3", "gemma3_text", {**SIZES, "sliding_window": 24, "sliding_window_pattern": 2}
    ),
    "gemma3n": {"model_type": "gemma3n", **tiny.EXTRA["gemma3n"]},
    "gemma4": around("gemma4", "gemma4_text", GEMMA4),
    "gemma4 with experts": around(
        "gemma4",
        "gemma4_text",
        {**GEMMA4, **EXPERTS, "enable_moe_block": True, "top_k_experts": 2},
    ),
    "lfm2": {
        "model_type": "lfm2",
        **SIZES,
        **CONVOLUTION,
        "block_dim": 64,
        "block_ff_dim": 128,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
    },
    "lfm2_moe": {
        "model_type": "lfm2_moe",
        **SIZES,
        **CONVOLUTION,
        **EXPERTS,
        "use_expert_bias": True,
        "num_dense_layers": 1,
    },
    "granite": {"model_type": "granite", **SIZES, **MULTIPLIERS},
    "granitemoehybrid": {
        "model_type": "granitemoehybrid",
        **SIZES,
        **MULTIPLIERS,
        "layer_types": ["mamba", "attention"] * 2,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **SIZES,
        **WINDOWS,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "nemotron_h": {
        "model_type": "nemotron_h",
        **SIZES,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": "M*-EM*",
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 64,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
    },
    "mistral3": around(
        "mistral3",
        "ministral3",
        {
            **SIZES,
            "rope_parameters": {
                "rope_theta": 10000.0,
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "olmo3": {"model_type": "olmo3", **SIZES, **WINDOWS},
    "deepseek_v3": {"model_type": "deepseek_v3", **LATENT},
    "deepseek_v32": {
        "model_type": "deepseek_v32",
        **LATENT,
        "index_head_dim": 32,
        "index_n_heads": 4,
        "index_topk": 16,
    },
    "mamba2": {
        "model_type": "mamba2",
        **tiny.EXTRA["mamba2"],
        "time_step_limit": [0.0, {"__float__": "Infinity"}],  # as transformers writes it
    },
    "gpt2": {"model_type": "gpt2", **tiny.EXTRA["gpt2"]},
    "bonsai": {
        **around(
            "prism_hadamard_qwen35",
            "qwen3_5_text",
            {**QWEN35, "hidden_size": 128, "intermediate_size": 512},
        ),
        "schema_version": 2,
        "tensor_namespace": "mlx-vlm-qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [
            {"path": path, "embedding": False, "dtype": "float16", "block": block}
            for path, block in (
                ("model.layers.0.mlp.down_proj", 512),
                ("model.layers.1.self_attn.o_proj", 0),
            )
        ],
    },
}
"""Tiny models of the families that people run, in the form of their makers' config.json."""


def build(config: dict[str, Any], dtype: mx.Dtype) -> Any:
    """The model as `mlx_lm.convert` makes it."""
    config = _decode_tagged_floats(copy.deepcopy(config))
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))
    is_cast = getattr(model, "cast_predicate", lambda path: True)
    model.update(
        tree_map_with_path(
            lambda path, a: a.astype(dtype) if is_cast(path) and a.dtype == mx.float32 else a,
            model.parameters(),
        )
    )
    return model


def weights(model: Any) -> list[mx.array]:
    arrays = [array for _, array in tree_flatten(model.parameters())]
    mx.eval(arrays)
    return arrays


def real_cache_bytes(model: Any, tokens: int, step: int) -> float:
    """After a prefill in steps. Rows are counted: buffers are longer than what they hold."""
    cache = make_stock_cache(model)
    for start in range(0, tokens, step):
        mx.eval(forward(model, cache, np.arange(start, start + step, dtype=np.int32) % 128))
    real = 0.0
    for part in flatten(cache):
        if hasattr(part, "keys"):
            rows = min(tokens, part.keys.shape[2])
            real += sum(a.nbytes / a.shape[2] * rows for a in (part.keys, part.values))
        else:
            real += part.nbytes
    return real


BUILT = {*tiny.QUICK, "gemma3", "deepseek_v3", "mamba2"}
"""These are quick, all others slow."""


@pytest.mark.parametrize("name", [name if name in BUILT else slow(name) for name in CONFIGS])
def test_a_model_is_as_large_as_the_one_that_mlx_lm_builds(name: str) -> None:
    # MLX multiplies experts on a CPU in float32 only.
    dtype = mx.float16 if name == "bonsai" else mx.float32
    config = {**CONFIGS[name], "dtype": "float32"}
    model = build(config, dtype)
    real = weights(model)
    shape = parse_architecture(config)
    assert shape.weight_bytes == sum(array.nbytes for array in real)
    if name != "bonsai":
        assert shape.parameters == sum(array.size for array in real)
    assert shape.vocab_size == config.get("text_config", config)["vocab_size"]
    assert len(shape.layers) == len(model.layers)
    for tokens, step in ((120, 8), (120, 40)):
        found = cache_bytes(shape, tokens, step)
        assert found == pytest.approx(real_cache_bytes(model, tokens, step), rel=1e-3)


def quantised_by(rules: dict[str, Any], model: Any, group_size: int) -> None:
    """By mlx-lm's own conversion. Paths that end as one of the `rules` have their own bits."""

    own = getattr(model, "quant_predicate", None) or (lambda path, module: True)

    def chosen(path: str, module: Any) -> Any:
        return next((v for end, v in rules.items() if path.endswith(end)), own(path, module))

    quantize_model(model, {}, group_size, 4, quant_predicate=chosen)


RULES = {"down_proj": {"group_size": 32, "bits": 8}, "embed_tokens": False}


@pytest.mark.parametrize(
    "name", ["qwen3", *map(slow, ("qwen3_5_moe", "gemma4", "lfm2_moe")), "gpt_oss"]
)
def test_a_quantised_model_is_as_large_as_mlx_lms_conversion(name: str) -> None:
    """Bits by layer are in the configuration, under the path of each."""
    model = build(CONFIGS[name], mx.bfloat16)
    paths = [path for path, _ in model.named_modules()]
    by_path = {path: rule for path in paths for end, rule in RULES.items() if path.endswith(end)}
    quantised_by(RULES, model, 64)
    stored = {"group_size": 64, "bits": 4, **by_path}
    shape = parse_architecture({**CONFIGS[name], "quantization": stored})
    assert shape.weight_bytes == sum(array.nbytes for array in weights(model))
    by_pattern = {"group_size": 64, "bits": 4, **{f"*{end}": rule for end, rule in RULES.items()}}
    assert parse_architecture({**CONFIGS[name], "quantization": by_pattern}) == shape
    plain = parse_architecture(CONFIGS[name])
    assert shape.parameters == plain.parameters
    assert shape.weight_bytes < plain.weight_bytes


PACKED: dict[str, tuple[dict[str, Any], tuple[int, int, str]]] = {
    "mxfp4": ({"quant_method": "mxfp4"}, (32, 4, "mxfp4")),
    "mxfp8": ({"quant_method": "mxfp8"}, (32, 8, "mxfp8")),
    "modelopt": ({"quant_method": "modelopt"}, (16, 4, "nvfp4")),
    "nvfp4": ({"format": "nvfp4-pack-quantized"}, (16, 4, "nvfp4")),
    "gptq": ({"quant_method": "gptq", "group_size": 32, "bits": 4}, (32, 4, "affine")),
}


@table("name", PACKED)
def test_what_other_programs_quantised_is_as_large_as_what_mlx_makes_of_it(name: str) -> None:
    stored, (group_size, bits, mode) = PACKED[name]
    model = build(CONFIGS["llama"], mx.bfloat16)
    nn.quantize(model, group_size, bits, mode=mode)
    shape = parse_architecture({**CONFIGS["llama"], "quantization_config": stored})
    assert shape.weight_bytes == sum(array.nbytes for array in weights(model))


def test_bits_are_assumed_only_where_the_configuration_has_none() -> None:
    config = CONFIGS["llama"]
    model = build(config, mx.bfloat16)
    quantised_by({}, model, 64)
    real = sum(array.nbytes for array in weights(model))
    assert parse_architecture(config, bits=4).weight_bytes == real
    eight = {**config, "quantization": {"group_size": 64, "bits": 8}}
    assert parse_architecture(eight, bits=4) == parse_architecture(eight)


LARGE = {
    "model_type": "qwen3_5",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "intermediate_size": 17408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248320,
    "tie_word_embeddings": False,
    "max_position_embeddings": 262144,
}


def test_27_billion_parameters_are_measured_without_memory() -> None:
    """Nothing of it is allocated here, and the limited process has less than a twentieth of it."""
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    found = shapes.measure(LARGE)
    assert found is not None
    assert found["weight_bytes"] > 50e9
    assert mx.get_active_memory() - before < 1000
    assert mx.get_peak_memory() - before < 1_000_000
    states = sum(layer.get("state_bytes", 0) for layer in found["layers"])
    assert states == pytest.approx(157e6, rel=0.03)


def test_mlx_is_as_it_was() -> None:
    attention, linear = mx.fast.scaled_dot_product_attention, nn.Linear.__call__
    shapes.measure(CONFIGS["granitemoehybrid"])
    with pytest.raises(IndexError):  # of a full layer, in the forward
        shapes.measure({"model_type": "gemma3_text", **SIZES, "sliding_window_pattern": 6})
    assert mx.fast.scaled_dot_product_attention is attention
    assert nn.Linear.__call__ is linear


# ------------------------------------------------------------------------------------ activations


LARGER = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "sliding_window": 256,
    "block_dim": 128,
    "block_ff_dim": 256,
}


@pytest.mark.parametrize(
    "name",
    [
        "olmo3",
        *map(slow, ("lfm2", "lfm2_moe", "smollm3", "granite", "granitemoehybrid", "deepseek_v3")),
    ],
)
def test_the_peak_of_reading_follows_from_what_was_traced(name: str) -> None:
    """Of a model large enough that what it reads shows beside its weights, in steps of 128."""
    tokens, step = 1024, 128
    config = copy.deepcopy({**CONFIGS[name], "dtype": "float32"})
    config |= {key: value for key, value in LARGER.items() if key in config}
    model = build(config, mx.float32)
    stored = sum(array.nbytes for array in weights(model))
    cache = make_stock_cache(model)
    ids = np.arange(tokens, dtype=np.int32) % 256
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for start in range(0, tokens, step):
        mx.eval(forward(model, cache, ids[start : start + step]))
    peak = mx.get_peak_memory() - before
    shape = parse_architecture(config)
    # On a CPU, scores are never fused.
    found = cache_bytes(shape, tokens, step) + step_bytes(shape, tokens, step, frozenset())
    assert stored + found == pytest.approx(stored + peak, rel=0.1)


# ------------------------------------------------------------------------------- kept, and limited


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what was measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_path() / "shapes"


def test_a_model_is_measured_once(kept: Path) -> None:
    first = parse_architecture(CONFIGS["llama"])
    (file,) = kept.iterdir()
    changed = json.loads(file.read_text("utf-8")) | {"hidden_size": 65}
    file.write_text(json.dumps(changed))
    assert parse_architecture(CONFIGS["llama"]) == replace(first, hidden_size=65)
    assert parse_architecture({**CONFIGS["llama"], "vocab_size": 300}).vocab_size == 300
    assert len(list(kept.iterdir())) == 2


@table("content", ["{", "[]", "{}", '{"layers": [7], "kinds": []}'])
def test_what_was_kept_and_is_damaged_is_measured_again(kept: Path, content: str) -> None:
    first = parse_architecture(CONFIGS["llama"])
    (file,) = kept.iterdir()
    file.write_text(content)
    assert parse_architecture(CONFIGS["llama"]) == first
    assert json.loads(file.read_text("utf-8"))["hidden_size"] == first.hidden_size


def test_no_more_is_kept_than_is_useful(kept: Path) -> None:
    kept.mkdir(parents=True)
    for number in range(MAX_KEPT + 5):
        (kept / f"{number}.json").write_text("{}")
    parse_architecture(CONFIGS["llama"])
    assert len(list(kept.iterdir())) == MAX_KEPT


def test_a_folder_that_cannot_be_written_only_costs_time(kept: Path) -> None:
    kept.parent.mkdir(parents=True)
    kept.write_text("a file")
    assert parse_architecture(CONFIGS["llama"]).vocab_size == 256


def test_a_configuration_has_limits(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MEASURE_LIMITS", RequestLimits(0.05, 1 << 31))
    with pytest.raises(ModelError, match="too long"):
        parse_architecture({**CONFIGS["llama"], "num_hidden_layers": 1000})


# ------------------------------------------------------------------------- real configurations


def by_hand(text: str) -> int:
    """`2*3 + 4` without `eval`."""
    return sum(math.prod(map(int, product.split("*"))) for product in text.split("+"))


def test_the_table_is_long_enough() -> None:
    assert len(TABLE) >= 20
    assert len({row["numbers"]["model_type"] for row in TABLE}) >= 10


SUMMED = {"qwen3", "qwen3_next", "gpt_oss", "deepseek_v3"}
"""The first row of each of these is quick, all others are slow."""


def summed() -> list[Any]:
    kinds = [row["numbers"]["model_type"] for row in TABLE]
    return [
        row if kind in SUMMED and kinds.index(kind) == number else slow(row)
        for number, (row, kind) in enumerate(zip(TABLE, kinds, strict=True))
    ]


@pytest.mark.parametrize("row", summed(), ids=[row["source"].split(",")[0] for row in TABLE])
def test_real_configurations_against_sums_by_hand(row: dict[str, Any]) -> None:
    shape = parse_architecture(row["numbers"])
    each, fixed = by_hand(row["cache"]), by_hand(row["fixed"])
    assert bytes_per_token(shape) == each
    assert cache_bytes(shape, 65_536, step=1) == each * 65_536 + fixed
    assert shape.parameters / 1e9 == pytest.approx(row["billions"], rel=0.015)
    if "active" in row:
        # Makers count with the vocabulary's matrix, some with both.
        least = shape.active_parameters / 1e9
        most = least + 2 * shape.vocab_size * shape.hidden_size / 1e9
        assert least * 0.95 <= row["active"] <= most * 1.05


@table(
    "name, unfused", [("llama", False), ("gemma2", True), ("deepseek_v3", True), ("qwen3_5", False)]
)
def test_what_mlx_has_no_fused_attention_for(name: str, unfused: bool) -> None:
    """Capped scores, and latent attention whose rotated scores are a mask."""
    assert all(layer.unfused is unfused for layer in parse_architecture(CONFIGS[name]).layers)


def test_a_configuration_nested_too_deeply_is_refused() -> None:
    nested: Any = 0
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ModelError, match="nested too deeply"):
        digest({"model_type": "llama", "x": nested})


def test_a_float32_model_keeps_twice_as_much() -> None:
    config = {**TABLE[0]["numbers"], "torch_dtype": "float32"}
    assert bytes_per_token(parse_architecture(config)) == 2 * bytes_per_token(
        parse_architecture(TABLE[0]["numbers"])
    )


def test_a_configuration_around_the_text_models() -> None:
    alone, inside = (parse_architecture(CONFIGS[name]) for name in ("qwen3_5", "qwen3_5 inside"))
    assert inside == replace(alone, model_type="qwen3_5_text")


@table(
    "config",
    [
        {},
        {"model_type": "gpt2", "n_embd": 48},
        {"model_type": None},
        {"model_type": {}},
        {"model_type": "../utils"},
        {"model_type": "unheard"},
        {**CONFIGS["llama"], "model_file": "model.py"},
        {**CONFIGS["llama"], "intermediate_size": -5},
        {**CONFIGS["llama"], "vocab_size": 1 << 31},
        {**CONFIGS["llama"], "hidden_size": 1 << 30, "intermediate_size": 1 << 30},
        {**CONFIGS["llama"], "quantization": {"group_size": 0, "bits": 4}},
        {**CONFIGS["llama"], "quantization": {"group_size": 64, "bits": "4"}},
        {**CONFIGS["llama"], "quantization_config": "gptq"},
        {**CONFIGS["llama"], "dtype": "array"},
        {**CONFIGS["llama"], "max_position_embeddings": -3},
        {"model_type": "qwen3"},
        {"model_type": "qwen3", "text_config": "none"},
        {**TABLE[0]["numbers"], "num_hidden_layers": None},
        {**TABLE[0]["numbers"], "hidden_size": "wide"},
        {**TABLE[0]["numbers"], "num_attention_heads": 0, "head_dim": None},
        {"model_type": "nemotron_h", "hidden_size": 8, "vocab_size": 8},
        {**TABLE[14]["numbers"], "hybrid_override_pattern": "M?"},
        {**TABLE[17]["numbers"], "layer_types": ["full_attention"]},
    ],
)
def test_what_cannot_be_told_is_said_in_one_sentence(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as error:
        parse_architecture(config)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)

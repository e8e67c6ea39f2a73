"""Which layers of built models have sliding windows, against what their configurations say."""

from __future__ import annotations

import copy
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ChunkedKVCache, KVCache, RotatingKVCache, make_prompt_cache

from app.chat import wording
from app.engine.model import loader
from app.engine.progress import LoadError
from app.models.architecture import parse_architecture
from app.models.errors import ModelError
from app.protocol.events import EngineWarning, MemoryReport
from app.protocol.reasons import Reason, ReasonCode
from app.sandbox.shapes import ignored_window
from app.util.model_config import for_mlx_lm, text_part
from tests import tiny
from tests.engine.driver import Driver
from tests.engine.test_rotary import (
    REFUSED,
    built,
    default_config,
    rotary,
    shared_architectures,
    small,
)
from tests.tables import table

S, F = "sliding_attention", "full_attention"
WINDOW = 64


def windows(model: Any) -> list[str]:
    limited = RotatingKVCache | ChunkedKVCache
    return [S if isinstance(each, limited) else F for each in make_prompt_cache(model)]


def with_layers(name: str, layer_types: list[str]) -> dict[str, Any]:
    """The default configuration of an architecture, with these layers."""
    config = default_config(name)
    text = text_part(config)
    text |= {"layer_types": layer_types, "num_hidden_layers": len(layer_types)}
    text["sliding_window"] = WINDOW
    return config


@table(
    "name, layer_types",
    [
        ("gemma3_text", [S, S, F] * 2 + [S]),
        ("gemma3_text", [F] * 4),
        ("gemma3", [S, F] * 3),
        ("cohere2", [S, F] * 3),
        ("cohere2", [S] * 4 + [F] + [S] * 3),
        ("exaone4", [S, S, F] * 2),
        ("exaone4", [S, F, F, S, S, F]),
        ("olmo3", [S, F, F, S]),
        ("gpt_oss", [F, S, S, F]),
        ("mistral", [S, F, F, S]),
    ],
)
def test_layer_types_name_the_layers_with_windows(name: str, layer_types: list[str]) -> None:
    config = with_layers(name, layer_types)
    model = built(config)
    assert windows(model) == layer_types
    assert ignored_window(model, for_mlx_lm(config)) == 0


def test_a_window_of_the_size_that_a_class_has_by_default() -> None:
    """transformers leaves values of a text part out that are its defaults."""
    config = default_config("gemma3")
    del config["text_config"]["sliding_window"]
    assert windows(built(config)) == config["text_config"]["layer_types"]


def test_layers_of_granite_have_the_names_of_transformers_5() -> None:
    kinds = ["linear_attention", F, "linear_attention", "mamba", "attention"]
    caches = built(with_layers("granitemoehybrid", kinds)).make_cache()
    assert [isinstance(each, KVCache) for each in caches] == [False, True, False, False, True]


def test_layers_with_windows_have_their_own_rotation() -> None:
    config = with_layers("gemma3_text", [S, S, F, S])
    config |= {"rope_parameters": None, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    ropes = [each.base for *_, each in rotary.rotary_modules(built(config))]
    assert ropes == [1e4, 1e4, 1e6, 1e4]


@table(
    "config",
    [
        with_layers("gemma3_text", [S, F, F, S, S, F]),
        with_layers("gemma3", [F, S, S, S, S, S, F]),
        with_layers("cohere2", [S, S, S, F, S, F]),
        with_layers("llama4", ["chunked_attention", F] * 4),
        default_config("llama4_text") | {"model_type": "llama4", "text_config": small(
            model_type="llama4_text", no_rope_layers=[1, 0] * 4, num_hidden_layers=8,
            attention_chunk_size=64, intermediate_size_mlp=64, num_local_experts=2,
            num_experts_per_tok=1, interleave_moe_layer_step=1, use_qk_norm=True,
            attention_bias=False, rope_theta=1e4, rope_scaling=None,
        )},
    ],
)  # fmt: skip
def test_layers_in_an_order_that_mlx_lm_cannot_compute_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="its layer_types are in an order that mlx-lm cannot"):
        parse_architecture(copy.deepcopy(config))
    with pytest.raises(ValueError, match="its layer_types are in an order that mlx-lm cannot"):
        built(config)


WINDOWED = {"sliding_window": WINDOW}


@table(
    "config, window",
    [
        (small(model_type="mistral", **WINDOWED), WINDOW),
        (small(model_type="mistral", **WINDOWED, max_position_embeddings=WINDOW), 0),
        (small(model_type="mistral", sliding_window=None), 0),
        (small(**WINDOWED), 0),
        (small(model_type="gemma2", **WINDOWED), WINDOW),
        (small(model_type="phi3", **WINDOWED), WINDOW),
        (small(model_type="qwen2", **WINDOWED, use_sliding_window=True), WINDOW),
        (small(model_type="qwen2", **WINDOWED, use_sliding_window=True, max_window_layers=2), 0),
        (small(model_type="qwen2", **WINDOWED, use_sliding_window=False), 0),
        (small(model_type="qwen2", **WINDOWED, layer_types=[F, S]), WINDOW),
        (small(model_type="qwen2", **WINDOWED, layer_types=[F, F]), 0),
        (small(model_type="smollm3", **WINDOWED, layer_types=[S, F], rope_theta=1e4), WINDOW),
    ],
)
def test_windows_that_mlx_lm_does_not_apply(config: dict[str, Any], window: int) -> None:
    assert ignored_window(built(config), for_mlx_lm(config)) == window
    assert parse_architecture(config).ignored_window == window


def test_a_window_that_is_ignored_is_reported_when_the_model_is_loaded(
    tmp_path: Path, driver: Driver
) -> None:
    folder = tiny.save(tmp_path / "model", "llama", 0)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mistral", "sliding_window": 32}
    (folder / "config.json").write_text(json.dumps(config))
    name = driver.load(folder).target.name
    driver.until(MemoryReport)
    (warning,) = driver.of(EngineWarning)
    data = {"model": name, "tokens": 32}
    assert warning.reason == Reason(ReasonCode.WINDOW_IGNORED, data)
    assert f"{name} has sliding windows of 32 tokens" in wording.reason(warning.reason)


def test_the_text_part_needs_no_model_type(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", "gemma3_text", 0)
    text = json.loads((folder / "config.json").read_text())
    weights = mx.load(str(folder / "model.safetensors"))
    prompt = mx.array([[1, 2, 3, 4]])
    expected = np.array(loader.load_lazily(folder)[0](prompt))
    del text["model_type"]
    config = {"model_type": "gemma3", "text_config": text, "vocab_size": text["vocab_size"]}
    (folder / "config.json").write_text(json.dumps(config))
    named = {f"language_model.{name}": array for name, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), named, {"format": "mlx"})
    assert parse_architecture(config).model_type == "gemma3_text"
    assert np.abs(np.array(loader.load_lazily(folder)[0](prompt)) - expected).max() < 1e-5


@table(
    "config, words",
    [
        ({"model_type": "gemma3", "vocab_size": 9}, "lacks text_config"),
        ({"model_type": "gemma3", "text_config": None}, "lacks model_type"),
        (
            {"model_type": "qwen2_vl", "text_config": {"vocab_size": 9, "hidden_size": 8}},
            "lacks num_hidden_layers, intermediate_size, num_attention_heads",
        ),
        (small(num_attention_heads="4"), "lacks a value, or has one of a wrong type"),
        (small(num_key_value_heads=[]), "lacks a value, or has one of a wrong type"),
        (small(rope_scaling="yarn"), "lacks a value, or has one of a wrong type"),
    ],
)
def test_values_that_no_class_can_use_are_refused_in_a_sentence(
    config: dict[str, Any], words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(ModelError, match=words):
        parse_architecture(config)
    folder = tiny.save(tmp_path_factory.mktemp("m") / "model", "llama", 0)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError) as caught:
        loader.load_lazily(folder)
    assert words in wording.problem(caught.value.failure)


@pytest.mark.slow
def test_every_shared_architecture_has_the_windows_of_its_configuration() -> None:
    wrong = {}
    for name in shared_architectures():
        config = default_config(name)
        kinds = text_part(config).get("layer_types") or []
        if name in REFUSED or not {S, "chunked_attention"} & {*kinds}:
            continue
        with redirect_stdout(StringIO()):
            model = built(copy.deepcopy(config))
        found = windows(model)
        stated = [F if kind == F else S for kind in kinds[: len(found)]]
        if found != stated and not ignored_window(model, for_mlx_lm(config)):
            wrong[name] = found
    assert not wrong

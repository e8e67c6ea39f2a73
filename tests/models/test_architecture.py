"""What configurations say: against models that mlx-lm builds, and against sums by hand."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from app.engine.caches import flatten
from app.engine.prefill import forward, make_stock_cache
from app.models.architecture import parse_architecture
from app.models.errors import ModelError
from app.models.fit import bytes_per_token, cache_bytes
from tests import tiny

TABLE = tomllib.loads((Path(__file__).parent / "configs.toml").read_text("utf-8"))["config"]
BUILT = (*tiny.ORACLE, "gemma2", "gemma3_text", "ministral3", "gemma4_text")
LATENT = ("deepseek_v3", "deepseek_v32")


def by_hand(text: str) -> int:
    """`2*3 + 4` without `eval`."""
    return sum(math.prod(map(int, product.split("*"))) for product in text.split("+"))


@pytest.mark.parametrize("name", [*BUILT, *LATENT])
def test_as_many_elements_as_mlx_lm_builds(name: str) -> None:
    model = tiny.build(name)
    matrices = sum(a.size for _, a in tree_flatten(model.parameters()) if a.ndim >= 2)
    assert parse_architecture(tiny.config_of(name)).parameters == matrices


@pytest.mark.parametrize("name", [*BUILT, *LATENT, "gemma3n"])
@pytest.mark.parametrize("step", [8, 40])
def test_the_cache_is_as_large_as_the_real_one(name: str, step: int) -> None:
    model, tokens = tiny.build(name), 120
    cache = make_stock_cache(model)
    for start in range(0, tokens, step):
        mx.eval(forward(model, cache, np.arange(start, start + step, dtype=np.int32) % 128))
    real = 0
    for part in flatten(cache):
        if hasattr(part, "keys"):
            # Rows are counted: buffers are longer than what they hold.
            rows = min(tokens, part.keys.shape[2])
            real += sum(a.nbytes // a.shape[2] * rows for a in (part.keys, part.values))
        else:
            real += part.nbytes
    shape = parse_architecture({**tiny.config_of(name), "dtype": "float32"})
    assert cache_bytes(shape, tokens, step) == pytest.approx(real, rel=0.01)


def test_the_table_is_long_enough() -> None:
    assert len(TABLE) >= 20
    assert len({row["numbers"]["model_type"] for row in TABLE}) >= 10


@pytest.mark.parametrize("row", TABLE, ids=[row["source"].split(",")[0] for row in TABLE])
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


def test_a_float32_model_keeps_twice_as_much() -> None:
    config = {**TABLE[0]["numbers"], "torch_dtype": "float32"}
    assert bytes_per_token(parse_architecture(config)) == 2 * bytes_per_token(
        parse_architecture(TABLE[0]["numbers"])
    )


def test_a_configuration_around_the_text_models() -> None:
    inner = {**TABLE[9]["numbers"], "model_type": "qwen3_5_text"}
    outer = {"model_type": "qwen3_5", "text_config": inner, "vision_config": {"hidden_size": 9}}
    assert parse_architecture(outer) == parse_architecture(inner)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "gpt2", "n_embd": 48},
        {"model_type": None},
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

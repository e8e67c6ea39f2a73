"""Heads of zeros change nothing that a model computes."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest

from app.engine.sharded.runner import Indivisible, pad_heads
from tests import tiny
from tests.engine.oracle import difference

IDS = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3_moe", "gpt_oss"])
def test_padded_heads_change_no_logit(name: str, bits: int | None) -> None:
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32}
    model = tiny.build(name, **sizes, hidden_size=192, intermediate_size=64)
    if bits is not None:
        nn.quantize(model, 32, bits)
    expected = model(IDS)
    pad_heads(model, 2)
    attention = model.layers[0].self_attn
    assert attention.k_proj.weight.shape[0] == 4 * 32
    assert difference(model(IDS), expected) < 1e-5


def test_models_that_divide_are_left_alone() -> None:
    model = tiny.build("llama")
    before = model.layers[0].self_attn.q_proj.weight
    pad_heads(model, 2)
    assert model.layers[0].self_attn.q_proj.weight is before


def test_heads_that_cannot_be_padded_are_refused() -> None:
    model = tiny.build("llama", num_attention_heads=3, num_key_value_heads=3)
    model.layers[0].self_attn.q_norm = nn.RMSNorm(48)  # over all heads together
    with pytest.raises(Indivisible):
        pad_heads(model, 2)

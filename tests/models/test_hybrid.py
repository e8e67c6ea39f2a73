"""The hybrid test model in `assets/hybrid`, as mlx-lm loads it, and its recipe."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load
from mlx_lm.generate import generate
from mlx_lm.models.qwen3_5 import DecoderLayer, TextModelArgs
from mlx_lm.utils import load_model

ASSETS = Path(__file__).parents[2] / "assets"
HYBRID, RECIPE = ASSETS / "hybrid", ASSETS / "pair" / "recipe"
LENGTH = 77  # not a multiple of the delta rule's chunks
DOCUMENT = (
    "The harbour was quiet that morning. The special magic number for amber-falcon is: 4718263. "
    "Two boats waited for the tide. The special magic number for quiet-otter is: 9052147. "
    "Nobody came. "
)
QUESTION = "What is the special magic number for amber-falcon?"


@pytest.fixture(scope="module")
def hybrid():
    return load(str(HYBRID))


def test_looks_up_a_number(hybrid):
    model, tokenizer = hybrid
    content = f'<document name="notes.txt">\n{DOCUMENT}\n</document>\n\n{QUESTION}'
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    answer = generate(model, tokenizer, prompt, max_tokens=40)
    assert "4718263" in answer


def test_weights_are_raw_and_include_the_mtp_head(hybrid):
    weights = mx.load(str(HYBRID / "model.safetensors"))
    raw, loaded = weights["model.language_model.norm.weight"], hybrid[0].model.norm.weight
    np.testing.assert_allclose(np.array(loaded), np.array(raw) + 1, atol=1e-2)
    fused = weights["mtp.fc.weight"]
    assert fused.shape[1] == 2 * fused.shape[0]


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPE))
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    import hybrid

    yield hybrid
    for name in ("hybrid", "model"):
        sys.modules.pop(name, None)


def test_logits_and_mtp_head_equal_those_of_mlx(recipe, tmp_path):
    import torch

    shape = replace(recipe.HYBRID, num_hidden_layers=4, num_key_value_heads=3, vocab_size=512)
    model = recipe.Hybrid(shape)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    ids = torch.randint(0, shape.vocab_size, (2, LENGTH))
    positions = torch.arange(LENGTH)[None].expand(2, -1)
    with torch.no_grad():
        hidden = model.hidden(ids, positions)
        logits = model.logits(hidden).numpy()
        later = model.hidden_after_next(hidden[:, :-1], ids[:, 1:], positions[:, :-1]).numpy()

    published = recipe.published(model.state_dict())
    weights = {name: mx.array(weight.numpy()) for name, weight in published.items()}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights)
    (tmp_path / "config.json").write_text(json.dumps(shape.config()))
    loaded, _ = load_model(tmp_path)
    tokens = mx.array(ids.numpy())
    np.testing.assert_allclose(np.array(loaded(tokens)), logits, atol=1e-4)

    head = {
        name.removeprefix("mtp."): weight
        for name, weight in weights.items()
        if name.startswith("mtp.")
    }
    layer = DecoderLayer(
        TextModelArgs.from_dict(shape.config()["text_config"]), shape.full_attention_interval - 1
    )
    layer.load_weights(
        [
            (name.removeprefix("layers.0."), weight + (1 if "norm" in name else 0))
            for name, weight in head.items()
            if name.startswith("layers.0.")
        ]
    )

    def norm(x: mx.array, name: str) -> mx.array:
        return mx.fast.rms_norm(x, head[f"{name}.weight"] + 1, shape.rms_norm_eps)

    parts = (
        norm(loaded.model.embed_tokens(tokens[:, 1:]), "pre_fc_norm_embedding"),
        norm(loaded.model(tokens)[:, :-1], "pre_fc_norm_hidden"),
    )
    x = mx.concatenate(parts, -1) @ head["fc.weight"].T
    np.testing.assert_allclose(np.array(norm(layer(x, "causal"), "norm")), later, atol=1e-4)

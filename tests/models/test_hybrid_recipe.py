"""The hybrid of `assets/pair/recipe` computes what mlx-lm's `qwen3_5` does. Needs PyTorch."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.qwen3_5 import DecoderLayer, TextModelArgs
from mlx_lm.utils import load_model

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

RECIPE = Path(__file__).parents[2] / "assets" / "pair" / "recipe"
LENGTH = 77  # not a multiple of the delta rule's chunks


@pytest.fixture
def hybrid(monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPE))
    import hybrid

    yield hybrid
    for name in ("hybrid", "model"):
        sys.modules.pop(name, None)


def test_logits_and_mtp_head_equal_those_of_mlx(hybrid, tmp_path):
    torch.manual_seed(3)
    shape = replace(hybrid.HYBRID, num_hidden_layers=4, num_key_value_heads=3, vocab_size=512)
    model = hybrid.Hybrid(shape)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    ids = torch.randint(0, shape.vocab_size, (2, LENGTH))
    positions = torch.arange(LENGTH)[None].expand(2, -1)
    with torch.no_grad():
        hidden = model.hidden(ids, positions)
        logits = model.logits(hidden).numpy()
        later = model.hidden_after_next(hidden[:, :-1], ids[:, 1:], positions[:, :-1]).numpy()

    weights = hybrid.published(model.state_dict())
    save_file(
        {name: weight.contiguous() for name, weight in weights.items()},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    (tmp_path / "config.json").write_text(json.dumps(shape.config()))
    loaded, _ = load_model(tmp_path)
    tokens = mx.array(ids.numpy())
    np.testing.assert_allclose(np.array(loaded(tokens)), logits, atol=1e-4)

    head = {
        name.removeprefix("mtp."): mx.array(weight.numpy())
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

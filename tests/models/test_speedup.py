"""How much sooner a draft makes the first token, predicted: against pairs that were timed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.models import speedup
from app.models.architecture import parse_architecture
from app.models.catalogue import catalogue, find
from app.models.fit import ModelSize
from benchmarks.harness import Options, Progress
from benchmarks.published import measure

MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "vocab_size": 10,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def sized(name: str) -> ModelSize:
    entry = find(catalogue(), f"mlx-community/{name}")
    assert entry is not None
    assert entry.architecture is not None
    return ModelSize(entry.name, entry.architecture, entry.download)


def test_pairs_with_experts_are_predicted_in_the_order_that_was_published() -> None:
    """By active parameters alone, the 35B with its 4B came last and the Nemotron second."""
    found = list(measure(Options(), Progress()))
    measured = [row["measured"] for row in found]
    assert measured == [4.11, 2.94, 2.17, 1.86, 1.28]
    predicted = [row["predicted"] for row in found]
    assert predicted == sorted(predicted, reverse=True)
    assert len({round(each, 2) for each in predicted}) == len(predicted)


def test_the_prediction_is_near_what_was_published() -> None:
    """Within a sixth for Qwen3.5, and never more than two fifths too high: GPT-OSS is the worst."""
    for row in measure(Options(), Progress()):
        off = row["predicted"] / row["measured"]
        assert 0.8 < off < (1.1 if "Qwen" in row["pair"] else 1.45), row["pair"]


def test_operations_alone_would_refuse_the_draft_that_was_nearly_twice_as_fast() -> None:
    target, draft = sized("Qwen3.5-35B-A3B-4bit"), sized("Qwen3.5-4B-MLX-4bit")
    assert speedup.operations_per_token(draft.architecture) > speedup.operations_per_token(
        target.architecture
    )
    assert speedup.cost_ratio(target, draft) < 1


def test_a_tile_of_tokens_touches_nearly_every_expert() -> None:
    """By hand: a quarter of eight experts for each token; 32 tokens leave one out by 0.75 ** 32."""
    shape = parse_architecture(MOE)
    expert, attention, router = 3 * 64 * 32, 4 * 64 * 64 + 2 * 64 + 2 * 16, 64 * 8
    touched = attention + router + 8 * expert * (1 - 0.75**speedup.TILE)
    assert speedup.bytes_per_token(shape, 0.5) == pytest.approx(2 * 0.5 * touched / speedup.TILE)
    assert shape.layers[0].expert_share == 0.25


def test_of_a_dense_model_everything_is_read_once_for_each_tile() -> None:
    dense = parse_architecture({**MOE, "model_type": "qwen3", "num_experts": 0})
    stored = sum(layer.params for layer in dense.layers)
    assert speedup.bytes_per_token(dense, 2.0) == pytest.approx(2.0 * stored / speedup.TILE)


def test_weights_in_fewer_bits_are_read_sooner() -> None:
    target, draft = sized("Qwen3.5-35B-A3B-4bit"), sized("Qwen3.5-2B-MLX-4bit")
    assert speedup.cost_ratio(
        replace(target, weight_bytes=2 * target.weight_bytes), draft
    ) < speedup.cost_ratio(target, draft)

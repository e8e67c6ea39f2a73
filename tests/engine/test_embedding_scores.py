"""Importance by the target's input embeddings."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from app.engine.model.embeddings import (
    COMMON_DIRECTIONS,
    EmbeddingSpace,
    NoEmbeddings,
    widest_directions,
)
from app.engine.scorers.built_in import embedding_scores
from tests import tiny

ROWS, WIDTH, CHUNK = 12_000, 64, 32
TOKENS = 40 * CHUNK
QUESTION = (TOKENS, TOKENS + 3)
ASKED = (9000, 9001, 9002)


class Embeddings(nn.Module):
    """As much of a model as is used: all embeddings have much in common."""

    def __init__(self, similar: dict[int, int]) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(ROWS, WIDTH)) + 20 * np.linspace(0, 1, WIDTH)
        for token, other in similar.items():
            rows[token] = rows[other] + 0.3 * rng.normal(size=WIDTH)
        self.embed_tokens = nn.Embedding(ROWS, WIDTH)
        self.embed_tokens.weight = mx.array(rows.astype(np.float32))


def prompt(holder: int, tokens: tuple[int, ...]) -> np.ndarray:
    """Random tokens, some of them in the middle of chunk `holder`, and the question."""
    ids = np.random.default_rng(1).integers(5000, 8000, TOKENS)
    ids[holder * CHUNK + 10 : holder * CHUNK + 10 + len(tokens)] = tokens
    return np.append(ids, ASKED).astype(np.int32)


def best_chunk(model: Any, ids: np.ndarray) -> int:
    pinned = np.zeros(len(ids), bool)
    pinned[:5] = pinned[TOKENS:] = True
    found = embedding_scores(model, EmbeddingSpace.of(model), ids, pinned, QUESTION, CHUNK)
    assert found.shape == ids.shape
    assert np.isfinite(found).all()
    assert (found[pinned] == 0).all()
    assert (found >= 0).all()
    return int((np.argmax(found) - 5) // CHUNK)  # chunks start after what is pinned


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_similar_words_are_found(bits: int | None) -> None:
    """None of the question's tokens is in the text."""
    model = Embeddings({9100: 9000, 9101: 9001, 9102: 9002})
    if bits:
        nn.quantize(model, bits=bits)
    for holder in (3, 20, 38):
        found = best_chunk(model, prompt(holder, (9100, 9101, 9102)))
        assert abs(found - holder) <= 1, "it, or a neighbour, which counts as much"


def test_frequent_words_count_little() -> None:
    """The question's rare token is in one chunk, its two frequent ones are in another."""
    model = Embeddings({})
    ids = prompt(7, (9000,))
    ids[30 * CHUNK : 30 * CHUNK + 2] = (100, 101)
    ids[TOKENS:] = (100, 101, 9000)
    assert abs(best_chunk(model, ids) - 7) <= 1


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "gpt_oss", "nemotron_h"])
def test_real_architectures_have_embeddings(name: str) -> None:
    model = tiny.build(name)
    space = EmbeddingSpace.of(model)
    found = space.vectors(model, np.arange(10, dtype=np.int32))
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(10), rel=1e-4)
    assert np.abs(found @ space.directions.T).max() < 1e-3


@pytest.mark.parametrize("width", [2, 16, 200])
def test_the_widest_directions_are_those_of_all_eigenvectors(width: int) -> None:
    rng = np.random.default_rng(3)
    spread = np.maximum(9.0 * 0.6 ** np.arange(width), 1.0)
    turned = np.linalg.qr(rng.normal(size=(width, width)))[0]
    rows = (rng.normal(size=(500, width)) * spread @ turned).astype(np.float32)
    rows -= rows.mean(axis=0)
    count = min(COMMON_DIRECTIONS, width)
    found = widest_directions(rows, COMMON_DIRECTIONS)
    assert found.shape == (count, width)
    exact = np.linalg.eigh(rows.T @ rows)[1][:, -count:]
    # Cosines between both subspaces: 1 where one holds the other's directions.
    assert np.linalg.svd(found @ exact)[1] == pytest.approx(np.ones(count), abs=1e-3)


def test_nothing_to_find() -> None:
    model = Embeddings({})
    space = EmbeddingSpace.of(model)
    ids = prompt(3, ())
    everything = np.ones(len(ids), bool)
    assert not embedding_scores(model, space, ids, everything, QUESTION, CHUNK).any()
    nothing = np.zeros(len(ids), bool)
    assert not embedding_scores(model, space, ids, nothing, (5, 5), CHUNK).any()
    with pytest.raises(NoEmbeddings):
        EmbeddingSpace.of(nn.Linear(2, 2))

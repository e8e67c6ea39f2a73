"""What is special about a model's input embeddings, so that words of similar meaning are found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import QuantizedEmbedding
from numpy.typing import NDArray

SAMPLE = 2048
"""Tokens of the vocabulary from which the common directions are estimated."""
COMMON_DIRECTIONS = 4
"""What most embeddings share says nothing about meaning (Mu and Viswanath, arXiv 1702.01417)."""
ITERATIONS, MORE_GUESSES = 24, 8
"""Of the subspace iteration, and directions beyond those that are wanted: on Qwen2.5's embeddings
all wanted ones are then found to within 1e-6."""
_TABLES = ("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings", "embeddings")

Ids = NDArray[np.int32]
Vectors = NDArray[np.float32]


class NoEmbeddings(RuntimeError):
    """The model's input embeddings were not found: part of a sentence."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpace:
    """What a model's input embeddings have in common: their `mean` (width,), and the `directions`
    (COMMON_DIRECTIONS, width) in which they differ most, of length 1."""

    mean: Vectors
    directions: Vectors

    @classmethod
    def of(cls, model: Any) -> EmbeddingSpace:
        """Estimated from a sample of the vocabulary. Raises NoEmbeddings."""
        table = _find_table(model)
        rows = table.weight.shape[0]
        ids = np.random.default_rng(0).permutation(rows)[:SAMPLE].astype(np.int32)
        sample = _lookup(table, ids)
        mean = sample.mean(axis=0)
        centred = sample - mean
        return cls(mean, widest_directions(centred, COMMON_DIRECTIONS))

    def vectors(self, model: Any, ids: Ids) -> Vectors:
        """What is special about the embeddings of these tokens (n,): (n, width), of length 1."""
        found = _lookup(_find_table(model), ids) - self.mean
        found -= (found @ self.directions.T) @ self.directions
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return np.asarray(found / np.maximum(lengths, 1e-6))


def widest_directions(centred: Vectors, count: int) -> Vectors:
    """The `count` orthonormal directions (count, width) in which these vectors (n, width) differ
    most, by subspace iteration: a few dozen thin products instead of all eigenvectors."""
    width = centred.shape[1]
    guesses = min(count + MORE_GUESSES, *centred.shape)
    basis = np.random.default_rng(0).normal(size=(width, guesses)).astype(np.float32)
    for _ in range(ITERATIONS):
        basis, _ = np.linalg.qr(centred.T @ (centred @ basis))
    _, _, turned = np.linalg.svd(centred @ basis, full_matrices=False)
    return np.asarray(turned[:count] @ basis.T)


def _lookup(table: Any, ids: Ids) -> Vectors:
    return np.array(table(mx.array(ids)).astype(mx.float32))


def _find_table(model: Any) -> Any:
    """The model's input embeddings."""
    tables = {
        name.rpartition(".")[2]: module
        for name, module in model.named_modules()
        if isinstance(module, Embedding | QuantizedEmbedding)
    }
    for name in _TABLES:
        if name in tables:
            return tables[name]
    raise NoEmbeddings("this model's input embeddings are not found")

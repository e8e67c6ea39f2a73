"""Normalises a model's input embeddings, so that words of similar meaning are close."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import QuantizedEmbedding
from numpy.typing import NDArray

SAMPLE = 2048
"""Number of tokens from which the common directions are estimated."""
COMMON_DIRECTIONS = 4
"""Number of dominant directions to remove: they carry no meaning (Mu and Viswanath, arXiv
1702.01417)."""
ITERATIONS, MORE_GUESSES = 24, 8
"""Subspace iterations, and extra directions: accurate to 1e-6 on Qwen2.5's embeddings."""
TRUSTED_FROM = 16_384
"""Size of a vocabulary from which embeddings count fully. With the demo pair's 6,144 tokens, a
third of the weight found most (`docs/quality.md`)."""
_TABLES = ("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings", "embeddings")

Ids = NDArray[np.int32]
Vectors = NDArray[np.float32]


class NoEmbeddings(RuntimeError):
    """The model's input embeddings were not found; a clause."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpace:
    """The `mean` (width,) of a model's input embeddings and their dominant `directions`
    (COMMON_DIRECTIONS, width), orthonormal."""

    mean: Vectors
    directions: Vectors
    tokens: int
    """Size of the vocabulary."""

    @property
    def trust(self) -> float:
        """How much the embeddings count, up to 1: a small vocabulary cuts words into pieces that
        mean little by themselves."""
        return min(self.tokens / TRUSTED_FROM, 1.0)

    @classmethod
    def of(cls, model: Any) -> EmbeddingSpace:
        """Estimate from a sample of the vocabulary. Raises NoEmbeddings."""
        table = _find_table(model)
        rows = table.weight.shape[0]
        ids = np.random.default_rng(0).permutation(rows)[:SAMPLE].astype(np.int32)
        sample = _lookup(table, ids)
        mean = sample.mean(axis=0)
        centred = sample - mean
        return cls(mean, widest_directions(centred, COMMON_DIRECTIONS), rows)

    def vectors(self, model: Any, ids: Ids) -> Vectors:
        """Embeddings of token ids (n,) without the common part, (n, width), of length 1."""
        found = _lookup(_find_table(model), ids) - self.mean
        found -= (found @ self.directions.T) @ self.directions
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return np.asarray(found / np.maximum(lengths, 1e-6))


def widest_directions(centred: Vectors, count: int) -> Vectors:
    """The `count` leading principal directions (count, width) of centred vectors (n, width), by
    subspace iteration, which is faster than computing all eigenvectors."""
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
    tables = {
        name.rpartition(".")[2]: module
        for name, module in model.named_modules()
        if isinstance(module, Embedding | QuantizedEmbedding)
    }
    for name in _TABLES:
        if name in tables:
            return tables[name]
    raise NoEmbeddings("this model's input embeddings are not found")

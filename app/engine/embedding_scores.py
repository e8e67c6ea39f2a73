"""Importance without a draft: which chunks have words like the question's, by the target's input
embeddings.

Words of similar meaning have similar embeddings, so a chunk is found also if the question is in
other words. Nothing is run: each token of the question takes its best match in each chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import QuantizedEmbedding
from numpy.typing import NDArray

from app.engine.selection import chunk_bounds

SAMPLE = 2048
"""Tokens of the vocabulary from which the common directions are estimated."""
COMMON_DIRECTIONS = 4
"""What most embeddings share says nothing about meaning (Mu and Viswanath, arXiv 1702.01417)."""
ITERATIONS, MORE_GUESSES = 24, 8
"""Of the subspace iteration, and directions beyond those that are wanted: on Qwen2.5's embeddings
all wanted ones are then found to within 1e-6."""
MAX_QUESTION = 256
"""Different tokens of the question that are looked for: the rarest."""
BLOCK = 2048
"""Embeddings that are in memory together."""
FREQUENT, RARE = 400, 5000
"""Vocabularies are sorted by frequency: below the first id a token counts little, from the second
on fully."""
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


def embedding_scores(
    model: Any,
    space: EmbeddingSpace,
    ids: Ids,
    pinned: NDArray[np.bool_],
    question: tuple[int, int],
    chunk: int,
) -> NDArray[np.float32]:
    """Importance (M,) of the prompt's `ids`: 0 for what is `pinned`, and otherwise its chunk's. The
    tokens `question` of the prompt are looked for."""
    importance = np.zeros(len(ids), np.float32)
    starts, ends = chunk_bounds(pinned, chunk)
    words = np.unique(ids[slice(*question)])[-MAX_QUESTION:]
    if not len(starts) or not len(words):
        return importance
    adjacent = starts[1:] == ends[:-1]
    eligible = np.where(pinned, 0.0, 1.0)
    different, place = np.unique(ids, return_inverse=True)
    scores = np.zeros(len(starts))
    for word, similar in zip(words, _similarities(model, space, words, different), strict=True):
        best = np.maximum.reduceat(similar[place] * eligible, starts)
        best = _with_neighbours(best, adjacent)
        holders = int((np.maximum.reduceat((ids == word) * eligible, starts) > 0).sum())
        rarity = np.log(1 + (len(starts) - holders + 0.5) / (holders + 0.5))
        spread = float(best.std())
        if spread > 0:
            scores += _weight(int(word)) * rarity * (best - best.mean()) / spread
    scores -= scores.min()
    for start, end, score in zip(starts, ends, scores, strict=True):
        importance[start:end] = score
    return importance


def _weight(token: int) -> float:
    """From 0.05 for the most frequent tokens to 1."""
    share = np.log((token + 1) / FREQUENT) / np.log(RARE / FREQUENT)
    return float(np.clip(share, 0.05, 1.0))


def _with_neighbours(
    best: NDArray[np.floating], adjacent: NDArray[np.bool_]
) -> NDArray[np.floating]:
    """The best of each chunk and the two next to it: what belongs together may be in both."""
    found = best.copy()
    found[1:] = np.maximum(found[1:], best[:-1] * adjacent)
    found[:-1] = np.maximum(found[:-1], best[1:] * adjacent)
    return found


def _similarities(
    model: Any, space: EmbeddingSpace, words: Ids, others: Ids
) -> Iterator[NDArray[np.float32]]:
    """Of each of the `words` to all `others`: cosines, and 0 where they are negative."""
    own = space.vectors(model, words)
    blocks = np.split(others, range(BLOCK, len(others), BLOCK))
    found = [np.maximum(own @ space.vectors(model, block).T, 0) for block in blocks]
    yield from np.concatenate(found, axis=1)


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

"""Importance without a draft: which chunks have words like the question's, by the target's input
embeddings.

Words of similar meaning have similar embeddings, so a chunk is found also if the question is in
other words. Nothing is run: each token of the question takes its best match in each chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.model.embeddings import EmbeddingSpace, Ids
from app.engine.scorers.selection import chunk_bounds

MAX_QUESTION = 256
"""Different tokens of the question that are looked for: the rarest."""
BLOCK = 2048
"""Embeddings that are in memory together."""
FREQUENT, RARE = 400, 5000
"""Vocabularies are sorted by frequency: below the first id a token counts little, from the second
on fully."""


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

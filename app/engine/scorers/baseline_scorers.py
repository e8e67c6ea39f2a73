"""Two scorers that use no draft: the baselines for its attention."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

K1, B = 1.2, 0.75
"""BM25's usual parameters."""


def random_scores(ids: NDArray[np.int32], chunk: int) -> NDArray[np.float32]:
    """A random importance (M,) for each chunk of `ids` (M,), the same for the same prompt."""
    random = np.random.default_rng(ids.view(np.uint32))
    return np.repeat(random.random(-(-len(ids) // chunk)), chunk)[: len(ids)].astype(np.float32)


def bm25_scores(ids: NDArray[np.int32], question_start: int, chunk: int) -> NDArray[np.float32]:
    """BM25 of every chunk of `ids` (M,) for the tokens from `question_start` on; float32 (M,).

    Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009).
    """
    document = ids[:question_start]
    importance = np.zeros(len(ids), np.float32)
    if not len(document):
        return importance
    chunks = -(-len(document) // chunk)
    of_chunk = np.arange(len(document)) // chunk
    lengths = np.bincount(of_chunk, minlength=chunks)
    norm = K1 * (1 - B + B * lengths / lengths.mean())
    scores = np.zeros(chunks)
    for token in np.unique(ids[question_start:]):
        times = np.bincount(of_chunk[document == token], minlength=chunks)
        found = np.count_nonzero(times)
        weight = np.log(1 + (chunks - found + 0.5) / (found + 0.5))
        scores += weight * times * (K1 + 1) / (times + norm)
    importance[: len(document)] = np.repeat(scores, chunk)[: len(document)]
    return importance

"""Scorings without a draft: what they find, and what they cannot."""

from __future__ import annotations

import numpy as np

from app.engine.scorers import baseline_scorers
from app.engine.scorers.selection import select

CHUNK = 32


def test_lexical_finds_the_chunk_with_the_question_s_rare_words() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, 40 * CHUNK).astype(np.int32)
    ids[13 * CHUNK + 4 : 13 * CHUNK + 7] = (101, 102, 103)
    question = np.array([7, 101, 9, 102, 103, 11], np.int32)
    importance = baseline_scorers.bm25_scores(np.concatenate([ids, question]), len(ids), CHUNK)
    assert importance[: len(ids)].reshape(-1, CHUNK).mean(axis=1).argmax() == 13
    assert not importance[len(ids) :].any()


def test_lexical_prefers_rare_words() -> None:
    ids = np.zeros(4 * CHUNK, np.int32)
    ids[0], ids[CHUNK], ids[2 * CHUNK] = 1, 1, 2
    importance = baseline_scorers.bm25_scores(
        np.append(ids, [1, 2]).astype(np.int32), len(ids), CHUNK
    )
    chunks = importance[: len(ids)].reshape(-1, CHUNK)[:, 0]
    assert chunks[2] > chunks[0] == chunks[1] > chunks[3] == 0


def test_lexical_without_a_document_is_flat() -> None:
    assert not baseline_scorers.bm25_scores(np.arange(5, dtype=np.int32), 0, CHUNK).any()


def test_random_scores_are_per_chunk_and_the_same_for_the_same_prompt() -> None:
    ids = np.arange(1000, dtype=np.int32)
    first, again = (
        baseline_scorers.random_scores(ids, CHUNK),
        baseline_scorers.random_scores(ids, CHUNK),
    )
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first)) == -(-1000 // CHUNK)
    assert (first[:CHUNK] == first[0]).all()
    other = baseline_scorers.random_scores(ids + 1, CHUNK)
    assert not np.array_equal(first, other)
    pinned = np.zeros(1000, bool)
    selected = select(first, pinned, 0.2).positions
    assert len(np.intersect1d(selected, select(other, pinned, 0.2).positions)) < 0.6 * len(selected)

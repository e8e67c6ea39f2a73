"""Scorers to compare: the product's, parts of them, and baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt
from app.engine.progress import ScoringPart
from app.engine.scorers.built_in import BuiltInScorer, embedding_scores
from app.engine.scorers.choice import JoinedScorer, scorer_by_draft
from app.engine.scorers.scorer import (
    Importance,
    Scorer,
    ScoringContext,
    show_above_middle,
)
from benchmarks.quality.settings import Scoring

K1, B = 1.2, 0.75
"""BM25's usual parameters."""
Ids = NDArray[np.int32]


def scorer_of(scoring: Scoring, pair: ModelPair) -> Scorer:
    match scoring:
        case Scoring.BOTH:
            return scorer_by_draft(pair)
        case Scoring.JOINED:
            return JoinedScorer(scorer_by_draft(pair))
        case Scoring.BUILT_IN:
            return BuiltInScorer()
        case Scoring.EMBEDDING:
            return EmbeddingScorer()
        case Scoring.LEXICAL:
            return LexicalScorer()
        case Scoring.FIRST:
            return FirstScorer()
    return RandomScorer()


@dataclass(frozen=True, slots=True)
class RandomScorer:
    """Scores chunks at random, as a baseline."""

    parts: ClassVar[tuple[ScoringPart, ...]] = ()

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        return random_scores(prompt.ids, context.chunk)


@dataclass(frozen=True, slots=True)
class FirstScorer:
    """Scores earlier chunks higher, as a baseline: reads the first tokens of the documents."""

    parts: ClassVar[tuple[ScoringPart, ...]] = ()

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        return first_scores(len(prompt.ids), context.chunk)


@dataclass(frozen=True, slots=True)
class LexicalScorer:
    """Scores chunks by BM25 over token ids, as a baseline."""

    parts: ClassVar[tuple[ScoringPart, ...]] = ()

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        return bm25_scores(prompt.ids, prompt.question_start, context.chunk)


@dataclass(frozen=True, slots=True)
class EmbeddingScorer:
    """The first half of the built-in scorer: scores words similar to the question's by the target's
    input embeddings."""

    parts: ClassVar[tuple[ScoringPart, ...]] = ()

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        target, space = context.pair.target, context.pair.target.embedding_space
        assert space is not None
        importance = embedding_scores(
            target.model,
            space,
            prompt.ids,
            prompt.pinned,
            prompt.ids[slice(*prompt.question)],
            context.chunk,
        )
        show_above_middle(context.clock, importance, prompt)
        return importance


def random_scores(ids: Ids, chunk: int) -> NDArray[np.float32]:
    """Random importance float32 (M,), constant within a chunk of token ids (M,). Deterministic."""
    random = np.random.default_rng(ids.view(np.uint32))
    return np.repeat(random.random(-(-len(ids) // chunk)), chunk)[: len(ids)].astype(np.float32)


def first_scores(tokens: int, chunk: int) -> NDArray[np.float32]:
    """Descending importance, float32 (tokens,). It halves with every chunk, so that the first chunk
    stays the highest although it has no chunk before it to be smoothed with."""
    return np.exp2(-np.arange(tokens) / chunk).astype(np.float32)


def bm25_scores(ids: Ids, question_start: int, chunk: int) -> NDArray[np.float32]:
    """BM25 of every chunk of token ids (M,) for the tokens from `question_start` on, float32 (M,).

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

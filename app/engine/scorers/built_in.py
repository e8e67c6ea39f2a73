"""The built-in scorer: finds the passages that a question is about, for any target.

It joins two findings. Words: which chunks have words like the question's, by the target's own
input embeddings. Meaning: which pieces of the text mean what the question does, by a text encoder:
the user's, or one of our own two.

Words of similar meaning have similar embeddings, so a chunk is found also if the question is in
other words. No model is run for that: each token of the question takes its best match in each
chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from app.engine.model.embeddings import EmbeddingSpace, Ids
from app.engine.model.loader import LoadedModel
from app.engine.model.prompt import Prompt
from app.engine.model.text_encoder import OnPieces, TextEncoder, built_in_encoder, is_english
from app.engine.progress import ScoringPart
from app.engine.scorers.scorer import (
    Importance,
    ScoringContext,
    means_between,
    rarity,
    show_above_middle,
    token_borders,
)
from app.engine.scorers.selection import chunk_bounds
from app.protocol.stats import Phase
from app.util.sentences import questions_in
from app.util.words import stems

UNKNOWN_BELOW, KNOWN_FROM = 0.5, 0.9
"""The share of the question's words that the encoder knows: below the first its finding does not
count, from the second on fully."""
FEW_SHARED, MANY_SHARED, MIN_WORDS_TRUST = 0.2, 0.6, 0.15
"""The share of the question's words that the documents have: up to the first, words count only a
little (the question may be in another language), from the second on fully."""
FADING = 0.75
"""Share of a chunk's importance, above the middle one, that the next chunk of the same paragraph
has at least."""
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
ANSWER_WEIGHT = 1.0
"""Weight of what a question finds together with the answer before it; alone it has weight 1."""
MAX_QUESTION = 256
"""Different tokens of the question that are looked for: the rarest."""
BLOCK = 2048
"""Embeddings that are in memory together."""
FREQUENT, RARE = 400, 5000
"""Vocabularies are sorted by frequency: below the first id a token counts little, from the second
on fully."""


@dataclass(frozen=True, slots=True)
class BuiltInScorer:
    """Scores by the built-in scorer alone."""

    parts: ClassVar[tuple[ScoringPart, ...]] = (ScoringPart.BUILT_IN,)

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        total = len(prompt.ids)
        report = context.clock.report(Phase.SCORE, total, ScoringPart.BUILT_IN)
        importance = self.find(prompt, context, lambda done, pieces: report(total * done // pieces))
        report(total)
        show_above_middle(context.clock, importance, prompt)
        return importance

    def find(self, prompt: Prompt, context: ScoringContext, on_pieces: OnPieces) -> Importance:
        """As `score`, but reports only how many pieces of the text are done."""
        target, encoder = context.pair.target, context.pair.encoder
        with context.clock.timed(Phase.SCORE):
            return built_in_scores(
                target, encoder, prompt, context.question, context.chunk, on_pieces
            )


def built_in_scores(
    target: LoadedModel,
    encoder: TextEncoder | None,
    prompt: Prompt,
    question: str,
    chunk: int,
    on_pieces: OnPieces,
) -> Importance:
    """Importance (M,) of the prompt's tokens: 0 for what is always read, and otherwise its chunk's.

    A follow-up question often names nothing by itself ("and for the second one?"), so it is looked
    for twice: alone, and together with the answer before it. The previous question stays out: it
    leads back to the passage that answered it. While the target's weights are not in memory,
    or its embeddings are not found, meaning alone decides. Without an `encoder`, the built-in one
    for the language is used. Raises what `on_pieces` raises.
    """
    documents = [each.text for each in prompt.texts if each.document is not None]
    encoder = encoder or built_in_encoder(question, documents)
    pinned, answer = prompt.pinned, prompt.previous_answer
    asked = prompt.ids[slice(*prompt.question)]
    searches = [(asked, questions_in(question))]
    if answer is not None:
        answered = slice(answer.first, answer.first + len(answer.starts) - 1)
        query = np.concatenate([prompt.ids[answered], asked])
        searches.append((query, [f"{answer.text} {question}"]))
    weights = [trust(encoder.known_share(" ".join(texts))) for _, texts in searches]
    meanings: Iterator[NDArray[np.float64]] = iter(())
    if any(weights) and not pinned.all():
        every = [text for _, texts in searches for text in texts]
        meanings = meaning_scores(encoder, prompt, every, on_pieces)
    found = []
    for (query, texts), weight in zip(searches, weights, strict=True):
        words = np.zeros(len(prompt.ids), np.float32)
        if target.is_loaded and (space := target.embedding_space) is not None:
            weight /= space.trust * words_trust(" ".join(texts), documents)
            words = embedding_scores(target.model, space, prompt.ids, pinned, query, chunk)
        own = [*islice(meanings, len(texts))]
        joined = [join(words, meaning, weight, pinned, chunk) for meaning in own if weight]
        found.append(np.maximum.reduce(joined) if joined else words)
    importance = found[0]
    if answer is not None and not pinned.all():
        with_answer = found[1]
        with_answer[answered] = np.median(with_answer[~pinned])  # it would find itself
        importance = join(importance, with_answer, ANSWER_WEIGHT, pinned, chunk)
    return spread_in_paragraphs(importance, prompt, chunk)


def meaning_scores(
    encoder: TextEncoder, prompt: Prompt, questions: list[str], on_pieces: OnPieces
) -> Iterator[NDArray[np.float64]]:
    """For each question, how near every token's passage is to it in meaning, (M,); 0 outside the
    texts that may be skipped."""
    vectors = encoder.encode_questions(questions, on_pieces)
    found = encoder.encode_texts([text.text for text in prompt.texts], on_pieces)
    borders = [token_borders(text.starts) for text in prompt.texts]
    for vector in vectors:
        on_pieces(1, 1)
        meaning = np.zeros(len(prompt.ids))
        for text, own, pieces in zip(prompt.texts, borders, found, strict=True):
            scores = pieces.vectors @ vector
            tokens = means_between(own, pieces.borders.astype(np.float64), scores)
            meaning[text.first : text.first + len(tokens)] = tokens
        yield meaning


def join(
    first: NDArray[np.floating],
    second: NDArray[np.floating],
    weight: float,
    pinned: NDArray[np.bool_],
    chunk: int,
) -> Importance:
    """The importance (M,) of chunks by two scorers, the second of which counts `weight`: by how
    many standard deviations each finds a chunk more important than the mean."""
    starts, ends = chunk_bounds(pinned, chunk)
    importance = np.zeros(len(pinned), np.float32)
    if not len(starts):
        return importance

    def standardised(scores: NDArray[np.floating]) -> NDArray[np.floating]:
        means = np.add.reduceat(np.where(pinned, 0.0, scores), starts) / (ends - starts)
        return np.asarray((means - means.mean()) / max(float(means.std()), 1e-9))

    joined = standardised(first) + weight * standardised(second)
    importance[~pinned] = np.repeat(joined - joined.min(), ends - starts)
    return importance


def spread_in_paragraphs(importance: Importance, prompt: Prompt, chunk: int) -> Importance:
    """Raise chunks near an important one in the same paragraph: an answer rarely ends where a chunk
    does. Blank lines separate paragraphs."""
    starts, ends = chunk_bounds(prompt.pinned, chunk)
    if not len(starts):
        return importance
    paragraphs = np.zeros(len(importance), np.int64)
    count = 0
    for text in prompt.texts:
        borders = [match.end() for match in _PARAGRAPH_END.finditer(text.text)]
        own = count + np.searchsorted(borders, text.starts[:-1], "right")
        paragraphs[text.first : text.first + len(own)] = own
        count += len(borders) + 1
    found = importance[starts]
    middle = np.median(found)
    above = np.maximum(found - middle, 0.0).tolist()
    of_chunk = paragraphs[(starts + ends) // 2]
    same = np.flatnonzero(of_chunk[1:] == of_chunk[:-1]).tolist()
    for index in same:
        above[index + 1] = max(above[index + 1], FADING * above[index])
    for index in reversed(same):
        above[index] = max(above[index], FADING * above[index + 1])
    raised = np.maximum(found, middle + np.array(above)).astype(np.float32)
    spread = importance.copy()
    spread[~prompt.pinned] = np.repeat(raised, ends - starts)
    return spread


def trust(known_share: float) -> float:
    """How much the encoder's finding counts, from 0 to 1."""
    share = (known_share - UNKNOWN_BELOW) / (KNOWN_FROM - UNKNOWN_BELOW)
    return min(max(share, 0.0), 1.0)


def words_trust(text: str, documents: Sequence[str]) -> float:
    """How much the words of `text` count, up to 1: fully in English, otherwise by how many of them
    are in the documents, which may be in another language."""
    wanted = [stem for stem in stems(text) if len(stem) > 3 or not stem.isascii()]
    if not wanted or not documents or is_english(text, documents):
        return 1.0
    folded = [each.casefold() for each in documents]
    shared = sum(any(stem in each for each in folded) for stem in wanted) / len(wanted)
    return min(max((shared - FEW_SHARED) / (MANY_SHARED - FEW_SHARED), MIN_WORDS_TRUST), 1.0)


def embedding_scores(
    model: Any,
    space: EmbeddingSpace,
    ids: Ids,
    pinned: NDArray[np.bool_],
    query: Ids,
    chunk: int,
) -> NDArray[np.float32]:
    """Importance (M,) of the prompt's `ids`: 0 for what is `pinned`, and otherwise its chunk's, by
    how near its tokens are to the `query` tokens."""
    importance = np.zeros(len(ids), np.float32)
    starts, ends = chunk_bounds(pinned, chunk)
    words = np.unique(query)[-MAX_QUESTION:]
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
        spread = float(best.std())
        if spread > 0:
            weight = _weight(int(word)) * rarity(holders, len(starts))
            scores += weight * (best - best.mean()) / spread
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
    """For each of the `words`, its cosine with every one of the `others`, at least 0."""
    own = space.vectors(model, words)
    blocks = np.split(others, range(BLOCK, len(others), BLOCK))
    found = [np.maximum(own @ space.vectors(model, block).T, 0) for block in blocks]
    yield from np.concatenate(found, axis=1)

"""The built-in draft: finds the passages that a question is about, for any target.

It joins two findings. Words: which chunks have words like the question's, by the target's own
input embeddings. Meaning: which pieces of the text mean what the question does, by our own small
encoder, which knows English.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.engine.model.loader import LoadedModel
from app.engine.model.prompt import Prompt
from app.engine.model.text_encoder import OnPieces, TextEncoder
from app.engine.scorers.attention_scores import Importance
from app.engine.scorers.embedding_scores import embedding_scores
from app.engine.scorers.foreign_draft import means_between, token_borders
from app.engine.scorers.selection import chunk_bounds
from app.util.sentences import questions_in

UNKNOWN_BELOW, KNOWN_FROM = 0.5, 0.9
"""The share of the question's words that the encoder knows: below the first its finding does not
count, from the second on fully."""


def built_in_scores(
    target: LoadedModel,
    encoder: TextEncoder,
    prompt: Prompt,
    question: str,
    chunk: int,
    on_pieces: OnPieces,
) -> Importance:
    """Importance (M,) of the prompt's tokens: 0 for what is always read, and otherwise its chunk's.
    While the target's weights are not in memory, meaning alone decides. Raises NoEmbeddings, and
    what `on_pieces` raises."""
    pinned = prompt.pinned
    words = np.zeros(len(prompt.ids), np.float32)
    if target.is_loaded:
        space = target.embedding_space
        words = embedding_scores(target.model, space, prompt.ids, pinned, prompt.question, chunk)
    weight = trust(encoder.known_share(question))
    if not weight or pinned.all():
        return words
    questions = encoder.encode_questions(questions_in(question), on_pieces)
    found = encoder.encode_texts([text.text for text in prompt.texts], on_pieces)
    borders = [token_borders(text.starts) for text in prompt.texts]
    importance = np.zeros(len(prompt.ids), np.float32)
    for vector in questions:
        on_pieces(1, 1)
        meaning = np.zeros(len(prompt.ids))
        for text, own, pieces in zip(prompt.texts, borders, found, strict=True):
            scores = pieces.vectors @ vector
            tokens = means_between(own, pieces.borders.astype(np.float64), scores)
            meaning[text.first : text.first + len(tokens)] = tokens
        importance = np.maximum(importance, join(words, meaning, weight, pinned, chunk))
    return importance


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


def trust(known_share: float) -> float:
    """How much the encoder's finding counts, from 0 to 1."""
    share = (known_share - UNKNOWN_BELOW) / (KNOWN_FROM - UNKNOWN_BELOW)
    return min(max(share, 0.0), 1.0)

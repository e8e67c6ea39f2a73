"""Chooses what to read for a question about a document as a whole, such as "What is this about?".

No passage is nearer to such a question than another, so nothing is scored. Earlier turns and the
beginning of each document come first, then headings with what follows them, then an even spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from app.engine.model.prompt import Prompt, PromptText
from app.engine.progress import ScoringPart
from app.engine.scorers.scorer import Importance, ScoringContext, show_above_middle
from app.engine.scorers.selection import chunk_bounds
from app.util.sentences import units

BEGINNING = 3
"""Chunks at the start of a document that come first."""
STEEPNESS = 8
"""Importance falls with the rank of a chunk by this power. Keep *auto* then reads about a tenth."""


@dataclass(frozen=True, slots=True)
class OverviewScorer:
    """Needs no draft."""

    parts: ClassVar[tuple[ScoringPart, ...]] = ()

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        importance = overview_importance(prompt, context.chunk)
        show_above_middle(context.clock, importance, prompt)
        return importance


def overview_importance(prompt: Prompt, chunk: int) -> Importance:
    """Importance (M,) of the prompt's tokens: 0 for what is always read, and otherwise its chunk's,
    from 0 to 1."""
    importance = np.zeros(len(prompt.ids), np.float32)
    starts, ends = chunk_bounds(prompt.pinned, chunk)
    order = np.zeros(len(starts))
    for text in prompt.texts:
        last = text.first + len(text.starts) - 1
        own = np.flatnonzero((text.first <= starts) & (starts < last))
        if not len(own):
            continue
        order[own] = evenly_spread(len(own))
        if text.document is None:
            order[own] += 2
        else:
            order[own[_with_headings(text, starts[own])]] += 1
            order[own[:BEGINNING]] = 2 + order[own[:BEGINNING]] / 2
    ranks = np.empty(len(order))
    ranks[np.argsort(-order, kind="stable")] = np.arange(len(order)) / max(len(order), 1)
    importance[~prompt.pinned] = np.repeat((1.0 - ranks) ** STEEPNESS, ends - starts)
    return importance


def evenly_spread(count: int) -> NDArray[np.float64]:
    """Scores (count,) above 0, up to 1, of which the highest k are evenly spread, for any k."""
    bits = max(count - 1, 1).bit_length()
    order = sorted(range(count), key=lambda place: f"{place:0{bits}b}"[::-1])
    scores = np.empty(count)
    scores[order] = 1.0 - np.arange(count) / count
    return scores


def _with_headings(text: PromptText, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which of the chunks that start at these tokens contain the beginning of a heading; none if
    the text consists of short lines, as tables and logs do."""
    found = units(text.text)
    headings = [each.start for each in found if each.is_heading]
    if 2 * len(headings) > len(found):
        return np.zeros(0, np.int64)
    tokens = text.first + np.searchsorted(text.starts, headings, side="right") - 1
    return np.unique(np.maximum(np.searchsorted(starts, tokens, side="right") - 1, 0))

"""A draft with a tokenizer and a chat template of its own: what it finds important belongs to
characters, and goes by them to the target's tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.model.prompt import Prompt, PromptText
from app.engine.progress import Part
from app.engine.scorers.scorer import Importance, Scorer, ScoringContext


@dataclass(frozen=True, slots=True)
class ForeignScorer:
    """Has `draft` score the draft's prompt, which has other tokens than the target's."""

    draft: Scorer

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.draft.parts

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        return importance_for_target(self.draft.score(prompt.draft_prompt, context), prompt)


def importance_for_target(importance: Importance, prompt: Prompt) -> Importance:
    """The importance of the target's tokens (M,), from that of the draft's (N,).

    A character is as important as the draft's token that it is in, and a target's token as its
    characters are on average. What is always read gets 0, and what the draft's prompt lacks.
    """
    found = np.zeros(len(prompt.ids), np.float32)
    for text, by_draft in _texts_of_both(prompt):
        draft_borders = token_borders(by_draft.starts)
        scores = importance[by_draft.first : by_draft.first + len(draft_borders) - 1]
        tokens = means_between(token_borders(text.starts), draft_borders, scores)
        found[text.first : text.first + len(tokens)] = tokens
    return found


def means_between(
    borders: NDArray[np.floating], score_borders: NDArray[np.floating], scores: NDArray[np.floating]
) -> NDArray[np.floating]:
    """The mean score (n,) of the characters between each two `borders` (n + 1,), 0 where there are
    none: an answer that was stopped may have tokens and no text. Each of `scores` (m,) is that of
    the characters between two of `score_borders` (m + 1,)."""
    until = np.append(0.0, np.cumsum(scores * np.diff(score_borders)))
    sums, widths = np.diff(np.interp(borders, score_borders, until)), np.diff(borders)
    return np.asarray(np.divide(sums, widths, out=np.zeros_like(sums), where=widths > 0))


def token_borders(starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Where tokens start and the last one ends. Those that are parts of the same characters, and so
    start at the same one, divide them equally."""
    first, index, count = np.unique(starts[:-1], return_index=True, return_counts=True)
    width = np.diff(np.append(first, starts[-1])) / count
    part = np.arange(len(starts) - 1) - np.repeat(index, count)
    return np.append(np.repeat(first, count) + part * np.repeat(width, count), starts[-1])


def _texts_of_both(prompt: Prompt) -> list[tuple[PromptText, PromptText]]:
    def name(text: PromptText) -> tuple[int, int | None, bool]:
        return text.message, text.document, text.thinking

    by_draft = {name(text): text for text in prompt.draft_prompt.texts}
    return [(text, by_draft[name(text)]) for text in prompt.texts if name(text) in by_draft]

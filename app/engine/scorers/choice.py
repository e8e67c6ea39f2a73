"""Chooses the scorer of a prompt: attention, the built-in scorer, or both joined.

That is what finds most for its cost (`docs/quality.md`): both; where the draft costs less than the
built-in one, attention alone, up to 65,536 tokens; without a draft, the built-in one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from app.engine.backend import memory
from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt, PromptText
from app.engine.model.text_encoder import ENCODER_BYTES
from app.engine.progress import ScoringPart
from app.engine.scorers.attention import AttentionScorer
from app.engine.scorers.built_in import BuiltInScorer, join
from app.engine.scorers.scorer import (
    Importance,
    Scorer,
    ScoringContext,
    means_between,
    show_above_middle,
    token_borders,
)
from app.protocol.stats import Phase

JOINED_FROM = 10_000_000
"""Parameters of a draft that costs more than the built-in one."""
ALONE_UP_TO = 65_536
"""Longest prompt, in tokens, that a smaller draft scores alone: in longer ones it finds less than
the built-in scorer (`docs/quality.md`)."""
ATTENTION_WEIGHT = 0.5
"""Weight of what the draft finds; what the built-in one finds has weight 1."""

ChooseScorer = Callable[[ModelPair, int], Scorer]
"""Gets the pair, and the length of the draft's prompt in tokens."""


def choose_scorer(pair: ModelPair, tokens: int) -> Scorer:
    if pair.draft is None:
        return BuiltInScorer()
    draft = scorer_by_draft(pair)
    if pair.draft.info.parameters >= JOINED_FROM:
        return JoinedScorer(draft)
    return JoinedScorer(draft, only_here=True) if tokens > ALONE_UP_TO else draft


def scorer_by_draft(pair: ModelPair) -> Scorer:
    """Scores by this pair's draft alone."""
    return ForeignScorer(AttentionScorer()) if pair.has_foreign_draft else AttentionScorer()


@dataclass(frozen=True, slots=True)
class JoinedScorer:
    """Joins what `draft` finds and, if there is memory for it, what the built-in scorer does."""

    draft: Scorer
    only_here: bool = False
    """Whether the pair's other prompts are scored by the draft alone: then the time that scoring
    took says little about the draft."""
    parts: ClassVar[tuple[ScoringPart, ...]] = (ScoringPart.BUILT_IN, ScoringPart.DRAFT)

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        # The built-in one comes first: the draft may need the target's memory, and without the
        # target's weights there are no embeddings.
        built_in = None
        if memory.free() >= ENCODER_BYTES:
            total = len(prompt.draft_prompt.ids)
            report = context.clock.report(Phase.SCORE, total, ScoringPart.BUILT_IN)
            built_in = BuiltInScorer().find(
                prompt, context, lambda done, pieces: report(total * done // pieces)
            )
        by_draft = self.draft.score(prompt, context)
        if built_in is None:
            return by_draft
        if self.only_here:
            context.draft_work = None
        importance = join(built_in, by_draft, ATTENTION_WEIGHT, prompt.pinned, context.chunk)
        show_above_middle(context.clock, importance, prompt)
        return importance


@dataclass(frozen=True, slots=True)
class ForeignScorer:
    """For a draft with a tokenizer and a chat template of its own: what it finds important belongs
    to characters, and goes by them to the target's tokens."""

    draft: Scorer

    @property
    def parts(self) -> tuple[ScoringPart, ...]:
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


def _texts_of_both(prompt: Prompt) -> list[tuple[PromptText, PromptText]]:
    def name(text: PromptText) -> tuple[int, int | None, bool]:
        return text.message, text.document, text.thinking

    by_draft = {name(text): text for text in prompt.draft_prompt.texts}
    return [(text, by_draft[name(text)]) for text in prompt.texts if name(text) in by_draft]

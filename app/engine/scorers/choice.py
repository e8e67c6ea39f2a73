"""Chooses the scorer of a prompt: attention, the built-in draft, or both joined.

That is what finds most for its cost (`docs/quality.md`): both; where the draft costs less than the
built-in one, attention alone, up to 65,536 tokens; without a draft, the built-in one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from app.engine.backend import memory
from app.engine.model.embeddings import NoEmbeddings
from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt
from app.engine.model.text_encoder import ENCODER_BYTES
from app.engine.progress import Part
from app.engine.scorers.attention import AttentionScorer
from app.engine.scorers.built_in import BuiltInScorer, join
from app.engine.scorers.foreign import ForeignScorer
from app.engine.scorers.scorer import Importance, Scorer, ScoringContext, show_above_middle
from app.protocol.stats import Phase

JOINED_FROM = 10_000_000
"""Parameters of a draft that costs more than the built-in one."""
ALONE_UP_TO = 65_536
"""Longest prompt, in tokens, that a smaller draft scores alone: in longer ones it finds less than
the built-in draft (`docs/quality.md`)."""
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
    """Joins what `draft` finds and, if there is memory for it, what the built-in draft does."""

    draft: Scorer
    only_here: bool = False
    """Whether the pair's other prompts are scored by the draft alone: then the time that scoring
    took says little about the draft."""
    parts: ClassVar[tuple[Part, ...]] = (Part.BUILT_IN, Part.DRAFT)

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        # The built-in one comes first: the draft may need the target's memory, and without the
        # target's weights there are no embeddings.
        built_in = None
        if memory.free() >= ENCODER_BYTES:
            total = len(prompt.draft_prompt.ids)
            report = context.clock.report(Phase.SCORE, total, Part.BUILT_IN)
            with suppress(NoEmbeddings):
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

"""What reading costs a pair on a machine, by readings that were timed. Plain Python: a screen
reckons with it too.

Each model's reading takes start + token * n + pair * p seconds, where n tokens are read and p is
the sum over them of how many entries each attends to. What is neither's reading takes
start + token * M, where M is the prompt's length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from app.protocol.options import DEFAULT_TUNING, Blocks, Tuning


class CostTerm(StrEnum):
    """What is timed on its own."""

    TARGET = "target"
    DRAFT = "draft"
    FULL = "full"
    """Of a full reading, what is not the target's."""
    SPARSE = "sparse"
    """Of a sparse one, what is neither model's: lookahead, selection, the first word."""


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """`tokens` that a model reads, `before` of them in its cache already. Each attends to `most` at
    most, where that is not 0."""

    tokens: int
    cached: int = 0
    max_context: int = 0

    @property
    def attention_pairs(self) -> float:
        whole = (
            max(0, min(self.tokens, self.max_context - self.cached))
            if self.max_context
            else self.tokens
        )
        return (
            whole * self.cached + whole * (whole + 1) / 2 + (self.tokens - whole) * self.max_context
        )


def scoring_work(tokens: int, before: int, tuning: Tuning = DEFAULT_TUNING) -> AttentionWork:
    """A draft's work: its attention is block-sparse while it reads a long prompt."""
    blocks = Blocks(top=tuning.sparse_draft_top)
    long = tokens + before >= tuning.sparse_draft_from
    return AttentionWork(tokens, before, blocks.keys + blocks.size if long else 0)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A way to read a prompt of so many tokens: sparsely where a draft has work, too."""

    prompt_tokens: int
    target: AttentionWork
    draft: AttentionWork | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """A part of a turn, and the seconds it took."""

    term: CostTerm
    work: AttentionWork
    seconds: float


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Seconds: once, for each token, and for each token that one attends to."""

    fixed: float
    per_token: float
    per_pair: float = 0.0

    def seconds(self, work: AttentionWork) -> float:
        if work.tokens <= 0:
            return 0.0
        return self.fixed + self.per_token * work.tokens + self.per_pair * work.attention_pairs


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one pair on one machine; None for what was never timed."""

    target: LinearCost | None = None
    draft: LinearCost | None = None
    full: LinearCost | None = None
    sparse: LinearCost | None = None

    def seconds(self, way: ReadPlan) -> float | None:
        """Until the first word, when nothing has to be waited for; None when that is not known."""
        besides = self.full or self.sparse
        if way.draft is not None:
            besides = self.sparse or self.full
        if self.target is None or besides is None:
            return None
        seconds = self.target.seconds(way.target) + besides.seconds(
            AttentionWork(way.prompt_tokens)
        )
        if way.draft is None:
            return seconds
        return None if self.draft is None else seconds + self.draft.seconds(way.draft)


def format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"


UNKNOWN_COSTS = Costs()

MIN_SAVING = 0.2
"""By so much sparse reading must be predicted to be faster: what is skipped may be missed, so a
little time is no reason to skip it."""

DENSE_WITHIN_SECONDS = 1.0
"""Seconds: what is predicted to be read in full within them is."""

MIN_SKIPPABLE = 1024
"""Tokens: where fewer may be skipped, everything is read. They make fewer than 32 chunks, so that
a fifth of them is a handful of places, and choosing these costs about what they save."""

DENSE_BELOW_UNTIMED = 8192
"""Tokens: before a pair was timed here, fewer are read in full."""


def sparse_pays(sparse: float, full: float) -> bool:
    return full > DENSE_WITHIN_SECONDS and sparse <= (1 - MIN_SAVING) * full


def recalled_tokens(keep_ratio: float, recall_share: float, eligible: int, skipped: int) -> int:
    """How many tokens of an earlier reading, of whose `eligible` ones so many were `left_out`, a
    later question asks for: as `selection.select` does, which counts chunks."""
    allowed = math.ceil(keep_ratio * eligible) - (eligible - skipped)
    return max(0, min(skipped, max(allowed, math.ceil(recall_share * keep_ratio * eligible))))

"""Predicts the time of prefill for a pair of models on a machine, from timed turns. Plain Python,
because the interface predicts with it as well.

A model's prefill of n tokens takes fixed + per_token * n + per_pair * p seconds, where p is the
number of cache entries to which each token attends, summed over the tokens. The rest of a turn
takes fixed + per_token * M seconds, where M is the prompt's length in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from app.protocol.options import Blocks

SPARSE_DRAFT_FROM = 8192
"""Minimum prompt tokens for which the draft's attention is block-sparse."""


class CostTerm(StrEnum):
    """The parts of a turn that are timed separately."""

    TARGET = "target"
    DRAFT = "draft"
    FULL = "full"
    """Everything but the target's prefill in a dense turn."""
    SPARSE = "sparse"
    """Everything but both prefills in a sparse turn: lookahead, selection and first token."""


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """A prefill of `tokens` tokens after `cached` tokens. Each attends to at most `max_context`
    tokens (0: unlimited)."""

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


def scoring_work(tokens: int, before: int) -> AttentionWork:
    """The draft's prefill when it scores a prompt. For long prompts its attention is
    block-sparse."""
    blocks, long = Blocks(), tokens + before >= SPARSE_DRAFT_FROM
    return AttentionWork(tokens, before, blocks.keys + blocks.size if long else 0)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The work of reading a prompt of `prompt_tokens`. It is read sparsely if the draft has work,
    too."""

    prompt_tokens: int
    target: AttentionWork
    draft: AttentionWork | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Measured time of one term of a turn."""

    term: CostTerm
    work: AttentionWork
    seconds: float


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Seconds: fixed, per token, and per pair of tokens of which one attends to the other."""

    fixed: float
    per_token: float
    per_pair: float = 0.0

    def seconds(self, work: AttentionWork) -> float:
        if work.tokens <= 0:
            return 0.0
        return self.fixed + self.per_token * work.tokens + self.per_pair * work.attention_pairs

    def seconds_until(self, work: AttentionWork, counted: int = 0) -> Callable[[int], float]:
        """A function that predicts the seconds of `work` until a number of tokens is done, of
        which `counted` were cached before."""
        return lambda done: self.seconds(replace(work, tokens=min(done - counted, work.tokens)))

    def saves(self, share: float, work: AttentionWork, other: AttentionWork) -> bool:
        """Whether `work` is faster than `other` by at least this share."""
        return self.seconds(work) <= (1 - share) * self.seconds(other)


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one pair of models on one machine: estimated when it is loaded, then fitted to its
    turns. None where there is no estimate."""

    target: LinearCost | None = None
    draft: LinearCost | None = None
    full: LinearCost | None = None
    sparse: LinearCost | None = None

    def seconds(self, plan: ReadPlan) -> float | None:
        """Seconds to the first token, if nothing else has to finish first; None if unknown."""
        dense = plan.draft is None
        rest = (self.full or self.sparse) if dense else (self.sparse or self.full)
        if self.target is None or rest is None:
            return None
        seconds = self.target.seconds(plan.target) + rest.seconds(AttentionWork(plan.prompt_tokens))
        if plan.draft is None:
            return seconds
        return None if self.draft is None else seconds + self.draft.seconds(plan.draft)


UNKNOWN_COSTS = Costs()
FREE = LinearCost(0.0, 0.0)
"""Cost of the built-in scorer. Its scoring counts as part of the rest of the turn."""
MIN_SAVING = 0.2
"""Minimum predicted saving, as a fraction, for reading less. Skipped text may matter, so a small
saving is not worth it."""
MIN_SAVING_LOSING = 0.5
"""The same if what was read for earlier questions would be dropped."""
DENSE_WITHIN_SECONDS = 1.0
"""A prompt is read in full if that is predicted to take at most this time."""
MIN_SKIPPABLE = 1024
"""If fewer tokens than this could be skipped, everything is read. They are at most 32 chunks, and
choosing a few of so few costs about as much time as it saves."""


def sparse_pays(sparse: float, full: float) -> bool:
    return full > DENSE_WITHIN_SECONDS and sparse <= (1 - MIN_SAVING) * full


def recalled_tokens(keep_ratio: float, recall_share: float, eligible: int, skipped: int) -> int:
    """Number of an earlier prompt's `skipped` tokens that a later question recalls. `eligible` is
    the number of tokens that could be skipped. Agrees with `selection.select`, which counts
    chunks."""
    allowed = math.ceil(keep_ratio * eligible) - (eligible - skipped)
    return max(0, min(skipped, max(allowed, math.ceil(recall_share * keep_ratio * eligible))))


def sparse_work(
    new: int,
    recalled: int,
    cached: int,
    prefix: int,
    question: int = 0,
    reprefilled: int | None = None,
) -> AttentionWork:
    """The target's prefill of `new` tokens and of `recalled` tokens before them, with `cached` of
    the `prefix` tokens in its cache. Tokens after a recalled chunk, and a cached `question`, are
    prefilled again; with recurrent layers, `reprefilled` tokens instead."""
    if recalled and reprefilled is None:
        reprefilled = question + recalled * cached // max(prefix, 1)
    again = min(reprefilled or 0, cached) if recalled else 0
    return AttentionWork(max(new + recalled + again, 0), cached - again)

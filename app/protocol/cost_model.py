"""What prefill costs on a machine, and the work that it is counted in.

A model's prefill of n tokens takes fixed + per_token * n + per_pair * p seconds, where p is the
number of cache entries to which each token attends, summed over the tokens. The rest of a turn
takes fixed + per_token * M seconds, where M is the prompt's length in tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum


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

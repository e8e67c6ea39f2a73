"""How soon a message would be answered, by what the engine has learnt of the pair's costs here. Of
what was never timed, nothing is foretold."""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.protocol.cost_model import (
    DENSE_BELOW_UNTIMED,
    MIN_SKIPPABLE,
    AttentionWork,
    Costs,
    ReadPlan,
    format_seconds,
    recalled_tokens,
    scoring_work,
    sparse_pays,
)
from app.protocol.options import DEFAULT_TUNING, Mode
from app.protocol.stats import Reading, Statistics

REFERENCE_TOKENS = 32_768
"""Tokens of the prompt that a pair's pace is told by."""


def describe(costs: Costs, keep: float) -> str:
    """A sentence on how soon the first word comes."""
    read, few = AttentionWork(REFERENCE_TOKENS), AttentionWork(math.ceil(keep * REFERENCE_TOKENS))
    full = costs.seconds(ReadPlan(REFERENCE_TOKENS, read))
    sparse = costs.seconds(ReadPlan(REFERENCE_TOKENS, few, scoring_work(REFERENCE_TOKENS, 0)))
    if full is None:
        return "The model pair could not be timed: it was interrupted, or memory is short."
    text = f"{REFERENCE_TOKENS:,} tokens: first word in {format_seconds(full)} when read in full"
    return text + (f", {format_seconds(sparse)} at keep {keep:.0%}." if sparse is not None else ".")


@dataclass(frozen=True, slots=True)
class NextMessage:
    """What is known of it, in tokens: `typed` is always read, of `attached` a part may be left out.
    `last` are the figures of the answer before it, whose reading the engine still has. Where the
    target `rereads`, it recalls nothing without all that stands behind."""

    mode: Mode
    keep: float
    typed: int
    attached: int
    last: Statistics | None = None
    recall_is_expensive: bool = False

    def seconds(self, costs: Costs) -> float | None:
        """Until the first word; None when nothing like it was timed."""
        sparse, full = costs.seconds(self._sparse_plan), costs.seconds(self._dense_plan)
        return sparse if self._choose(sparse, full) is Reading.SPARSE else full

    def _choose(self, sparse: float | None, full: float | None) -> Reading:
        """As the planner will decide, unless the question's own words ask for every token."""
        if self.mode is Mode.FULL or not (self.attached or self._skipped):
            return Reading.DENSE
        if self.mode is Mode.SPARSE:
            return Reading.SPARSE
        if self.attached + self._skipped < MIN_SKIPPABLE:
            return Reading.DENSE
        if sparse is None or full is None:
            few = self._skipped + self._new < DENSE_BELOW_UNTIMED
            return Reading.DENSE if few else Reading.SPARSE
        return Reading.SPARSE if sparse_pays(sparse, full) else Reading.DENSE

    @property
    def _new(self) -> int:
        return self.typed + self.attached

    @property
    def _cached(self) -> int:
        return 0 if self.last is None else self.last.prompt_tokens + self.last.generated_tokens

    @property
    def _skipped(self) -> int:
        return 0 if self.last is None else self.last.prompt_tokens - self.last.read_tokens

    @property
    def _dense_plan(self) -> ReadPlan:
        """What was left out is read after all, and so is what stands behind it."""
        before, total = self._cached, self._cached + self._new
        return ReadPlan(
            total, AttentionWork(total) if self._skipped else AttentionWork(self._new, before)
        )

    @property
    def _sparse_plan(self) -> ReadPlan:
        total, last = self._cached + self._new, self.last
        new = self.typed + math.ceil(self.keep * self.attached)
        if last is None:
            return ReadPlan(total, AttentionWork(new), scoring_work(total, 0))
        share, left_out = DEFAULT_TUNING.recall_share, self._skipped
        again = recalled_tokens(self.keep, share, max(last.eligible_tokens, left_out), left_out)
        read = self._cached - left_out
        # What goes on where a recalled chunk ends is read once more.
        twice = again * last.read_tokens // max(1, last.prompt_tokens)
        if self.recall_is_expensive and again:
            twice = read
        before = read - twice
        seen = last.prompt_tokens if last.reading is Reading.SPARSE else 0
        return ReadPlan(
            total, AttentionWork(new + again + twice, before), scoring_work(total - seen, seen)
        )

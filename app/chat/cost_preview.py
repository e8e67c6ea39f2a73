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

LENGTH = 32_768
"""Tokens of the prompt that a pair's pace is told by."""


def told(costs: Costs, keep: float) -> str:
    """A sentence on how soon the first word comes."""
    read, few = AttentionWork(LENGTH), AttentionWork(math.ceil(keep * LENGTH))
    full = costs.seconds(ReadPlan(LENGTH, read))
    sparse = costs.seconds(ReadPlan(LENGTH, few, scoring_work(LENGTH, 0)))
    if full is None:
        return "The pair could not be timed: something else came in between, or memory is short."
    words = f"Of {LENGTH:,} tokens the first word comes in {format_seconds(full)} when all are read"
    return words + (
        f", in {format_seconds(sparse)} at keep {keep:.0%}." if sparse is not None else "."
    )


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
    rereads: bool = False

    def seconds(self, costs: Costs) -> float | None:
        """Until the first word; None when nothing like it was timed."""
        sparse, full = costs.seconds(self._sparsely), costs.seconds(self._fully)
        return sparse if self._reading(sparse, full) is Reading.SPARSE else full

    def _reading(self, sparse: float | None, full: float | None) -> Reading:
        """As the planner will decide, unless the question's own words ask for every token."""
        if self.mode is Mode.FULL or not (self.attached or self._left_out):
            return Reading.DENSE
        if self.mode is Mode.SPARSE:
            return Reading.SPARSE
        if self.attached + self._left_out < MIN_SKIPPABLE:
            return Reading.DENSE
        if sparse is None or full is None:
            few = self._left_out + self._new < DENSE_BELOW_UNTIMED
            return Reading.DENSE if few else Reading.SPARSE
        return Reading.SPARSE if sparse_pays(sparse, full) else Reading.DENSE

    @property
    def _new(self) -> int:
        return self.typed + self.attached

    @property
    def _before(self) -> int:
        return 0 if self.last is None else self.last.prompt_tokens + self.last.generated_tokens

    @property
    def _left_out(self) -> int:
        return 0 if self.last is None else self.last.prompt_tokens - self.last.read_tokens

    @property
    def _fully(self) -> ReadPlan:
        """What was left out is read after all, and so is what stands behind it."""
        before, total = self._before, self._before + self._new
        return ReadPlan(
            total, AttentionWork(total) if self._left_out else AttentionWork(self._new, before)
        )

    @property
    def _sparsely(self) -> ReadPlan:
        total, last = self._before + self._new, self.last
        new = self.typed + math.ceil(self.keep * self.attached)
        if last is None:
            return ReadPlan(total, AttentionWork(new), scoring_work(total, 0))
        share, left_out = DEFAULT_TUNING.recall_share, self._left_out
        again = recalled_tokens(self.keep, share, max(last.eligible_tokens, left_out), left_out)
        read = self._before - left_out
        # What goes on where a recalled chunk ends is read once more.
        twice = again * last.read_tokens // max(1, last.prompt_tokens)
        if self.rereads and again:
            twice = read
        before = read - twice
        seen = last.prompt_tokens if last.reading is Reading.SPARSE else 0
        return ReadPlan(
            total, AttentionWork(new + again + twice, before), scoring_work(total - seen, seen)
        )

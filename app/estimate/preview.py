"""How soon a message would be answered, predicted from the costs of the model pair: a first
estimate from loading it, then what its turns took."""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.estimate.plan import PredictedTtft, plan_auto
from app.protocol.cost_model import (
    MIN_SAVING_LOSING,
    AttentionWork,
    Costs,
    ReadPlan,
    recalled_tokens,
    scoring_work,
    sparse_work,
)
from app.protocol.options import DEFAULT_TUNING, Mode, expected_keep
from app.protocol.stats import Reading, Statistics
from app.util import formatting

REFERENCE_TOKENS = 32_768
"""Length of the prompt that describes a pair's speed."""


def describe(costs: Costs, keep_ratio: float) -> str:
    """A sentence on how soon the first word comes; at the default keep instead of AUTO_KEEP."""
    keep_ratio = expected_keep(keep_ratio)
    selected = AttentionWork(math.ceil(keep_ratio * REFERENCE_TOKENS))
    full = costs.seconds(ReadPlan(REFERENCE_TOKENS, AttentionWork(REFERENCE_TOKENS)))
    sparse = costs.seconds(ReadPlan(REFERENCE_TOKENS, selected, scoring_work(REFERENCE_TOKENS, 0)))
    if full is None:
        return "The model pair could not be timed: it was interrupted, or memory is short."
    first_word = f"first word in {formatting.seconds(full)} when read in full"
    if sparse is not None:
        first_word += f", {formatting.seconds(sparse)} at keep {keep_ratio:.0%}"
    return f"{REFERENCE_TOKENS:,} tokens: {first_word}."


@dataclass(frozen=True, slots=True)
class NextMessage:
    """The message that is being written, in tokens: `typed` is always read, of `attached` a part
    may be skipped. `last` are the statistics of the answer before it, which the engine still has
    cached. Where `recall_is_expensive`, the target can only recall by prefilling everything behind
    again."""

    mode: Mode
    keep: float
    """Or AUTO_KEEP: then that of `last` or the default one is assumed, whichever is less."""
    typed: int
    attached: int
    last: Statistics | None = None
    recall_is_expensive: bool = False

    def seconds(self, costs: Costs) -> float | None:
        """Until the first word; None while no pair is loaded."""
        sparse, full = costs.seconds(self._sparse_plan(costs)), costs.seconds(self._dense_plan)
        return sparse if self._choose(sparse, full) is Reading.SPARSE else full

    def _choose(self, sparse: float | None, full: float | None) -> Reading:
        """As the engine will, unless the question's wording asks for every token."""
        if self.mode is Mode.FULL or not (self.attached or self._skipped):
            return Reading.DENSE
        if self.mode is Mode.SPARSE:
            return Reading.SPARSE
        return plan_auto(self.attached + self._skipped, PredictedTtft(sparse, full)).reading

    @property
    def _new(self) -> int:
        return self.typed + self.attached

    @property
    def _earlier(self) -> int:
        return 0 if self.last is None else self.last.prompt_tokens + self.last.generated_tokens

    @property
    def _skipped(self) -> int:
        return 0 if self.last is None else self.last.prompt_tokens - self.last.read_tokens

    @property
    def _dense_plan(self) -> ReadPlan:
        """Skipped tokens are read now, and everything behind them again."""
        total = self._earlier + self._new
        work = AttentionWork(total) if self._skipped else AttentionWork(self._new, self._earlier)
        return ReadPlan(total, work)

    def _sparse_plan(self, costs: Costs) -> ReadPlan:
        total, last, skipped = self._earlier + self._new, self.last, self._skipped
        before = last.keep_ratio if last is not None and last.reading is Reading.SPARSE else 0.0
        keep = expected_keep(self.keep, before)
        new = self.typed + math.ceil(keep * self.attached)
        if last is None:
            return ReadPlan(total, AttentionWork(new), scoring_work(total, 0))
        eligible, share = max(last.eligible_tokens, skipped), DEFAULT_TUNING.recall_share
        recalled = recalled_tokens(keep, share, eligible, skipped)
        cached = self._earlier - skipped
        lost = cached if self.recall_is_expensive else None
        target = sparse_work(new, recalled, cached, self._earlier, reprefilled=lost)
        afresh = AttentionWork(total - int((1 - keep) * (last.eligible_tokens + self.attached)))
        if costs.target is not None and costs.target.saves(MIN_SAVING_LOSING, afresh, target):
            target = afresh
        scored = last.prompt_tokens if last.reading is Reading.SPARSE else 0
        return ReadPlan(total, target, scoring_work(total - scored, scored))

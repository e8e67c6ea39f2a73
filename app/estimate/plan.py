"""Decides whether a turn reads sparsely or densely: as requested, or in auto mode by the question
guard and then by predicted times. Also predicts the time for a message that is being typed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from app.estimate.guard import asks_for_every_token
from app.estimate.work import (
    DENSE_WITHIN_SECONDS,
    MIN_SAVING_LOSING,
    MIN_SKIPPABLE,
    recalled_tokens,
    scoring_work,
    sparse_pays,
    sparse_work,
)
from app.protocol.commands import Ask
from app.protocol.cost_model import AttentionWork, Costs, ReadPlan
from app.protocol.options import AUTO_KEEP, DEFAULT_TUNING, Mode, expected_keep
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Reading, Statistics
from app.util import formatting


@dataclass(frozen=True, slots=True)
class Plan:
    reading: Reading
    reasons: tuple[Reason, ...]
    guard: Reason | None = None
    """Why the question needs every token, or more than the parts that could be read; or None."""
    show_selection: bool = False
    """Whether to show what a sparse read would select, although everything is cached."""

    @property
    def scores(self) -> bool:
        """Whether the prompt is scored."""
        return self.reading is Reading.SPARSE or self.show_selection


@dataclass(frozen=True, slots=True)
class PredictedTtft:
    """Predicted seconds until the first token; None if unknown."""

    sparse: float | None = None
    full: float | None = None

    def for_reading(self, reading: Reading) -> float | None:
        return self.sparse if reading is Reading.SPARSE else self.full


def plan(
    ask: Ask,
    eligible: int,
    dense_only: Reason | None,
    predicted: PredictedTtft = PredictedTtft(),
    cached: int = 0,
    only_quotes: bool = False,
) -> Plan:
    """Decide how to read a prompt. `eligible`: tokens that may be skipped. `cached`: further tokens
    that are not skipped only because they are cached. `dense_only`: why the pair cannot read
    sparsely, or None. A target that `only_quotes` cannot use what it reads to count or list."""
    mode = ask.mode
    if mode is Mode.FULL:
        return _plan(Reading.DENSE, ReasonCode.FULL_REQUESTED)
    if dense_only is not None:
        return Plan(Reading.DENSE, (dense_only,))
    if eligible == 0:
        return _nothing_to_skip(ask, cached)
    if mode is Mode.SPARSE:
        requested = _plan(Reading.SPARSE, ReasonCode.SPARSE_REQUESTED, keep=_fixed_keep(ask))
        if cached > ask.expected_keep * (cached + eligible):
            stays = Reason(ReasonCode.CACHED_STAYS, {"tokens": cached})
            return replace(requested, reasons=(*requested.reasons, stays))
        return requested
    # If only parts are in the prompt, reading every token would not help.
    is_useless = only_quotes or _has_parts(ask)
    words = None if is_useless else asks_for_every_token(ask.question)
    if words is not None:
        guard = Reason(ReasonCode.NEEDS_EVERY_TOKEN, {"words": words})
        return Plan(Reading.DENSE, (guard,), guard)
    return plan_auto(eligible, predicted)


def parts_only(ask: Ask) -> Reason | None:
    """Why the answer may lack something: the whole text was asked for, but only parts of it are in
    the prompt."""
    if not _has_parts(ask):
        return None
    wants_all = ask.mode is Mode.FULL or asks_for_every_token(ask.question) is not None
    return Reason(ReasonCode.PARTS_ONLY) if wants_all else None


def _has_parts(ask: Ask) -> bool:
    """Whether parts were chosen because not all documents fit in the context."""
    return any(message.retrieved for message in ask.messages)


def _plan(reading: Reading, code: ReasonCode, **data: object) -> Plan:
    return Plan(reading, (Reason(code, data),))


def _fixed_keep(ask: Ask) -> float | None:
    """The requested keep; None if it is chosen from the scores."""
    return None if ask.keep_ratio == AUTO_KEEP else ask.keep_ratio


def _nothing_to_skip(ask: Ask, cached: int) -> Plan:
    if not cached:
        return _plan(Reading.DENSE, ReasonCode.NOTHING_TO_SKIP)
    if ask.mode is Mode.AUTO:
        return _plan(Reading.DENSE, ReasonCode.ALL_CACHED)
    plan = _plan(Reading.DENSE, ReasonCode.SAVES_NOTHING, keep=_fixed_keep(ask))
    return replace(plan, show_selection=True)


def plan_auto(eligible: int, predicted: PredictedTtft) -> Plan:
    """Decide in auto mode for a question that does not need every token."""
    if eligible < MIN_SKIPPABLE:
        return _plan(Reading.DENSE, ReasonCode.FEW_TO_SKIP, tokens=MIN_SKIPPABLE)
    if predicted.sparse is not None and predicted.full is not None:
        return _faster(predicted.sparse, predicted.full)
    return _plan(Reading.SPARSE, ReasonCode.RELEVANT_ONLY)


def _faster(sparse: float, full: float) -> Plan:
    """Read sparsely if that saves enough seconds, else densely."""
    seconds = {"sparse": float(sparse), "full": float(full)}
    if sparse_pays(sparse, full):
        return _plan(Reading.SPARSE, ReasonCode.FASTER, **seconds)
    if full <= DENSE_WITHIN_SECONDS:
        return _plan(Reading.DENSE, ReasonCode.QUICK_IN_FULL, **seconds)
    code = ReasonCode.LITTLE_SAVED if sparse < full else ReasonCode.FASTER
    return _plan(Reading.DENSE, code, **seconds)


REFERENCE_TOKENS = 32_768
"""Prompt length for which `describe` predicts the speed."""


def describe(costs: Costs, keep_ratio: float) -> str:
    """A sentence about the time to the first word. AUTO_KEEP counts as the default keep."""
    keep_ratio = expected_keep(keep_ratio)
    selected = AttentionWork(math.ceil(keep_ratio * REFERENCE_TOKENS))
    full = costs.seconds(ReadPlan(REFERENCE_TOKENS, AttentionWork(REFERENCE_TOKENS)))
    sparse = costs.seconds(ReadPlan(REFERENCE_TOKENS, selected, scoring_work(REFERENCE_TOKENS, 0)))
    if full is None:
        return "The models could not be timed: it was interrupted, or memory is short."
    first_word = f"first word in {formatting.seconds(full)} when read in full"
    if sparse is not None:
        first_word += f", {formatting.seconds(sparse)} at keep {keep_ratio:.0%}"
    return f"{REFERENCE_TOKENS:,} tokens: {first_word}."


@dataclass(frozen=True, slots=True)
class NextMessage:
    """The message that is being typed. `typed` tokens are always read, `attached` tokens may be
    skipped. `last`: statistics of the previous answer, whose prompt is cached. If
    `recall_is_expensive`, recalling a token means to prefill all tokens after it again."""

    mode: Mode
    keep: float
    """0..1, or AUTO_KEEP: the smaller of `last`'s keep and the default is assumed."""
    typed: int
    attached: int
    last: Statistics | None = None
    recall_is_expensive: bool = False

    def seconds(self, costs: Costs) -> float | None:
        """Predicted seconds until the first word; None if the costs are unknown."""
        sparse, full = costs.seconds(self._sparse_plan(costs)), costs.seconds(self._dense_plan)
        return sparse if self._choose(sparse, full) is Reading.SPARSE else full

    def _choose(self, sparse: float | None, full: float | None) -> Reading:
        """How the engine will read, unless the question guard decides otherwise."""
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
        """Dense work: if tokens were skipped, read everything again, else only the new message."""
        total = self._earlier + self._new
        work = AttentionWork(total) if self._skipped else AttentionWork(self._new, self._earlier)
        return ReadPlan(total, work)

    def _sparse_plan(self, costs: Costs) -> ReadPlan:
        total, last, skipped = self._earlier + self._new, self.last, self._skipped
        before = last.keep_ratio if last is not None and last.reading is Reading.SPARSE else 0.0
        keep = expected_keep(self.keep, before, self.attached + self._skipped)
        new = self.typed + math.ceil(keep * self.attached)
        if last is None:
            return ReadPlan(total, AttentionWork(new), scoring_work(total, 0))
        eligible, share = max(last.eligible_tokens, skipped), DEFAULT_TUNING.recall_share
        recalled = recalled_tokens(keep, share, eligible, skipped)
        cached = self._earlier - skipped
        lost = cached if self.recall_is_expensive else None
        target = sparse_work(new, recalled, cached, self._earlier, reprefilled=lost)
        reread = AttentionWork(total - int((1 - keep) * (last.eligible_tokens + self.attached)))
        if costs.target is not None and costs.target.saves(MIN_SAVING_LOSING, reread, target):
            target = reread
        scored = last.prompt_tokens if last.reading is Reading.SPARSE else 0
        return ReadPlan(total, target, scoring_work(total - scored, scored))

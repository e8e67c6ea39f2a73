"""Decides how a turn is read: as requested; in auto mode by the counting guard, then by predicted
times."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.estimate.guard import asks_for_every_token
from app.protocol.commands import Ask
from app.protocol.cost_model import (
    DENSE_WITHIN_SECONDS,
    MIN_SKIPPABLE,
    sparse_pays,
)
from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Reading


@dataclass(frozen=True, slots=True)
class Plan:
    """How a turn will be read, and why."""

    reading: Reading
    reasons: tuple[Reason, ...]
    guard: Reason | None = None
    """Why sparse reading would lose the answer, or None."""
    show_selection: bool = False
    """Everything is cached, so nothing is skipped: what would have been selected is shown."""


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
) -> Plan:
    """Decide for a prompt of which `eligible` tokens may be skipped; `cached` more could have been
    but are in the cache. `dense_only` is why this pair cannot read sparsely, or None."""
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
    # Of files that were chosen because not all fit, every token is not every token.
    chosen = any(message.retrieved for message in ask.messages)
    words = None if chosen else asks_for_every_token(ask.question)
    if words is not None:
        guard = Reason(ReasonCode.NEEDS_EVERY_TOKEN, {"words": words})
        return Plan(Reading.DENSE, (guard,), guard)
    return plan_auto(eligible, predicted)


def _plan(reading: Reading, code: ReasonCode, **data: object) -> Plan:
    return Plan(reading, (Reason(code, data),))


def _fixed_keep(ask: Ask) -> float | None:
    """None if it is left to the scores."""
    return None if ask.keep_ratio == AUTO_KEEP else ask.keep_ratio


def _nothing_to_skip(ask: Ask, cached: int) -> Plan:
    if not cached:
        return _plan(Reading.DENSE, ReasonCode.NOTHING_TO_SKIP)
    if ask.mode is Mode.AUTO:
        return _plan(Reading.DENSE, ReasonCode.ALL_CACHED)
    plan = _plan(Reading.DENSE, ReasonCode.SAVES_NOTHING, keep=_fixed_keep(ask))
    return replace(plan, show_selection=True)


def plan_auto(eligible: int, predicted: PredictedTtft) -> Plan:
    """Decide in auto mode when `eligible` tokens may be skipped, unless the question needs all."""
    if eligible < MIN_SKIPPABLE:
        return _plan(Reading.DENSE, ReasonCode.FEW_TO_SKIP, tokens=MIN_SKIPPABLE)
    if predicted.sparse is not None and predicted.full is not None:
        return _faster(predicted.sparse, predicted.full)
    return _plan(Reading.SPARSE, ReasonCode.RELEVANT_ONLY)


def _faster(sparse: float, full: float) -> Plan:
    """The faster way, when both are predicted; in full unless sparse reading saves enough."""
    seconds = {"sparse": float(sparse), "full": float(full)}
    if sparse_pays(sparse, full):
        return _plan(Reading.SPARSE, ReasonCode.FASTER, **seconds)
    if full <= DENSE_WITHIN_SECONDS:
        return _plan(Reading.DENSE, ReasonCode.QUICK_IN_FULL, **seconds)
    code = ReasonCode.LITTLE_SAVED if sparse < full else ReasonCode.FASTER
    return _plan(Reading.DENSE, code, **seconds)

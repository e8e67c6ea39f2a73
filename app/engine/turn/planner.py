"""Decides how a turn is read: as requested; in auto mode by the counting guard, then by predicted
times."""

from __future__ import annotations

from dataclasses import dataclass

from app.protocol.commands import Ask
from app.protocol.cost_model import (
    DENSE_WITHIN_SECONDS,
    MIN_SKIPPABLE,
    format_seconds,
    sparse_pays,
)
from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.stats import Reading
from app.util.counting_guard import asks_for_every_token


@dataclass(frozen=True, slots=True)
class Plan:
    """How a turn will be read, and one sentence for the user that says why."""

    reading: Reading
    reason: str
    guard: str | None = None
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
    new: int,
    skipped: int,
    eligible: int,
    dense_only: str | None,
    predicted: PredictedTtft = PredictedTtft(),
    cached: int = 0,
) -> Plan:
    """Decide for `new` tokens after a prefix of which `skipped` tokens are not cached.

    `eligible` of both may be skipped, `cached` more could have been but are in the cache;
    `dense_only` is why this pair cannot read sparsely, or None.
    """
    mode = ask.mode
    if mode is Mode.FULL:
        return Plan(Reading.DENSE, "Full reading was requested.")
    if dense_only is not None:
        return Plan(Reading.DENSE, dense_only)
    if eligible == 0:
        return _nothing_to_skip(ask, cached)
    if mode is Mode.SPARSE:
        at_keep = f" at keep {ask.keep_ratio:.0%}" if ask.keep_ratio != AUTO_KEEP else ""
        reason = f"Sparse reading{at_keep} was requested."
        if cached > ask.expected_keep * (cached + eligible):
            reason += f" {cached:,} tokens were cached already and stay."
        return Plan(Reading.SPARSE, reason)
    # Of files that were chosen because not all fit, every token is not every token.
    chosen = any(message.retrieved for message in ask.messages)
    guard = None if chosen else asks_for_every_token(ask.question)
    if guard is not None:
        return Plan(Reading.DENSE, guard, guard)
    return _plan_auto(ask.tuning.dense_below, new, skipped, eligible, predicted)


def _nothing_to_skip(ask: Ask, cached: int) -> Plan:
    if not cached:
        return Plan(Reading.DENSE, "There is no document or history to skip.")
    if ask.mode is Mode.AUTO:
        return Plan(Reading.DENSE, "Everything is already read and cached.")
    what = "sparse reading" if ask.keep_ratio == AUTO_KEEP else f"keep {ask.keep_ratio:.0%}"
    reason = f"Everything is already read and cached: {what} would save nothing."
    return Plan(Reading.DENSE, reason, show_selection=True)


def _plan_auto(
    dense_below: int | None, new: int, skipped: int, eligible: int, predicted: PredictedTtft
) -> Plan:
    if dense_below is not None:
        if skipped + new >= dense_below:
            return Plan(Reading.SPARSE, f"Sparse from {dense_below:,} tokens on, as requested.")
        return Plan(Reading.DENSE, f"Full below {dense_below:,} tokens, as requested.")
    if eligible < MIN_SKIPPABLE:
        few = f"Fewer than {MIN_SKIPPABLE:,} tokens could be skipped, so everything is read."
        return Plan(Reading.DENSE, few)
    if predicted.sparse is not None and predicted.full is not None:
        return _faster(predicted.sparse, predicted.full)
    return Plan(Reading.SPARSE, "Only what matters for the question is read.")


def _faster(sparse: float, full: float) -> Plan:
    """Of two ways that are both predicted."""
    times = f"Sparse is expected in {format_seconds(sparse)}, full in {format_seconds(full)}"
    if sparse_pays(sparse, full):
        return Plan(Reading.SPARSE, f"{times}.")
    if full <= DENSE_WITHIN_SECONDS:
        times = f"Full reading is expected in {format_seconds(full)}: too quick to skip anything"
    elif sparse < full:
        times += ": too little is saved to skip anything"
    return Plan(Reading.DENSE, f"{times}.")

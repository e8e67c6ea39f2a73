"""Which mode pays for this turn: the one asked for; in auto, the guard's word and a threshold."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine import guard
from app.engine.messages import Ask, Mode, Reading


@dataclass(frozen=True, slots=True)
class Plan:
    """How a turn will be read, and one sentence for the user that says why."""

    reading: Reading
    reason: str
    guard: str | None = None
    """Why sparse reading was foreseen to lose the answer, or None."""


def plan(ask: Ask, new: int, left_out: int, eligible: int, dense_only: str | None) -> Plan:
    """Decide for `new` tokens to read, after a prefix of which `left_out` tokens were not read.

    `eligible` of both may be left out; `dense_only` is why this pair cannot read sparsely, or None.
    """
    mode, dense_below = ask.mode, ask.tuning.dense_below
    if mode is Mode.FULL:
        return Plan(Reading.DENSE, "Full reading was asked for.")
    if dense_only is not None:
        return Plan(Reading.DENSE, dense_only)
    if eligible == 0:
        return Plan(Reading.DENSE, "There is no document or history to leave out.")
    if mode is Mode.SPARSE:
        return Plan(Reading.SPARSE, f"Sparse reading at keep {ask.keep:.0%} was asked for.")
    foreseen = guard.asks_for_every_token(ask.messages[-1].text)
    if foreseen is not None:
        return Plan(Reading.DENSE, foreseen, foreseen)
    if left_out + new < dense_below:
        return Plan(
            Reading.DENSE,
            f"{left_out + new:,} tokens are read in full; sparse pays from {dense_below:,}.",
        )
    if left_out:
        return Plan(Reading.SPARSE, "What this question needs of the rest is read as well.")
    return Plan(Reading.SPARSE, f"{new:,} tokens are new, from {dense_below:,} on sparse pays.")

"""Which mode pays for this turn: the one asked for; in auto, the guard's word, then the clock's."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine import guard
from app.engine.costs import UNMEASURED_BELOW, duration, sparse_pays
from app.engine.messages import Ask, Mode, Reading


@dataclass(frozen=True, slots=True)
class Plan:
    """How a turn will be read, and one sentence for the user that says why."""

    reading: Reading
    reason: str
    guard: str | None = None
    """Why sparse reading was foreseen to lose the answer, or None."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Seconds until the first word by both ways of reading, None where nobody knows."""

    sparse: float | None = None
    full: float | None = None

    def by(self, reading: Reading) -> float | None:
        return self.sparse if reading is Reading.SPARSE else self.full


def plan(
    ask: Ask,
    new: int,
    left_out: int,
    eligible: int,
    dense_only: str | None,
    expected: Expected = Expected(),
) -> Plan:
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
    if dense_below is None and expected.sparse is not None and expected.full is not None:
        return _faster(expected.sparse, expected.full)
    if dense_below is None:
        dense_below = UNMEASURED_BELOW
    if left_out + new < dense_below:
        return Plan(
            Reading.DENSE,
            f"{left_out + new:,} tokens are read in full; sparse pays from {dense_below:,}.",
        )
    if left_out:
        return Plan(Reading.SPARSE, "What this question needs of the rest is read as well.")
    return Plan(Reading.SPARSE, f"{new:,} tokens are new, from {dense_below:,} on sparse pays.")


def _faster(sparse: float, full: float) -> Plan:
    """Of two ways that were both timed here."""
    times = f"Sparse is expected in {duration(sparse)}, full in {duration(full)}."
    return Plan(Reading.SPARSE if sparse_pays(sparse, full) else Reading.DENSE, times)

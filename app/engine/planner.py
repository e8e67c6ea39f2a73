"""Which mode pays for this turn. A first planner: the mode asked for, and a threshold for auto."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.messages import Mode, Reading

DENSE_BELOW = 8192
"""Auto reads densely when fewer tokens are new, until a pair has been measured on this machine."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a turn will be read, and one sentence for the user that says why."""

    reading: Reading
    reason: str


def plan(mode: Mode, keep: float, new: int, eligible: int, dense_only: str | None) -> Plan:
    """Decide for `new` tokens to read, `eligible` of which may be dropped.

    `dense_only` is why this pair cannot read sparsely, or None.
    """
    if mode is Mode.FULL:
        return Plan(Reading.DENSE, "Full reading was asked for.")
    if dense_only is not None:
        return Plan(Reading.DENSE, dense_only)
    if eligible == 0:
        return Plan(Reading.DENSE, "There is no document or history to leave out.")
    if mode is Mode.SPARSE:
        return Plan(Reading.SPARSE, f"Sparse reading at keep {keep:.0%} was asked for.")
    if new < DENSE_BELOW:
        return Plan(
            Reading.DENSE, f"{new:,} tokens are read in full; sparse pays from {DENSE_BELOW:,}."
        )
    return Plan(Reading.SPARSE, f"{new:,} tokens are new, from {DENSE_BELOW:,} on sparse pays.")

"""The parts of a turn, in time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """The phases of a turn, in order. A dense turn skips SCORE, LOOKAHEAD and SELECT."""

    WAIT = "wait"
    """Something else ends first: a step of upkeep, another turn, a model's loading."""
    RESTORE = "restore"
    """What earlier turns read comes from disk, where snapshots are kept."""
    TOKENISE = "tokenise"
    LOAD = "load"
    """A model that was parked comes back."""
    SCORE = "score"
    """The draft reads the prompt."""
    LOOKAHEAD = "lookahead"
    """The draft writes a few tokens, and they are observed."""
    SELECT = "select"
    PREFILL = "prefill"
    """The target reads what was kept."""
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class PhaseTime:
    phase: Phase
    seconds: float

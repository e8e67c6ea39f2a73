"""What becomes of conversations' caches between turns, in commands and events. Plain data, which
`messages.py` shows to the rest of the app."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Heal(StrEnum):
    """When what sparse reading left out is read after all, while nothing else is to be done."""

    NEVER = "never"
    PLUGGED = "plugged"
    """Not on battery, where the system tells."""
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What happens to conversations' caches between turns. With `snapshots`, a folder, they
    outlive the program; budgets are bytes, the least recently used goes first; a `disk_budget` of
    0 is chosen by the models and the disk (`snapshot_folder.disk_limit`). With `costs`, a
    folder, what reading took outlives it too, and a pair that was never timed there is, when idle
    and as `heal` allows it."""

    heal: Heal = Heal.PLUGGED
    memory_budget: int = 4_000_000_000
    snapshots: str | None = None
    disk_budget: int = 0
    costs: str | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop what is held of a conversation, on disk too."""

    conversation: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Time the loaded pair now, whatever is known of it. Answered by one `Learnt` that was `asked`
    for, or `Failed`; the next command stops it."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was read of a conversation came back from disk, `tokens` of it. Where a snapshot was of
    no use, `reason` says why, in one sentence, and `tokens` is 0."""

    turn: int
    tokens: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Healed:
    """`done` of a conversation's `total` tokens are read with nothing left out before them."""

    conversation: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class NotSaved:
    """What was read of a conversation is not on disk, so a later start reads it again; nothing else
    is lost. `reason` is one sentence."""

    conversation: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineWarning:
    """Something failed that costs time and nothing else. `sentence` says what, and what follows."""

    sentence: str
    conversation: str | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """`done` of the `total` parts of a conversation's snapshot are on disk. It counts once all of
    them are; a command in between leaves it there."""

    conversation: str
    done: int
    total: int

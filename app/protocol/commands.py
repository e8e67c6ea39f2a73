"""Commands: what the engine can be asked to do. Frozen dataclasses of plain values;
durations are in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from app.protocol.options import (
    DEFAULT_KEEP_RATIO,
    DEFAULT_SAMPLING,
    DEFAULT_TUNING,
    BackgroundPolicy,
    Mode,
    Sampling,
    Tuning,
)
from app.protocol.prompt import Message, Role


def _last_part(path: str) -> str:
    return PurePath(path).name


@dataclass(frozen=True, slots=True)
class Load:
    """Load a pair from two model folders. Without a draft the target reads densely. Each is
    answered by one `Loaded` or `Failed`, in order; one that comes behind it stops it.

    `shown_as` names the two on the screen; without it they are named by their folders. With
    `kv_bits`, 8 or 4, what the target has read is kept in so many bits a number.
    """

    target: str
    draft: str | None = None
    display_names: tuple[str, str] | None = None
    kv_bits: int | None = None

    @property
    def names(self) -> tuple[str, str | None]:
        target, draft = self.display_names or (
            _last_part(self.target),
            _last_part(self.draft or ""),
        )
        return target, draft if self.draft else None


@dataclass(frozen=True, slots=True)
class Ask:
    """Answer the last message (a user's) of `messages`, or continue it (an answer): `Finished` has
    all of that then, and `Token` only what is new, after the ids it began with where the message
    has none. `keep` is used by SPARSE and AUTO.

    Turns of one `conversation` (any name) reuse what earlier ones read; without it nothing is kept.
    With `forced`, that text is fed as the answer instead of a generated one, and measured. With
    `despite_memory` it is tried though it is foreseen not to fit.
    """

    turn: int
    messages: tuple[Message, ...]
    mode: Mode = Mode.AUTO
    keep_ratio: float = DEFAULT_KEEP_RATIO
    sampling: Sampling = DEFAULT_SAMPLING
    tuning: Tuning = DEFAULT_TUNING
    forced_answer: str | None = None
    conversation: str | None = None
    skip_memory_check: bool = False

    @property
    def question(self) -> str:
        return next(m.text for m in reversed(self.messages) if m.role is Role.USER)


@dataclass(frozen=True, slots=True)
class Reselect:
    """Select again from the scores of the last scored turn; answered by `Selected` at once."""

    turn: int
    keep_ratio: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the turn (running or queued) at its next step border."""

    turn: int


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """What happens to conversations' caches between turns. With `snapshots`, a folder, they
    outlive the program; budgets are bytes, the least recently used goes first; a `disk_budget` of
    0 is chosen by the models and the disk (`snapshot_folder.disk_limit`). With `costs`, a
    folder, what reading took outlives it too, and a pair that was never timed there is, when idle
    and as `background` allows it."""

    background: BackgroundPolicy = BackgroundPolicy.ON_AC_POWER
    memory_budget: int = 4_000_000_000
    snapshot_folder: str | None = None
    disk_budget: int = 0
    costs_folder: str | None = None


@dataclass(frozen=True, slots=True)
class CalibrateCosts:
    """Time the loaded pair now, whatever is known of it. Answered by one `Learnt` that was `asked`
    for, or `Failed`; the next command stops it."""


@dataclass(frozen=True, slots=True)
class DropConversation:
    """Drop what is held of a conversation, on disk too."""

    conversation: str


@dataclass(frozen=True, slots=True)
class Close:
    """End the engine thread after what is running was cancelled and what is held was saved."""


Command = Load | Ask | Reselect | Cancel | CachePolicy | CalibrateCosts | DropConversation | Close

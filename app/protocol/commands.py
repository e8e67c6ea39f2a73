"""Commands to the engine: frozen dataclasses of plain values. Durations are in seconds, sizes in
bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from app.protocol.hosts import Hosts
from app.protocol.options import (
    DEFAULT_KEEP_RATIO,
    DEFAULT_SAMPLING,
    DEFAULT_TUNING,
    BackgroundPolicy,
    Mode,
    Sampling,
    Tuning,
    expected_keep,
)
from app.protocol.prompt import NO_CHOICE, FileChoice, Message, Role


def _last_part(path: str) -> str:
    return PurePath(path).name


@dataclass(frozen=True, slots=True)
class Load:
    """Load a pair of models from two folders. Without a draft model, the built-in scorer scores the
    prompt. Each command is answered by one `Loaded` or `CommandFailed`, in order; a later `Load`
    stops an earlier one.

    `draft_is_encoder`: the draft is a text encoder, which the built-in scorer uses instead of its
    own.
    `foreign_draft`: the draft has another tokenizer than the target. `display_names` are for the
    screen; without them, models are named after their folders. With `kv_bits` (8 or 4) the target's
    cache is quantised. `only_quotes`: an answer is a sentence from the documents, because the
    target cannot write its own. With `hosts` the target is spread over this machine and others.
    Unless `checked` is set, the files must be checked before the engine gets the command."""

    target: str
    draft: str | None = None
    display_names: tuple[str, str] | None = None
    kv_bits: int | None = None
    foreign_draft: bool = False
    draft_is_encoder: bool = False
    only_quotes: bool = False
    hosts: Hosts | None = None
    checked: bool = True

    @property
    def names(self) -> tuple[str, str | None]:
        target, draft = self.display_names or (
            _last_part(self.target),
            _last_part(self.draft or ""),
        )
        return target, draft if self.draft else None


@dataclass(frozen=True, slots=True)
class Ask:
    """Answer the last message of `messages` if it is the user's, or continue it if it is an answer.
    For a continued answer, `Finished` has all of it, and `Token` only what is new (but first the
    answer's ids, if the message has none). `keep_ratio` applies to SPARSE and AUTO. At AUTO_KEEP it
    is chosen once the scores are known, limited such that the first token is predicted within
    `within_seconds`, unless that is 0.

    Turns of one `conversation` (any name) share a cache; without a name nothing is cached. With
    `skip_memory_check` the turn runs even if it is predicted not to fit in memory. With
    `read_again` the target reuses no cache, but the draft does. With `on_disk` False the
    conversation's cache stays in memory only.

    If the documents of all messages do not fit in the context, the engine chooses those that match
    the question best, within what `files` allows, and sends `Retrieved`; unless the last question
    already has its `retrieved`. With `cite`, `Cited` names the passages that the answer is from.
    """

    messages: tuple[Message, ...]
    mode: Mode = Mode.AUTO
    keep_ratio: float = DEFAULT_KEEP_RATIO
    sampling: Sampling = DEFAULT_SAMPLING
    tuning: Tuning = DEFAULT_TUNING
    conversation: str | None = None
    skip_memory_check: bool = False
    read_again: bool = False
    within_seconds: float = 0.0
    on_disk: bool = True
    files: FileChoice = NO_CHOICE
    cite: bool = True

    @property
    def expected_keep(self) -> float:
        return expected_keep(self.keep_ratio)

    @property
    def question(self) -> str:
        return next(m.text for m in reversed(self.messages) if m.role is Role.USER)


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """What happens to conversations' caches between turns. With a `snapshot_folder` they are saved
    on disk. Budgets are in bytes; the least recently used caches are dropped first. A `disk_budget`
    of 0 depends on the models and the disk (`snapshot_folder.disk_limit`). With a `costs_folder`,
    timings and the results of loading models are stored. With `share_prefixes`, a conversation that
    begins like another one reuses what that one has read."""

    background: BackgroundPolicy = BackgroundPolicy.ON_AC_POWER
    memory_budget: int = 4_000_000_000
    snapshot_folder: str | None = None
    disk_budget: int = 0
    costs_folder: str | None = None
    share_prefixes: bool = True


@dataclass(frozen=True, slots=True)
class CalibrateCosts:
    """Time the loaded pair now, even if its costs are known. Answered by one `CostsUpdated` with
    `requested` set, or by `CommandFailed`. The next command stops it."""


@dataclass(frozen=True, slots=True)
class DropConversation:
    """Drop a conversation's cache and its snapshot, which is in the `CachePolicy`'s folder or in
    this one."""

    conversation: str
    snapshot_folder: str | None = None


@dataclass(frozen=True, slots=True)
class PruneSnapshots:
    """Delete the snapshots in this folder of all conversations but these: a program that was killed
    may have left snapshots of deleted conversations. The sender must hold the lock on the
    conversations."""

    snapshot_folder: str
    conversations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """Cancel running work, save caches, and end the engine thread."""


Command = Load | CachePolicy | CalibrateCosts | DropConversation | PruneSnapshots | Close

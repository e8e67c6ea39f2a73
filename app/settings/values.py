"""What can be set: one dataclass for each group, and a docstring for each setting.

Everything else comes from here: what the file may say, what its comments say, the settings screen
and `specchat settings`. A setting's type is `bool`, an enumeration, a number with its `Range`, or a
`str`, which is a name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from app.ingest.limits import MIB, Limits
from app.protocol.commands import CachePolicy
from app.protocol.options import DEFAULT_KEEP_RATIO, Heal, Mode, Sampling
from app.sessions.limits import ATTACHMENT_LIMIT, TRASH_DAYS

GB = 1_000_000_000
_SAMPLING, _LIMITS, _UPKEEP = Sampling(), Limits(), CachePolicy()


@dataclass(frozen=True, slots=True)
class Range:
    """From `least` to `most`, both allowed; a key changes it by `step`."""

    min: float
    max: float
    step: float = 1


class KvBits(StrEnum):
    FULL = "full"
    EIGHT = "8"
    FOUR = "4"

    @property
    def bits(self) -> int | None:
        return None if self is KvBits.FULL else int(self)


class ThemeName(StrEnum):
    """Ours, then Textual's; not those that leave all colours to the terminal, since what was read
    is drawn in shades between them."""

    SPECCHAT = "specchat"
    SPECCHAT_LIGHT = "specchat-light"
    ATOM_ONE_DARK = "atom-one-dark"
    ATOM_ONE_LIGHT = "atom-one-light"
    CATPPUCCIN_FRAPPE = "catppuccin-frappe"
    CATPPUCCIN_LATTE = "catppuccin-latte"
    CATPPUCCIN_MACCHIATO = "catppuccin-macchiato"
    CATPPUCCIN_MOCHA = "catppuccin-mocha"
    DRACULA = "dracula"
    FLEXOKI = "flexoki"
    GRUVBOX = "gruvbox"
    MONOKAI = "monokai"
    NORD = "nord"
    ROSE_PINE = "rose-pine"
    ROSE_PINE_DAWN = "rose-pine-dawn"
    ROSE_PINE_MOON = "rose-pine-moon"
    SOLARIZED_DARK = "solarized-dark"
    SOLARIZED_LIGHT = "solarized-light"
    TEXTUAL_DARK = "textual-dark"
    TEXTUAL_LIGHT = "textual-light"
    TOKYO_NIGHT = "tokyo-night"


@dataclass(frozen=True, slots=True)
class Reading:
    """How questions are read."""

    mode: Mode = Mode.AUTO
    """How questions are read where nothing else was chosen: auto lets specchat decide, sparse
    reads what matters at keep, full reads everything."""
    keep: Annotated[float, Range(0.01, 1, 0.01)] = DEFAULT_KEEP_RATIO
    """The fraction of a document that is read sparsely where nothing else was chosen."""
    kv_bits: KvBits = KvBits.FULL
    """In how many bits a number the target keeps what it has read, from the next start on: full, 8
    (about half the memory) or 4 (about a quarter). Answers may suffer, and not every model can."""
    heal: Heal = _UPKEEP.heal
    """When what was left out is read after all, while nothing else is to be done: never, plugged
    (not on battery), or always."""


@dataclass(frozen=True, slots=True)
class Answers:
    """How answers are written."""

    max_tokens: Annotated[int, Range(1, 131_072, 64)] = _SAMPLING.max_tokens
    """The longest answer, in tokens."""
    temperature: Annotated[float, Range(0, 2, 0.1)] = _SAMPLING.temperature
    """How freely the next word is drawn. With 0 it is always the likeliest one."""
    top_p: Annotated[float, Range(0.01, 1, 0.05)] = _SAMPLING.top_p
    """Draw only from the likeliest words that together have this probability."""
    stop_repeats: bool = True
    """Stop an answer that only repeats itself. Continued, it goes on without that."""


@dataclass(frozen=True, slots=True)
class Documents:
    """How much may be attached."""

    document_mb: Annotated[int, Range(1, 4096)] = ATTACHMENT_LIMIT // MIB
    """The largest document that is kept with a conversation, in MB."""
    total_mb: Annotated[int, Range(1, 4096)] = _LIMITS.total_bytes // MIB
    """The most that is taken of files and folders at a time, in MB."""
    file_mb: Annotated[int, Range(1, 4096)] = _LIMITS.file_bytes // MIB
    """The largest file that is taken of a folder, in MB."""
    pdf_mb: Annotated[int, Range(1, 4096)] = _LIMITS.pdf_bytes // MIB
    """The largest PDF file, in MB."""
    files: Annotated[int, Range(1, 100_000, 100)] = _LIMITS.files
    """The most files that are taken of one folder."""
    depth: Annotated[int, Range(1, 200)] = _LIMITS.depth
    """How deep folders in folders are looked into."""
    seconds: Annotated[int, Range(1, 3600, 5)] = round(_LIMITS.seconds)
    """How long reading files and folders may take, in seconds."""


@dataclass(frozen=True, slots=True)
class Models:
    """Which models answer where none are named."""

    target: str = "embedded"
    """The model that answers: a repository that is here, a folder, or embedded. ^L chooses."""
    draft: str = ""
    """The small model that skims for it. Without one everything is read."""


@dataclass(frozen=True, slots=True)
class Storage:
    """What is kept, and for how long."""

    trash_days: Annotated[int, Range(1, 3650)] = round(TRASH_DAYS)
    """How long a deleted conversation can be brought back, in days."""
    snapshots_gb: Annotated[int, Range(0, 2000)] = _UPKEEP.disk_budget // GB
    """The most disk space for what was read of conversations, in GB. 0 chooses: 20 times the
    weights of the models, from 0.5 to 20 GB, and no more than a tenth of what is free. What was not
    used for longest goes first, and is read again when it is asked about."""
    memory_gb: Annotated[int, Range(1, 1000)] = _UPKEEP.memory_budget // GB
    """The most memory for what was read of conversations that are not in use, in GB."""


@dataclass(frozen=True, slots=True)
class Look:
    """What it looks like."""

    theme: ThemeName = ThemeName.SPECCHAT
    """The colours."""
    animations: bool = True
    """Whether things may glide instead of jump."""


@dataclass(frozen=True, slots=True)
class Settings:
    reading: Reading = field(default_factory=Reading)
    answers: Answers = field(default_factory=Answers)
    documents: Documents = field(default_factory=Documents)
    models: Models = field(default_factory=Models)
    storage: Storage = field(default_factory=Storage)
    look: Look = field(default_factory=Look)

    def sampling(self) -> Sampling:
        answers = self.answers
        return Sampling(
            answers.max_tokens,
            answers.temperature,
            answers.top_p,
            stop_repeats=answers.stop_repeats,
        )

    def limits(self, *, private: bool = False, ignored: bool = False) -> Limits:
        """For reading files and folders, as `app.ingest` wants it."""
        documents = self.documents
        return Limits(
            total_bytes=documents.total_mb * MIB,
            file_bytes=documents.file_mb * MIB,
            pdf_bytes=documents.pdf_mb * MIB,
            files=documents.files,
            depth=documents.depth,
            seconds=documents.seconds,
            include_private=private,
            include_ignored=ignored,
        )

    @property
    def attachment_bytes(self) -> int:
        return self.documents.document_mb * MIB

    def cache_policy(self, snapshots: str | None, costs: str | None = None) -> CachePolicy:
        """With the folders that `snapshots` lie in, and what reading `costs`."""
        storage = self.storage
        return CachePolicy(
            self.reading.heal, storage.memory_gb * GB, snapshots, storage.snapshots_gb * GB, costs
        )

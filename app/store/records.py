"""The store's records, as plain frozen dataclasses, its errors, and its default limits.

Times are UTC. Ids grow and are never reused, so order does not depend on a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.errors import UserError
from app.protocol.options import EMBEDDED, Mode
from app.protocol.prompt import RetrievalReason, Role, Span, SpanText
from app.protocol.reasons import Failure, Reason
from app.protocol.stats import Statistics

ATTACHMENT_LIMIT = 256 * 2**20
"""Largest size of a document, in bytes."""
TRASH_DAYS = 30.0
"""How long deleted conversations and messages can be restored."""
FIRST_UNSAVED_ID = 2**40
"""Ids from here on belong to conversations in a `TemporaryStore`; no saved one has them."""


class StoreError(UserError):
    """Conversations cannot be saved or read."""


class DamagedError(StoreError):
    """SQLite reports that the file is damaged."""

    def __init__(self) -> None:
        super().__init__(
            "The conversations file is damaged",
            "start specchat again to repair it or to restore the newest backup",
        )


class State(StrEnum):
    DONE = "done"
    PARTIAL = "partial"
    """A reply that is being written."""
    STOPPED = "stopped"
    """Stopped by the user, or cut off by the end of the program."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RetrievalRecord:
    """Why a part was retrieved, as in `RetrievedPart`."""

    reason: RetrievalReason
    tokens: int
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttachmentRecord:
    """A document of a question, or of an answer: a file, or a part of one from `line` on, that was
    retrieved for it. `size` is the original's, in bytes; `pinned` are the characters `(start, end)`
    of its text that are always to be read."""

    sha256: str
    name: str
    size: int
    pinned: tuple[tuple[int, int], ...] = ()
    line: int = 1
    retrieval: RetrievalRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStats(Statistics):
    """The statistics of a stored answer, and the models that wrote it. `guard` says why sparse
    reading was expected to lose the answer."""

    target: str
    target_revision: str | None = None
    draft: str | None = None
    draft_revision: str | None = None
    guard: Reason | None = None

    @property
    def quotes(self) -> bool:
        """Whether the answer is a quotation: the embedded target writes nothing else."""
        return self.target == EMBEDDED


@dataclass(frozen=True, slots=True)
class ReadMap:
    """What was read for an answer. `texts` name messages by their ids; `importance` is one byte a
    bucket of prompt tokens, see `quantise`."""

    spans: tuple[Span, ...] = ()
    texts: tuple[SpanText, ...] = ()
    importance: bytes = b""


def quantise(importance: Sequence[float]) -> bytes:
    """Importances as one byte each, in 255ths of the highest; all zero if none is above 0."""
    highest = max(importance, default=0.0)
    if highest <= 0:
        return bytes(len(importance))
    return bytes(round(255 * max(value, 0.0) / highest) for value in importance)


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """One message of a conversation's tree; `parent` is None at a root. `token_ids` of a reply are
    the very ids that were generated, `thinking` is its text between thinking tags, and `failure`
    why it failed. `truncated`: it reached the maximum length or, if it was
    stopped, only repeated itself. `mode` and `keep` are how a reply was asked for: None if that is
    unknown, as for questions."""

    id: int
    conversation: int
    parent: int | None
    role: Role
    state: State
    created_at: datetime
    text: str
    token_ids: tuple[int, ...] | None = None
    failure: Failure | None = None
    attachments: tuple[AttachmentRecord, ...] = ()
    stats: AnswerStats | None = None
    thinking: str = ""
    truncated: bool = False
    mode: Mode | None = None
    keep: float | None = None


@dataclass(frozen=True, slots=True)
class DeletedMessages:
    """Messages that were deleted together, and where the conversation ended before, for
    `Store.restore_messages`."""

    conversation: int
    messages: tuple[int, ...]
    current: int | None


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings of one conversation. None is the default; for `system`, the conversation's system
    messages, if it was imported with any."""

    system: str | None = None
    mode: str | None = None
    keep: float | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    always_read: tuple[str, ...] | None = None
    """Names of files that the model gets with each question, where not all fit."""
    never_read: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """`current` is the last message of the current branch, None while there is none."""

    id: int
    title: str
    pinned: bool
    created_at: datetime
    updated_at: datetime
    trashed_at: datetime | None
    current: int | None
    overrides: Overrides = Overrides()


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole conversation: every branch, parents before their children, and the read maps by the
    ids of their messages."""

    conversation: ConversationRecord
    messages: tuple[MessageRecord, ...]
    maps: dict[int, ReadMap]


@dataclass(frozen=True, slots=True)
class ConversationSize:
    """How large a conversation is, with all its branches: its questions, and the bytes of the
    documents that came with them."""

    questions: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class DraftRecord:
    """What was written for a conversation (None: a new one) but not sent, and how its next message
    is to be read: `mode` is empty for the default. `notes` are further facts about the attachments,
    in the screen's own format."""

    conversation: int | None
    text: str = ""
    attachments: tuple[AttachmentRecord, ...] = ()
    mode: str = ""
    keep: float = 0.0
    notes: str = ""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message that was found. `matches` are the characters of `snippet` that match."""

    conversation: int
    title: str
    message: int
    role: Role
    snippet: str
    matches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DocumentHit:
    """A document that was found, and the newest question that it came with; `others` are further
    conversations that have it. `matches` are the characters of `snippet` that match. `line`, from
    1, and `offset`, in characters of its text, are where the first of them stands; a `line` of 0
    is unknown."""

    conversation: int
    title: str
    message: int
    name: str
    others: int = 0
    line: int = 0
    offset: int = 0
    snippet: str = ""
    matches: tuple[tuple[int, int], ...] = ()

    @property
    def match(self) -> str:
        """The first of the words that were found, as it stands in the document."""
        return "".join(self.snippet[start:end] for start, end in self.matches[:1])


@dataclass(frozen=True, slots=True)
class FoundDocuments:
    """The best hits, about how many documents have all words, and how many could not be searched
    because they are not indexed yet."""

    hits: tuple[DocumentHit, ...] = ()
    total: int = 0
    unindexed: int = 0

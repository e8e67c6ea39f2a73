"""Records of the store (plain frozen dataclasses), its errors and its default limits.

Times are UTC. Ids increase and are never reused, so order does not depend on a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from app.errors import UserError
from app.protocol.citations import Citations
from app.protocol.options import DEMO_MODEL, Mode
from app.protocol.prompt import Origin, RetrievalReason, Role, Span, SpanText
from app.protocol.reasons import Failure, Reason
from app.protocol.stats import Statistics

ATTACHMENT_LIMIT = 256 * 2**20
"""Maximum size of a document, in bytes."""
TRASH_DAYS = 30.0
"""Days for which deleted conversations and messages can be restored."""
FIRST_UNSAVED_ID = 2**40
"""First id of conversations in a `TemporaryStore`. Saved conversations have smaller ids."""


class StoreError(UserError):
    """Conversations cannot be saved or read."""


class DamagedError(StoreError):
    """SQLite reports that the file is damaged."""

    def __init__(self) -> None:
        super().__init__(
            "The conversations file is damaged",
            "start specchat again to repair it or to restore the backup",
        )


class State(StrEnum):
    DONE = "done"
    PARTIAL = "partial"
    """A reply that is being written."""
    STOPPED = "stopped"
    """Stopped by the user, or cut off because the program ended."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RetrievalRecord:
    """Why a part was retrieved; see `RetrievedPart`."""

    reason: RetrievalReason
    tokens: int
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EarlierVersion:
    """An earlier version of the same part of a file, by its name then and the SHA-256 of its
    text."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class AttachmentRecord:
    """A document of a question; or, for an answer, a file or part of a file that was retrieved for
    it. `line` is the number of its first line in its file. `size` is the size of the original in
    bytes. `pinned` are the characters `(start, end)` of the text that are always read. It takes the
    place in the prompt of the earlier version that it `replaces`."""

    sha256: str
    name: str
    size: int
    pinned: tuple[tuple[int, int], ...] = ()
    line: int = 1
    retrieval: RetrievalRecord | None = None
    origin: Origin | None = None
    replaces: EarlierVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStats(Statistics):
    """Statistics of a stored answer, and the models that wrote it. `guard` is the reason for which
    a sparse read was expected to lose the answer."""

    target: str
    target_revision: str | None = None
    draft: str | None = None
    draft_revision: str | None = None
    guard: Reason | None = None

    @property
    def quotes(self) -> bool:
        """Whether the answer is a quotation, because the demo model wrote it."""
        return self.target == DEMO_MODEL


@dataclass(frozen=True, slots=True)
class ReadMap:
    """What was read for an answer. `texts` refer to messages by id. `importance` has one byte for
    each bucket of prompt tokens (see `quantise`)."""

    spans: tuple[Span, ...] = ()
    texts: tuple[SpanText, ...] = ()
    importance: bytes = b""


def quantise(importance: Sequence[float]) -> bytes:
    """Importances as bytes, in 255ths of the highest; all 0 if none is above 0."""
    highest = max(importance, default=0.0)
    if highest <= 0:
        return bytes(len(importance))
    return bytes(round(255 * max(value, 0.0) / highest) for value in importance)


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A message in a conversation's tree. `parent` is None at a root. For a reply, `token_ids` are
    the generated ids, `thinking` is the text between thinking tags, and `failure` is why it failed.
    `truncated`: the reply reached the maximum length or, if it was stopped, only repeated itself.
    `mode` and `keep` are those with which a reply was requested; None if unknown, and for
    questions. In the `citations` of a reply, messages are ids. If parts of documents were
    `retrieved` for it, they are its attachments."""

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
    citations: Citations | None = None
    retrieved: bool = False


def without_origins(message: MessageRecord) -> MessageRecord:
    """A message for an export, which must not show where files are on this machine, or from an
    import, which must not name files for this one."""
    attachments = tuple(replace(each, origin=None) for each in message.attachments)
    return replace(message, attachments=attachments)


@dataclass(frozen=True, slots=True)
class ReplyEnd:
    """How a reply ended, in the terms of `MessageRecord`."""

    state: State
    stats: AnswerStats | None = None
    read_map: ReadMap | None = None
    failure: Failure | None = None
    truncated: bool = False
    citations: Citations | None = None


@dataclass(frozen=True, slots=True)
class DeletedMessages:
    """Messages that were deleted together, and the previous end of the conversation. Input of
    `Store.restore_messages`."""

    conversation: int
    messages: tuple[int, ...]
    current: int | None


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings of one conversation. None means the default; for `system`, it means the system
    messages with which the conversation was imported, if any."""

    system: str | None = None
    mode: str | None = None
    keep: float | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    always_read: tuple[str, ...] | None = None
    """Names of files that are read for each question, if not all files fit."""
    never_read: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """`current` is the last message of the current branch; None if there is no message."""

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
    """A whole conversation: messages of all branches, parents before children, and read maps by
    message id."""

    conversation: ConversationRecord
    messages: tuple[MessageRecord, ...]
    maps: dict[int, ReadMap]


@dataclass(frozen=True, slots=True)
class ConversationSize:
    """Number of questions in all branches of a conversation, and bytes of their documents."""

    questions: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class DraftRecord:
    """The unsent message of a conversation (None: of a new one), with mode and keep of the next
    message; an empty `mode` means the default. `notes` are details of the attachments in the
    screen's own format."""

    conversation: int | None
    text: str = ""
    attachments: tuple[AttachmentRecord, ...] = ()
    mode: str = ""
    keep: float = 0.0
    notes: str = ""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message found by a search. `matches` are the characters `(start, end)` of `snippet` that
    match."""

    conversation: int
    title: str
    message: int
    role: Role
    snippet: str
    matches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DocumentHit:
    """A document found by a search, and the newest question that it was attached to. `others` is
    the number of other conversations that have it. `matches` are the characters `(start, end)` of
    `snippet` that match. `line` (from 1; 0: unknown) and `offset` (in characters of the document)
    are the place of the first match."""

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
        """The first match, as written in the document."""
        return "".join(self.snippet[start:end] for start, end in self.matches[:1])


@dataclass(frozen=True, slots=True)
class KnownDocument:
    """A file, a part of one, a folder or another document of earlier questions. `origin` is its
    file or folder, if known. Attachments `start:end` of `message` are its newest version.
    `used_at` is when one of its `conversations` was last used."""

    name: str
    origin: Origin | None
    message: int
    start: int
    end: int
    conversations: frozenset[int]
    used_at: datetime

    @property
    def label(self) -> str:
        """`report.pdf`, or `report.pdf#5-10` for a part."""
        return f"{self.name}#{self.origin.part}" if self.origin and self.origin.part else self.name

    @property
    def path(self) -> str:
        """What to read for a newer version, such as `/files/report.pdf#5-10`; empty if unknown."""
        if self.origin is None:
            return ""
        return f"{self.origin.path}#{self.origin.part}" if self.origin.part else self.origin.path


@dataclass(frozen=True, slots=True)
class FoundDocuments:
    """The best hits, the approximate number of documents that have all words, and the number of
    documents that are not indexed yet."""

    hits: tuple[DocumentHit, ...] = ()
    total: int = 0
    unindexed: int = 0


def encode(text: str, errors: str = "strict") -> bytes:
    """The bytes of a document with this text. If the text itself begins with U+FEFF, a byte order
    mark is put before it, because reading removes one."""
    return text.encode("utf-8-sig" if text.startswith("\ufeff") else "utf-8", errors)

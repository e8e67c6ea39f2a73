"""A prompt: its messages, the segments of its tokens, and the spans that were selected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


SEARCHED = "?"


@dataclass(frozen=True, slots=True)
class Origin:
    """The file that a document was read from: its absolute path, size in bytes, time of last change
    (`modified`, in nanoseconds) and the SHA-256 of its content. They show later whether it has
    changed. For the tree of a folder, `path` is the folder's, and `modified` is when the app
    started to read it. `part` is the part of the file that was asked for, such as `10-`, or
    SEARCHED."""

    path: str
    size: int = 0
    modified: int = 0
    sha256: str = ""
    part: str = ""

    @property
    def is_searched(self) -> bool:
        """Whether the file is too large to be read whole, and was searched for lines that belong to
        the question."""
        return self.part == SEARCHED


@dataclass(frozen=True, slots=True)
class Document:
    """An attachment's text, as the model gets it. `pinned` characters `(start, end)` are always
    read. A part of a file has the file's name, and `line` is the number of its first line.

    `origin` is None for pastes, and where the file is unknown. A newer version of a file that was
    attached earlier `replaces` that document: it takes its place in the prompt. Where retrieved
    parts are shown, each is `within` the whole text, at an offset."""

    name: str
    text: str
    pinned: tuple[tuple[int, int], ...] = ()
    line: int = field(default=1, repr=False)
    origin: Origin | None = field(default=None, compare=False, repr=False)
    replaces: Document | None = field(default=None, compare=False, repr=False)
    within: tuple[str, int] | None = field(default=None, compare=False, repr=False)

    @property
    def is_searched(self) -> bool:
        """Whether it holds only what was found in its file (see `Origin.is_searched`)."""
        return self.origin is not None and self.origin.is_searched


@dataclass(frozen=True, slots=True)
class Message:
    """A message. A `plain` message, which must be the only one, is a text to continue without the
    chat template; `token_ids` are its tokens if it was sent as tokens. For an assistant message,
    `token_ids` are the generated ids, and `thinking` is the text between thinking tags, which is
    in the prompt only if the chat template uses it.

    `context` stands before the text of a user's message. A program has added it (instructions,
    reminders, the state of an editor); it is always read, and is not part of the question.

    `documents` were attached to the message. If the conversation's documents do not all fit in the
    context, `retrieved` is put before this question instead: files, or parts of files, of this and
    earlier messages."""

    role: Role
    text: str
    documents: tuple[Document, ...] = ()
    token_ids: tuple[int, ...] | None = None
    thinking: str = ""
    context: str = field(default="", repr=False)
    plain: bool = field(default=False, repr=False)
    retrieved: tuple[Document, ...] | None = field(default=None, repr=False)

    @property
    def body(self) -> str:
        """The context and the text."""
        return "\n\n".join(filter(None, (self.context, self.text)))

    @property
    def in_prompt(self) -> tuple[Document, ...]:
        """The documents that are in the prompt with this message."""
        return self.documents if self.retrieved is None else self.retrieved


def searched_paths(documents: Iterable[Document]) -> list[str]:
    """The files among the origins of documents that were searched."""
    origins = (each.origin for each in documents)
    return [*dict.fromkeys(each.path for each in origins if each and each.is_searched)]


class RetrievalReason(StrEnum):
    """Why a file was retrieved for a question."""

    WORDS = "words"
    """It has the question's words."""
    MEANING = "meaning"
    """A passage is similar in meaning to the question."""
    NAME = "name"
    """The question names it."""
    CHOSEN = "chosen"
    """The user chose it."""


@dataclass(frozen=True, slots=True)
class RetrievedPart:
    """A file, or a part of one, that was retrieved for a question. `words` are the question's words
    that it contains, rarest first."""

    document: Document
    tokens: int
    reason: RetrievalReason
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Names of files that are always or never read for the questions of a conversation, if not all
    files fit."""

    always: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()


NO_CHOICE = FileChoice()


class TemplateRule(StrEnum):
    """A rule of the chat template for which messages were rearranged."""

    ALTERNATING = "alternating"
    """Messages of the same role in a row were joined."""
    SYSTEM_FIRST = "system first"
    """Later system prompts were put into the questions after them."""
    NO_SYSTEM = "no system"
    """All system prompts were put into the questions after them."""
    QUESTION_FIRST = "question first"
    """An empty question was put before an answer that began the conversation."""


class SegmentKind(StrEnum):
    TEMPLATE = "template"
    SYSTEM = "system"
    HISTORY = "history"
    DOCUMENT = "document"
    QUESTION = "question"
    GENERATION = "generation"


@dataclass(frozen=True, slots=True)
class Segment:
    """Prompt tokens `start:end` and where they come from. `message` and `document` are indices."""

    kind: SegmentKind
    start: int
    end: int
    message: int | None = None
    document: int | None = None


class SpanReason(StrEnum):
    PINNED = "pinned"
    IMPORTANT = "important"
    NEEDED_LATER = "needed later"
    """Read while the answer was written."""


@dataclass(frozen=True, slots=True)
class Span:
    """Selected tokens `start:end`: a maximal run with the same reason. `score` is the run's mean
    importance relative to the mean over all eligible tokens; None for a pinned span."""

    start: int
    end: int
    reason: SpanReason
    score: float | None = None


@dataclass(frozen=True, slots=True)
class SpanText:
    """The place of a span in a document: characters `start:end` of the document's text."""

    span: int
    message: int
    document: int
    start: int
    end: int

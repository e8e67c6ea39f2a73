"""A prompt: its messages, the segments of its tokens, and the spans that were selected."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Document:
    """An attachment's text, as the model gets it. `pinned` characters `(start, end)` are always
    read. A part of a file has the file's name, and `line` is the number of its first line there."""

    name: str
    text: str
    pinned: tuple[tuple[int, int], ...] = ()
    line: int = field(default=1, repr=False)


@dataclass(frozen=True, slots=True)
class Message:
    """One message; a `plain` one, which is then the only one, is no message but a text to continue,
    without the chat template; if it came as tokens, `token_ids` are these. `token_ids` of an
    assistant message are the generated ones, and `thinking` its text between thinking tags: sent
    only where the chat template asks for it.

    `documents` came with the message. Where those of the conversation do not all fit into the
    context, `retrieved` are what was put before this question instead: files, or parts of them, of
    any message up to this one."""

    role: Role
    text: str
    documents: tuple[Document, ...] = ()
    token_ids: tuple[int, ...] | None = None
    thinking: str = ""
    plain: bool = field(default=False, repr=False)
    retrieved: tuple[Document, ...] | None = field(default=None, repr=False)

    @property
    def in_prompt(self) -> tuple[Document, ...]:
        """The documents that the model gets with this message."""
        return self.documents if self.retrieved is None else self.retrieved


class RetrievalReason(StrEnum):
    """Why a file was put before the model."""

    WORDS = "words"
    """It has the question's words."""
    MEANING = "meaning"
    """A passage of it means what the question does."""
    NAME = "name"
    """The question names it."""
    CHOSEN = "chosen"
    """The user wants it to be read."""


@dataclass(frozen=True, slots=True)
class RetrievedPart:
    """A file, or a part of one, that was put before the model. `words` are those of the question
    that it has, the rarest first."""

    document: Document
    tokens: int
    reason: RetrievalReason
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Names of files that the user wants the model to get with each question of a conversation, or
    never, where not all fit."""

    always: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()


NO_CHOICE = FileChoice()


class TemplateRule(StrEnum):
    """What a chat template demands of a conversation, for which messages were rearranged."""

    ALTERNATING = "alternating"
    """Messages of the same role in a row were joined."""
    SYSTEM_FIRST = "system first"
    """Later system prompts went into the questions after them."""
    NO_SYSTEM = "no system"
    """All system prompts went into the questions after them."""
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
    """Selected tokens `start:end`, a maximal run of one reason. `score` is its mean importance
    relative to the mean over all eligible tokens, None for a pinned span."""

    start: int
    end: int
    reason: SpanReason
    score: float | None = None


@dataclass(frozen=True, slots=True)
class SpanText:
    """Where a span lies in a document: characters `start:end` of that document's text."""

    span: int
    message: int
    document: int
    start: int
    end: int

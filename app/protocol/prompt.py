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
    read."""

    name: str
    text: str
    pinned: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One message; a `plain` one, which is then the only one, is no message but a text to continue,
    without the chat template. `token_ids` of an assistant message are the generated ones, and
    `thinking` its text between thinking tags: sent only where the chat template asks for it."""

    role: Role
    text: str
    documents: tuple[Document, ...] = ()
    token_ids: tuple[int, ...] | None = None
    thinking: str = ""
    plain: bool = field(default=False, repr=False)


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

"""Parts of a prompt: where its tokens come from, and which of them are kept. Plain data, which
`messages.py` shows to the rest of the app."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class Span:
    """Kept tokens `start:end`, a maximal run of one reason. `score` is its mean importance
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

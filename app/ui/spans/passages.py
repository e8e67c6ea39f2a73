"""A document as passages that were read, or were not. Plain data, no widgets."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from app.protocol.events import ImportanceMap, Planned, Selected
from app.protocol.prompt import Document, Segment, Span, SpanReason, SpanText
from app.protocol.stats import Reading
from app.ui.prefill.progress import TurnProgress

PARAGRAPH = re.compile(r"\n[ \t]*\n")
LONGEST_PARAGRAPH = 4000
"""Characters; a longer one is cut around the place."""


class ReadKind(StrEnum):
    UNREAD = "not read"
    SELECTED = "read"
    PINNED = "always read"


@dataclass(frozen=True, slots=True)
class Passage:
    """Characters `start:end` of a document. `score` is the mean importance of what was read for
    its importance, relative to the whole prompt's."""

    start: int
    end: int
    kind: ReadKind
    score: float | None = None


@dataclass(frozen=True)
class ReadDocument:
    """A document and its passages, which cover it from its first character to its last, in order.

    `message` and `document` say which one of the conversation it is. `importance` is the mean
    importance in equal parts of the text, 0..1; empty where nothing was scored.
    """

    message: int
    document: int
    name: str
    text: str = field(repr=False)
    passages: tuple[Passage, ...]
    importance: tuple[float, ...] = ()
    pinned: tuple[tuple[int, int], ...] = ()
    """What the user pinned."""

    @cached_property
    def _starts(self) -> list[int]:
        return [passage.start for passage in self.passages]

    def index_at(self, offset: int) -> int:
        """Which passage this character is in."""
        return max(0, bisect_right(self._starts, offset) - 1)

    def at(self, offset: int) -> Passage:
        return self.passages[self.index_at(offset)]

    def between(self, start: int, end: int) -> Sequence[Passage]:
        """The passages that overlap these characters."""
        return self.passages[self.index_at(start) : bisect_left(self._starts, max(end, start + 1))]

    @property
    def read_fraction(self) -> float:
        """Of its characters, 0..1."""
        kept = sum(p.end - p.start for p in self.passages if p.kind is not ReadKind.UNREAD)
        return kept / len(self.text) if self.text else 1.0

    def importance_at(self, offset: int) -> float | None:
        """Of the part of the text around this character, 0..1; None where nothing was scored."""
        if not self.importance or not self.text:
            return None
        part = offset * len(self.importance) // len(self.text)
        return self.importance[min(part, len(self.importance) - 1)]

    @cached_property
    def passages_read(self) -> int:
        return sum(passage.kind is not ReadKind.UNREAD for passage in self.passages)

    @property
    def first_read(self) -> int | None:
        """Where the first passage that was read begins."""
        return next((p.start for p in self.passages if p.kind is not ReadKind.UNREAD), None)

    def next_read(self, offset: int) -> int | None:
        """Where the next passage that was read begins."""
        later = self.passages[self.index_at(offset) + 1 :]
        return next((p.start for p in later if p.kind is not ReadKind.UNREAD), None)

    def previous_read(self, offset: int) -> int | None:
        """Where the last passage that was read and began before this character begins."""
        earlier = self.passages[: bisect_left(self._starts, offset)]
        return next((p.start for p in reversed(earlier) if p.kind is not ReadKind.UNREAD), None)

    def find(self, text: str) -> list[tuple[int, int]]:
        """Where `text` occurs, in any case; white space matches any white space."""
        words = text.split()
        if not words:
            return []
        pattern = re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE)
        return [match.span() for match in pattern.finditer(self.text)]

    def paragraph(self, offset: int) -> tuple[int, int]:
        """The paragraph that this character is in, without the white space around it."""
        least = max(0, offset - LONGEST_PARAGRAPH // 2)
        most = min(len(self.text), offset + LONGEST_PARAGRAPH // 2)
        start, end = least, most
        for match in PARAGRAPH.finditer(self.text, least, most):
            if match.end() <= offset:
                start = match.end()
            elif match.start() > offset:
                end = match.start()
                break
        piece = self.text[start:end]
        start += len(piece) - len(piece.lstrip())
        return start, max(start, end - (len(piece) - len(piece.rstrip())))


def read_documents(
    messages: Sequence[Sequence[Document]],
    progress: TurnProgress,
    selected: Selected | None = None,
) -> list[ReadDocument]:
    """The documents that came with each of the `messages` that the engine saw, as a turn read
    them, or would have with another selection."""
    if selected is None and progress.reading is not Reading.DENSE:
        selected = progress.selected
    texts: dict[tuple[int, int], list[SpanText]] = {}
    for text in () if selected is None else selected.texts:
        texts.setdefault((text.message, text.document), []).append(text)
    segments = _segments(progress.planned)

    def read_document(place: tuple[int, int], document: Document) -> ReadDocument:
        length = len(document.text)
        passages: tuple[Passage, ...] = (Passage(0, length, ReadKind.SELECTED),)
        if selected is not None:
            passages = _passages(length, selected.spans, texts.get(place, ()))
        importance = _importance(segments.get(place), progress.planned, progress.importance)
        return ReadDocument(
            *place, document.name, document.text, passages, importance, document.pinned
        )

    return [
        read_document((message, number), document)
        for message, documents in enumerate(messages)
        for number, document in enumerate(documents)
        if document.text
    ]


def _passages(length: int, spans: Sequence[Span], texts: Sequence[SpanText]) -> tuple[Passage, ...]:
    """Of one document, from what was read of it."""
    passages: list[Passage] = []
    at = 0
    for text in texts:
        if text.end <= at:
            continue
        span = spans[text.span]
        start = max(at, text.start)
        if start > at:
            passages.append(Passage(at, start, ReadKind.UNREAD))
        read = ReadKind.PINNED if span.reason is SpanReason.PINNED else ReadKind.SELECTED
        passages.append(Passage(start, text.end, read, span.score))
        at = text.end
    if at < length:
        passages.append(Passage(at, length, ReadKind.UNREAD))
    return tuple(passages)


def _segments(planned: Planned | None) -> dict[tuple[int | None, int | None], Segment]:
    """The first of each document's segments."""
    segments: dict[tuple[int | None, int | None], Segment] = {}
    for segment in () if planned is None else planned.segments:
        segments.setdefault((segment.message, segment.document), segment)
    return segments


def _importance(
    segment: Segment | None, planned: Planned | None, importance: ImportanceMap | None
) -> tuple[float, ...]:
    """The buckets that lie in the document's tokens."""
    if segment is None or planned is None or importance is None or not planned.prompt_tokens:
        return ()
    buckets = len(importance.buckets)
    first = segment.start * buckets // planned.prompt_tokens
    last = -(-segment.end * buckets // planned.prompt_tokens)
    return importance.buckets[first : max(last, first + 1)]

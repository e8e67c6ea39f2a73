"""Documents as passages that were read or not, and all documents of an answer, the most important
one first. No widgets."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from app.chat.turn_progress import TurnProgress
from app.protocol.citations import Citation, Citations
from app.protocol.events import ImportanceMap, Planned, Selected
from app.protocol.prompt import Document, Origin, Segment, Span, SpanReason, SpanText
from app.protocol.stats import DocumentsRead, Reading
from app.store.records import DocumentHit
from app.util.places import Place, place_of

MAX_PARAGRAPH = 4000
"""Characters: of a longer one, only those around the cursor."""
_BLOCK = re.compile(r"\S[^\n]*(?:\n[^\S\n]*\S[^\n]*)*")
"""Lines without a blank one between them."""
_SENTENCE_ENDS = (".", "!", "?", ":", ";", "”", '"', "。", "！", "？")


class ReadKind(StrEnum):
    UNREAD = "not read"
    SELECTED = "read"
    READ_ON = "read while answering"
    PINNED = "always read"


_KINDS = {
    SpanReason.PINNED: ReadKind.PINNED,
    SpanReason.IMPORTANT: ReadKind.SELECTED,
    SpanReason.NEEDED_LATER: ReadKind.READ_ON,
}


@dataclass(frozen=True, slots=True)
class Passage:
    """Characters `start:end` of a document. `score` is the mean importance of a selected one, as a
    multiple of the prompt's average."""

    start: int
    end: int
    kind: ReadKind
    score: float | None = None


@dataclass(frozen=True)
class ReadDocument:
    """A document and its passages, which cover all of its text, in order.

    `message` and `document` are its indices in the conversation. `importance` are means over equal
    parts of the text, as multiples of the prompt's average; empty if nothing was scored.
    """

    message: int
    document: int
    name: str
    text: str = field(repr=False)
    passages: tuple[Passage, ...]
    importance: tuple[float, ...] = ()
    pinned: tuple[tuple[int, int], ...] = ()
    """Ranges that the user pinned."""
    cited: tuple[tuple[int, int], ...] = ()
    """Ranges that the answer quotes or is supported by, ascending."""
    line: int = 1
    """The number of its first line in its file."""
    origin: Origin | None = None
    within: tuple[str, int] | None = field(default=None, repr=False)
    """If this is a retrieved part: the whole text of its file, and where the part starts in it."""
    read_of_file: float | None = None
    """The fraction of its whole file that was read; None: that of `text`."""

    @property
    def title(self) -> str:
        """The name, and of a part of a file where it starts."""
        if self.line == 1:
            return self.name
        part = self.place(0).part
        return f"{self.name}, {part}" if part else f"{self.name}:{self.line}"

    def place(self, offset: int) -> Place:
        """Where a character is in its file."""
        return place_of(self.text, offset, self.line, self.name, self.within)

    @cached_property
    def _starts(self) -> list[int]:
        return [passage.start for passage in self.passages]

    def index_at(self, offset: int) -> int:
        return max(0, bisect_right(self._starts, offset) - 1)

    def at(self, offset: int) -> Passage:
        return self.passages[self.index_at(offset)]

    def between(self, start: int, end: int) -> Sequence[Passage]:
        """The passages that overlap these characters."""
        return self.passages[self.index_at(start) : bisect_left(self._starts, max(end, start + 1))]

    @property
    def top_score(self) -> float:
        """Score of its most important passage; below 0 if nothing was read."""
        scores = [p.score or 0.0 for p in self.passages if p.kind is not ReadKind.UNREAD]
        return max(scores, default=-1.0)

    @property
    def characters_read(self) -> int:
        return sum(p.end - p.start for p in self.passages if p.kind is not ReadKind.UNREAD)

    @property
    def read_fraction(self) -> float:
        """The fraction of its file that was read."""
        if self.read_of_file is not None:
            return self.read_of_file
        return self.characters_read / len(self.text) if self.text else 1.0

    def is_read(self, start: int, end: int) -> bool:
        """Whether all of these characters were read."""
        return all(passage.kind is not ReadKind.UNREAD for passage in self.between(start, end))

    def importance_at(self, offset: int) -> float | None:
        """Around this character, as a multiple of the average; None if nothing was scored."""
        if not self.importance or not self.text:
            return None
        part = offset * len(self.importance) // len(self.text)
        return self.importance[min(part, len(self.importance) - 1)]

    @cached_property
    def passages_read(self) -> int:
        return sum(passage.kind is not ReadKind.UNREAD for passage in self.passages)

    def find(self, text: str) -> list[tuple[int, int]]:
        """Where `text` occurs, ignoring case; white space matches any white space."""
        words = text.split()
        if not words:
            return []
        pattern = re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE)
        return [match.span() for match in pattern.finditer(self.text)]

    def paragraph(self, offset: int) -> tuple[int, int]:
        """The paragraph around this character: from blank line to blank line, without the white
        space around it; of a long one, whole lines around it. Lines that stand alone and end no
        sentence, such as headings and those of double-spaced text, belong to what follows. On a
        blank line it is the next one, or the last. Empty if there is no text at all."""
        blocks: list[tuple[int, int]] = []
        goes_on = False
        for match in _BLOCK.finditer(self.text, *self._lines_around(offset)):
            start = blocks.pop()[0] if goes_on else match.start()
            blocks.append((start, match.end()))
            line = match[0].rstrip()
            goes_on = "\n" not in line and not line.endswith(_SENTENCE_ENDS)
        if not blocks:
            return 0, 0
        start, end = next((block for block in blocks if offset <= block[1]), blocks[-1])
        return start, start + len(self.text[start:end].rstrip())

    def _lines_around(self, offset: int) -> tuple[int, int]:
        """MAX_PARAGRAPH characters around this one, cut to whole lines if there is a line end."""
        text, half = self.text, MAX_PARAGRAPH // 2
        start, end = max(0, offset - half), min(len(text), offset + half)
        if start:
            start = text.find("\n", start, offset) + 1 or start
        if end < len(text):
            end = max(text.rfind("\n", offset + 1, end), 0) or end
        return start, end


def read_documents(
    messages: Sequence[Sequence[Document]],
    progress: TurnProgress,
    selected: Selected | None = None,
    citations: Citations | None = None,
) -> list[ReadDocument]:
    """The documents of the `messages` that the engine got, as a turn read them for this answer, or
    as it would have with the selection `selected`."""
    if selected is None and progress.reading is not Reading.DENSE:
        selected = progress.selected
    texts: dict[tuple[int, int], list[SpanText]] = {}
    for text in () if selected is None else selected.texts:
        texts.setdefault((text.message, text.document), []).append(text)
    segments = _segments(progress.planned)
    cited = _cited_ranges(citations)
    in_prompt = progress.messages_with_documents

    def read_document(index: tuple[int, int], document: Document) -> ReadDocument:
        length = len(document.text)
        kind = ReadKind.SELECTED if _read_whole(progress) else ReadKind.UNREAD
        passages: tuple[Passage, ...] = (Passage(0, length, kind),)
        if selected is not None:
            passages = _passages(length, selected.spans, texts.get(index, ()))
        importance = _importance(segments.get(index), progress.planned, progress.importance)
        return ReadDocument(
            *index,
            document.name,
            document.text,
            passages,
            importance,
            document.pinned,
            cited.get(index, ()),
            document.line,
            document.origin,
            document.within,
        )

    found = [
        read_document((message, number), document)
        for message, documents in enumerate(messages)
        if in_prompt is None or message in in_prompt
        for number, document in enumerate(documents)
        if document.text
    ]
    whole = progress.documents
    if selected is not None and selected is not progress.selected:
        whole = selected.documents
    return _with_fractions(found, whole)


def _with_fractions(
    documents: Sequence[ReadDocument], whole: DocumentsRead | None
) -> list[ReadDocument]:
    """The documents with the fraction of their files that was read: of the only file the one that
    the answer's line says, in tokens; of one of several files in characters of all its parts."""
    if whole is not None and whole.files == 1:
        return [replace(each, read_of_file=whole.fraction) for each in documents]
    read, length = Counter[str](), dict[str, int]()
    for each in documents:
        read[each.name] += each.characters_read
        length[each.name] = len(each.text if each.within is None else each.within[0])
    return [replace(each, read_of_file=read[each.name] / length[each.name]) for each in documents]


def _cited_ranges(
    citations: Citations | None,
) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """The cited characters of each document, by message and document: disjoint and ascending."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    passages = () if citations is None else (each.passage for each in citations.found)
    for message, document, start, end in sorted(passages):
        ranges = found.setdefault((message, document), [])
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((start, end))
    return {index: tuple(ranges) for index, ranges in found.items()}


def _read_whole(progress: TurnProgress) -> bool:
    """Whether a turn without a selection has read, or is reading, everything. False while it is
    still choosing, or if it was stopped then."""
    if progress.reading is Reading.DENSE:
        return True
    return progress.statistics is not None and progress.statistics.read_tokens > 0


def _passages(length: int, spans: Sequence[Span], texts: Sequence[SpanText]) -> tuple[Passage, ...]:
    """The passages of a document of this length, from the texts that were read."""
    passages: list[Passage] = []
    at = 0
    for text in texts:
        if text.end <= at:
            continue
        span = spans[text.span]
        start = max(at, text.start)
        if start > at:
            passages.append(Passage(at, start, ReadKind.UNREAD))
        passages.append(Passage(start, text.end, _KINDS[span.reason], span.score))
        at = text.end
    if at < length:
        passages.append(Passage(at, length, ReadKind.UNREAD))
    return tuple(passages)


def _segments(planned: Planned | None) -> dict[tuple[int | None, int | None], Segment]:
    """The first segment of each document, by message and document."""
    segments: dict[tuple[int | None, int | None], Segment] = {}
    for segment in () if planned is None else planned.segments:
        segments.setdefault((segment.message, segment.document), segment)
    return segments


def _importance(
    segment: Segment | None, planned: Planned | None, importance: ImportanceMap | None
) -> tuple[float, ...]:
    """Importance of the document's parts, as multiples of the average bucket."""
    if segment is None or planned is None or importance is None or not planned.prompt_tokens:
        return ()
    buckets = len(importance.buckets)
    first = segment.start * buckets // planned.prompt_tokens
    last = -(-segment.end * buckets // planned.prompt_tokens)
    average = sum(importance.buckets) / buckets or 1.0
    return tuple(each / average for each in importance.buckets[first : max(last, first + 1)])


Position = tuple[int, int]
"""The index of a document in the collection, and a character of it."""
SearchHit = tuple[int, int, int]
"""The index of a document in the collection, and the characters `start:end` of it."""


class Collection:
    """The order stays when another keep is tried."""

    def __init__(self, documents: Sequence[ReadDocument]) -> None:
        """`documents` is not empty. Documents of which nothing was read come last."""
        indices = range(len(documents))
        self._order = sorted(indices, key=lambda index: -documents[index].top_score)
        self.show(documents)

    def show(self, documents: Sequence[ReadDocument]) -> None:
        """The same documents as another keep would read them."""
        self.documents = tuple(documents[index] for index in self._order)
        self._read: list[Position] = [
            (index, passage.start)
            for index, document in enumerate(self.documents)
            for passage in document.passages
            if passage.kind is not ReadKind.UNREAD
        ]
        self._cited: list[Position] = [
            (index, start)
            for index, document in enumerate(self.documents)
            for start, _ in document.cited
        ]

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> ReadDocument:
        return self.documents[index]

    @property
    def passages(self) -> int:
        return len(self._read)

    def passage_number(self, position: Position) -> int | None:
        """The number of the passage among those that were read, from 1; None if it was not."""
        index, offset = position
        unread = self.documents[index].at(offset).kind is ReadKind.UNREAD
        return None if unread else bisect_right(self._read, position)

    @property
    def citations(self) -> int:
        return len(self._cited)

    def first(self) -> Position:
        """Where the first passage that is cited starts, or else the first that was read; the
        start of all if nothing was."""
        return next(iter(self._cited or self._read), (0, 0))

    def next_cited(self, position: Position) -> Position | None:
        """Where the next passage that the answer cites starts; after the last one the first."""
        found = bisect_right(self._cited, position)
        return self._cited[found % len(self._cited)] if self._cited else None

    def next_read(self, position: Position) -> Position | None:
        """Where the next passage that was read starts."""
        found = bisect_right(self._read, position)
        return self._read[found] if found < len(self._read) else None

    def previous_read(self, position: Position) -> Position | None:
        """Where the previous passage that was read starts."""
        found = bisect_left(self._read, position)
        return self._read[found - 1] if found else None

    def locate(self, hit: DocumentHit) -> Position | None:
        """Where a document that the search found has its line. What was read may be a part of it,
        under the same name."""
        if not hit.matches:
            return None
        before = hit.snippet[: hit.matches[0][0]].lstrip("…")
        after = hit.snippet[hit.matches[0][0] :].rstrip("…")
        named = [(i, each.text) for i, each in enumerate(self.documents) if each.name == hit.name]
        for index, text in named:
            if text.startswith(after, hit.offset):
                return index, hit.offset
        for index, text in named:
            if (at := text.find(before + after)) >= 0:
                return index, at + len(before)
        return None

    def passage_of(self, citation: Citation) -> Position | None:
        """Where the passage of a citation starts."""
        wanted = citation.message, citation.document
        for index, each in enumerate(self.documents):
            if (each.message, each.document) == wanted:
                return index, citation.passage_start
        return None

    def find(self, text: str) -> list[SearchHit]:
        """Where `text` occurs, in order."""
        documents = enumerate(self.documents)
        return [(index, *span) for index, each in documents for span in each.find(text)]


def next_hit_index(hits: Sequence[SearchHit], position: Position) -> int:
    """The index of the first hit at or after this position, or else of the first one."""
    index = bisect_left(hits, (*position, 0))
    return index if index < len(hits) else 0

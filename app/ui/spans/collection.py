"""All documents of an answer, the most important one first. No widgets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from app.store.records import DocumentHit
from app.ui.spans.passages import ReadDocument, ReadKind

Position = tuple[int, int]
"""The index of a document in the collection, and a character of it."""
SearchHit = tuple[int, int, int]
"""The index of a document in the collection, and the characters `start:end` of it."""


class Collection:
    """The order stays when another keep is tried."""

    def __init__(self, documents: Sequence[ReadDocument]) -> None:
        """`documents` is not empty. Documents of which nothing was read come last."""
        indices = range(len(documents))
        self._order = sorted(indices, key=lambda index: -_importance(documents[index]))
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
        self._copied: list[Position] = [
            (index, start)
            for index, document in enumerate(self.documents)
            for start, _ in document.copied
        ]

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> ReadDocument:
        return self.documents[index]

    @property
    def passages(self) -> int:
        """How many passages were read."""
        return len(self._read)

    @property
    def read_fraction(self) -> float:
        """Of all characters, 0..1."""
        total = sum(len(document.text) for document in self.documents)
        read = sum(document.read_fraction * len(document.text) for document in self.documents)
        return read / total if total else 1.0

    def passage_number(self, position: Position) -> int | None:
        """The number of the passage among those that were read, from 1; None if it was not."""
        index, offset = position
        unread = self.documents[index].at(offset).kind is ReadKind.UNREAD
        return None if unread else bisect_right(self._read, position)

    @property
    def copies(self) -> int:
        """How many passages the answer copied."""
        return len(self._copied)

    def first(self) -> Position:
        """Where the first passage that was copied starts, or else the first that was read; the
        start of all if nothing was."""
        return next(iter(self._copied or self._read), (0, 0))

    def next_copied(self, position: Position) -> Position | None:
        """Where the next passage that the answer copied starts; after the last one the first."""
        found = bisect_right(self._copied, position)
        return self._copied[found % len(self._copied)] if self._copied else None

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

    def find(self, text: str) -> list[SearchHit]:
        """Where `text` occurs, in order."""
        documents = enumerate(self.documents)
        return [(index, *span) for index, each in documents for span in each.find(text)]


def next_hit_index(hits: Sequence[SearchHit], position: Position) -> int:
    """The index of the first hit at or after this position, or else of the first one."""
    index = bisect_left(hits, (*position, 0))
    return index if index < len(hits) else 0


def _importance(document: ReadDocument) -> float:
    """The score of its most important passage; below 0 if nothing was read."""
    scores = [p.score or 0.0 for p in document.passages if p.kind is not ReadKind.UNREAD]
    return max(scores, default=-1.0)

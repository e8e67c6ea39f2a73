"""All documents of an answer, the most important one first. No widgets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

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

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> ReadDocument:
        return self.documents[index]

    @property
    def passages(self) -> int:
        """How many passages were read."""
        return sum(document.passages_read for document in self.documents)

    @property
    def read_fraction(self) -> float:
        """Of all characters, 0..1."""
        total = sum(len(document.text) for document in self.documents)
        read = sum(document.read_fraction * len(document.text) for document in self.documents)
        return read / total if total else 1.0

    def passage_number(self, position: Position) -> int | None:
        """The number of the passage among those that were read, from 1; None if it was not."""
        index, offset = position
        document = self.documents[index]
        if document.at(offset).kind is ReadKind.UNREAD:
            return None
        before = sum(document.passages_read for document in self.documents[:index])
        within = document.passages[: document.index_at(offset) + 1]
        return before + sum(passage.kind is not ReadKind.UNREAD for passage in within)

    def first(self) -> Position:
        """Where the first passage that was read starts; the start of all if nothing was."""
        return next(self._first_of(range(len(self.documents))), (0, 0))

    def next_read(self, position: Position) -> Position | None:
        """Where the next passage that was read starts."""
        index, offset = position
        start = self.documents[index].next_read(offset)
        if start is not None:
            return index, start
        return next(self._first_of(range(index + 1, len(self.documents))), None)

    def previous_read(self, position: Position) -> Position | None:
        """Where the previous passage that was read starts."""
        index, offset = position
        start = self.documents[index].previous_read(offset)
        while start is None and index:
            index -= 1
            start = self.documents[index].previous_read(len(self.documents[index].text))
        return None if start is None else (index, start)

    def find(self, text: str) -> list[SearchHit]:
        """Where `text` occurs, in order."""
        documents = enumerate(self.documents)
        return [(index, *span) for index, each in documents for span in each.find(text)]

    def _first_of(self, indices: range) -> Iterator[Position]:
        for index in indices:
            start = self.documents[index].first_read
            if start is not None:
                yield index, start


def next_hit_index(hits: Sequence[SearchHit], position: Position) -> int:
    """The index of the first hit at or after this position, or else of the first one."""
    index = bisect_left(hits, (*position, 0))
    return index if index < len(hits) else 0


def _importance(document: ReadDocument) -> float:
    """The score of its most important passage; below 0 if nothing was read."""
    scores = [p.score or 0.0 for p in document.passages if p.kind is not ReadKind.UNREAD]
    return max(scores, default=-1.0)

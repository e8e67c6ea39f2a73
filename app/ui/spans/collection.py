"""All documents of an answer, the most important first, as one text to go through. No widgets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from app.ui.spans.passages import ReadDocument, ReadKind

Position = tuple[int, int]
"""The index of a document here, and a character of it."""
SearchHit = tuple[int, int, int]
"""The index of a document here, and the characters `start:end` of it."""


class Collection:
    """The order stays, whichever keep is tried."""

    def __init__(self, documents: Sequence[ReadDocument]) -> None:
        """`documents` is not empty. Those that nothing was read of come last, and what is equally
        important stays in its order."""
        places = range(len(documents))
        self._order = sorted(places, key=lambda place: -_importance(documents[place]))
        self.show(documents)

    def show(self, documents: Sequence[ReadDocument]) -> None:
        """The same documents, as another keep would read them."""
        self.documents = tuple(documents[place] for place in self._order)

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> ReadDocument:
        return self.documents[index]

    @property
    def passages(self) -> int:
        """How many were read."""
        return sum(document.passages_read for document in self.documents)

    @property
    def read_fraction(self) -> float:
        """Of the characters of all of them, 0..1."""
        total = sum(len(document.text) for document in self.documents)
        read = sum(document.read_fraction * len(document.text) for document in self.documents)
        return read / total if total else 1.0

    def passage_number(self, place: Position) -> int | None:
        """Which of those that were read it is, from 1; None where it was not read."""
        index, offset = place
        document = self.documents[index]
        if document.at(offset).kind is ReadKind.UNREAD:
            return None
        before = sum(document.passages_read for document in self.documents[:index])
        within = document.passages[: document.index_at(offset) + 1]
        return before + sum(passage.kind is not ReadKind.UNREAD for passage in within)

    def first(self) -> Position:
        """Where the first passage that was read begins; the beginning of all where nothing was."""
        return next(self._first_of(range(len(self.documents))), (0, 0))

    def next_read(self, place: Position) -> Position | None:
        """Where the next passage that was read begins."""
        index, offset = place
        start = self.documents[index].next_read(offset)
        if start is not None:
            return index, start
        return next(self._first_of(range(index + 1, len(self.documents))), None)

    def previous_read(self, place: Position) -> Position | None:
        """Where the last passage that was read and began before this place begins."""
        index, offset = place
        start = self.documents[index].previous_read(offset)
        while start is None and index:
            index -= 1
            start = self.documents[index].previous_read(len(self.documents[index].text))
        return None if start is None else (index, start)

    def find(self, words: str) -> list[SearchHit]:
        """Where `words` occur, in order."""
        every = enumerate(self.documents)
        return [(index, *span) for index, document in every for span in document.find(words)]

    def _first_of(self, indices: range) -> Iterator[Position]:
        for index in indices:
            start = self.documents[index].first_read
            if start is not None:
                yield index, start


def next_hit_index(hits: Sequence[SearchHit], place: Position) -> int:
    """The index of the first hit from here on, or of the first of all."""
    found = bisect_left(hits, (*place, 0))
    return found if found < len(hits) else 0


def _importance(document: ReadDocument) -> float:
    """Of its most important passage; below 0 where nothing was read."""
    scores = [p.score or 0.0 for p in document.passages if p.kind is not ReadKind.UNREAD]
    return max(scores, default=-1.0)

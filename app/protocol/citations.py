"""The passages of documents that an answer quotes, or that support it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class CitationKind(StrEnum):
    QUOTATION = "quotation"
    """The passage has the same words."""
    SUPPORT = "support"
    """The passage that supports a sentence best, by words and meaning."""


@dataclass(frozen=True, slots=True)
class Citation:
    """Characters `start:end` of an answer, and their passage in a document: its characters
    `passage_start:passage_end`. `message` and `document` are indices in the prompt; in the store,
    `message` is an id. The target has read all of the passage."""

    kind: CitationKind
    start: int
    end: int
    message: int
    document: int
    passage_start: int
    passage_end: int
    score: float = 1.0
    """How near the passage is to a sentence, from 0 to 1; 1 for a quotation."""

    @property
    def passage(self) -> tuple[int, int, int, int]:
        """Identifies the passage: message, document, and characters of it."""
        return self.message, self.document, self.passage_start, self.passage_end


@dataclass(frozen=True, slots=True)
class Citations:
    """The citations of an answer, in its order. `uncited` is the number of sentences for which no
    passage was found, without those that state nothing."""

    found: tuple[Citation, ...] = ()
    uncited: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of each citation, from 1. Citations of one passage have the same."""
        known: dict[tuple[int, int, int, int], int] = {}
        return tuple(known.setdefault(each.passage, len(known) + 1) for each in self.found)

    def between(self, start: int, end: int) -> Citations:
        """The citations of these characters of the answer, as if they were all of it."""
        inside = (each for each in self.found if start <= each.start and each.end <= end)
        found = (replace(each, start=each.start - start, end=each.end - start) for each in inside)
        return replace(self, found=tuple(found))

    def renumbered(self, messages: Mapping[int, int]) -> Citations:
        """The same with other numbers of messages, without those of unknown messages."""
        found = (
            replace(each, message=messages[each.message])
            for each in self.found
            if each.message in messages
        )
        return replace(self, found=tuple(found))

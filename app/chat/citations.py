"""The citations of an answer as they are shown: where each passage is, footnotes, and a summary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.protocol.citations import Citation, CitationKind, Citations
from app.protocol.prompt import Document
from app.util import formatting
from app.util.places import Place, place_of

MAX_EXCERPT = 100
"""Longer passages are shown without their middle. In characters."""
_WHOLE = re.compile(r"`{1,3}[^`\n]*`{1,3}|\]\([^()\s]*\)|\b[A-Za-z]{2,9}://[^\s()]*")
"""Code, and addresses of links: no number stands in them."""
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Footnote:
    """A citation as it is shown below the answer."""

    number: int
    citation: Citation
    document: Document
    place: Place

    @property
    def passage(self) -> str:
        return self.document.text[self.citation.passage_start : self.citation.passage_end]

    @property
    def source(self) -> str:
        """`contract.pdf, page 3, Termination`"""
        return f"{self.document.name}, {self.place.short}"

    @property
    def excerpt(self) -> str:
        """The passage on one line, in quotation marks."""
        flat = " ".join(self.passage.split())
        if len(flat) > MAX_EXCERPT:
            half = MAX_EXCERPT // 2
            start, end = flat[:half].rpartition(" "), flat[-half:].partition(" ")
            flat = f"{start[0] or start[2]} … {end[2] or end[0]}"
        return f'"{flat}"'

    @property
    def line(self) -> str:
        return f"[{self.number}] {self.source}: {self.excerpt}"

    def to_plain(self) -> dict[str, Any]:
        """For JSON: the place, and the whole passage."""
        return {
            "number": self.number,
            "kind": str(self.citation.kind),
            "name": self.document.name,
            "page": self.place.page,
            "part": self.place.part,
            "line": self.place.line,
            "headings": list(self.place.headings),
            "text": self.passage,
        }


def footnotes(
    citations: Citations | None, messages: Sequence[Sequence[Document]]
) -> list[Footnote]:
    """One footnote for each passage that is cited. `messages` are the documents of the prompt, by
    message."""
    found: dict[int, Footnote] = {}
    for note in placed(citations, messages):
        found.setdefault(note.number, note)
    return [*found.values()]


def placed(
    citations: Citations | None, messages: Sequence[Sequence[Document]]
) -> Iterator[Footnote]:
    """The footnote of each citation, also of several that cite one passage."""
    for number, each in _numbered(citations):
        if _is_there(each, messages):
            document = messages[each.message][each.document]
            place = place_of(
                document.text,
                each.passage_start,
                document.line,
                document.name,
                document.within,
            )
            yield Footnote(number, each, document, place)


def _numbered(citations: Citations | None) -> Iterator[tuple[int, Citation]]:
    if citations is not None:
        yield from zip(citations.numbers, citations.found, strict=True)


def _is_there(citation: Citation, messages: Sequence[Sequence[Document]]) -> bool:
    """Whether its document is still in the store."""
    if citation.message >= len(messages) or citation.document >= len(messages[citation.message]):
        return False
    text = messages[citation.message][citation.document].text
    return citation.passage_start < citation.passage_end <= len(text)


def summary(citations: Citations | None, missing: str = "") -> str:
    """`3 citations · 1 sentence without a source`, and what is `missing` of the documents; empty
    if there is nothing to say."""
    if citations is None:
        return missing
    count, uncited = max(citations.numbers, default=0), citations.uncited
    parts = [
        formatting.plural(count, "citation") if count else "",
        f"{formatting.plural(uncited, 'sentence')} without a source" if uncited else "",
        missing,
    ]
    return " · ".join(filter(None, parts))


def marked(answer: str, citations: Citations | None) -> str:
    """The answer with a superscript number after each citation. Markdown gives superscripts no
    meaning."""
    places: dict[int, list[int]] = {}
    for number, each in _numbered(citations):
        numbers = places.setdefault(_mark_offset(answer, each), [])
        if number not in numbers:
            numbers.append(number)
    parts: list[str] = []
    at = 0
    for offset in sorted(places):
        marks = ",".join(map(str, sorted(places[offset])))
        parts += [answer[at:offset], marks.translate(_SUPERSCRIPT)]
        at = offset
    return "".join([*parts, answer[at:]])


def _mark_offset(answer: str, citation: Citation) -> int:
    """Where the number of a citation stands: after its words and what ends them, not in code."""
    offset = min(citation.end, len(answer))
    for span in _WHOLE.finditer(answer):
        if span.start() < offset < span.end():
            offset = span.end()
    if citation.kind is CitationKind.QUOTATION:
        while offset < len(answer) and answer[offset] in ".,;:!?\"'”’»)*_":
            offset += 1
    while offset and answer[offset - 1] in "|\n ":  # the end of a row of a table
        offset -= 1
    return offset


def with_footnotes(answer: str, citations: Citations | None, notes: Sequence[Footnote]) -> str:
    """The answer as Markdown with its footnotes below it."""
    if not notes:
        return answer
    lines = [
        f"{str(note.number).translate(_SUPERSCRIPT)} {note.source}: {note.excerpt}"
        for note in notes
    ]
    return "\n\n".join([marked(answer, citations), *lines])

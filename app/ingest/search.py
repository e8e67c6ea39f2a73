"""Searches a text file that is too large to be read whole for the words of a question.

One pass counts lines and marks the pages that have each word. Then the pages with the rarest words
are read, with the beginning and the end of the file: enough for the engine to choose from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.ingest.line_ranges import LargeText, Lines
from app.ingest.parts import runs
from app.util.calendar_words import MONTHS
from app.util.search_words import EARLIER_WEIGHT, WORD, query, terms, without_ending

PAGE = 4096
"""Bytes of a page, or a multiple in files of more than MAX_PAGES pages."""
MAX_PAGES = 1 << 19
FOUND = 1 << 19
"""Bytes of pages that are read."""
SAMPLE = 1 << 17
"""The same if no page has a word of the question: then they are from all over the file."""
ENDS = 1 << 15
"""Bytes at the beginning, and at the end, that are always read."""
NEIGHBOUR_WEIGHT = 0.3
"""Weight of the words on the pages before and after a page."""
MAX_TERMS = 48
MAX_LINE = 2048
"""Longer lines may be cut. In bytes."""
_OVERLAP = 128
"""Bytes of a piece that are searched again with the next one: the longest word."""
_MAX_MISSES = 32
"""Times that a word is looked for on a page where it is part of other words."""
MIN_RARITY = 0.01
"""Weight of a word that is on most pages."""
_MIN_PART, _MIN_STEM = 6, 3
"""Letters of a word that may also be the end of a longer one, as in `getResponse`, and of one that
may be its beginning."""
_SPREAD = 0.6180339887
"""Equally good pages are taken in an order that spreads them evenly: by the fractional part of
their number times this, the golden ratio's inverse."""
_CODE = re.compile(r"(?<![^\W_])[^\W_]++(?:[-_.:/@+#]{1,2}+[^\W_]++)++")
"""A time, address, version, path or identifier, which counts as a whole, too."""
_MONTH = "|".join(sorted(MONTHS, key=len, reverse=True))
_DATES = (
    re.compile(r"\b(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})\b"),
    re.compile(r"\b(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})\b"),
    re.compile(r"\b(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4})\b"),
    re.compile(
        rf"\b(?P<d>\d{{1,2}})(?:st|nd|rd|th|\.)?[ /-](?:of )?(?P<m>{_MONTH})\b\.?"
        r"(?:,?[ /-](?P<y>\d{4})\b)?",
        re.IGNORECASE,
    ),
    re.compile(
        rf"\b(?P<m>{_MONTH})\.? (?P<d>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (?P<y>\d{{4}})\b)?",
        re.IGNORECASE,
    ),
)
_NUMBER = re.compile(r"(?<!\d)(?:\d{1,3}(?:,\d{3}){1,5}+|\d{4,15})(?!\d)")
_ENGLISH = {number: name for name, number in reversed(MONTHS.items()) if name.isascii()}
"""The English name of each month, which is the first one."""
_DIGITS = b"0123456789"
_LETTERS_AND_DIGITS = _DIGITS + b"abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Found:
    """What was found: lines, ascending; how many lines the file has; and the words of the question
    that it has, the rarest first."""

    lines: list[Lines]
    total: int
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """Something to look for: `forms` are ways to write it, in lower case."""

    word: str
    forms: tuple[str, ...]
    weight: float


def search(text: LargeText, questions: Sequence[str]) -> Found:
    """The lines of a file that belong to a question, which may be followed by the one before it.
    Raises what `budget.check` raises."""
    page = PAGE * max(1, -(-text.size // (PAGE * MAX_PAGES)))
    pages = -(-text.size // page)
    marks: list[tuple[Term, bytearray]] = []
    searches: list[_Search] = []
    for number, question in enumerate(questions[:2]):
        for term in terms_of(question, EARLIER_WEIGHT if number else 1.0):
            if len(marks) < MAX_TERMS and term.forms not in [each.forms for each, _ in marks]:
                marks.append((term, bytearray(pages)))
                searches += [*_searches(term, text.encoding, marks[-1][1], page)]
    tail = b""
    for offset, piece in text.pieces():
        text.add_piece(piece)
        lowered = tail + piece.lower()
        for each in searches:
            each.mark(lowered, offset - len(tail))
        tail = lowered[-_OVERLAP:]
    scores, words = np.zeros(pages, np.float32), dict[str, float]()
    for term, marked in marks:
        on = np.frombuffer(marked, np.uint8)
        if count := int(np.count_nonzero(on)):
            rarity = max(math.log((pages - count + 0.5) / (count + 0.5)), MIN_RARITY)
            scores += term.weight * rarity * on
            if term.weight == 1.0:
                words[term.word] = max(rarity, words.get(term.word, 0.0))
    rarest = sorted(words, key=lambda word: -words[word])
    named = [
        word
        for number, word in enumerate(rarest)
        if not any(word in other for other in rarest[:number])
    ]
    best = _best(scores, page, SAMPLE if questions else 0)
    lines = [*_lines(text, best, page)]
    return Found(lines, text.count_lines(), tuple(named))


def terms_of(question: str, weight: float = 1.0) -> list[Term]:
    """What to look for: dates in all notations, codes and figures, and words."""
    found: dict[tuple[str, ...], Term] = {}

    def add(word: str, forms: Iterable[str]) -> None:
        lowered = tuple(dict.fromkeys(form.lower() for form in forms))
        found.setdefault(lowered, Term(word, lowered, weight))

    for pattern in _DATES:
        for date in pattern.finditer(question):
            add(date[0], _date_forms(date["y"], date["m"], date["d"]))
    for code in _CODE.finditer(question):
        add(code[0], [code[0]])
    for number in _NUMBER.finditer(question):
        digits = number[0].replace(",", "")
        add(number[0], [digits, f"{int(digits):,}"])
    words = {term: word for word in WORD.findall(question) for term in terms(word)}
    for term in query(question):
        if len(term) > 1:
            word = words.get(term, term)
            add(word, [term] if term in word.lower() else [term, without_ending(word.lower())])
    return [*found.values()]


def _date_forms(year: str | None, month: str, day: str) -> list[str]:
    """Ways to write a date. Logs often leave out the year."""
    m, d = int(month) if month.isdigit() else MONTHS[month.lower()], int(day)
    if m > 12 >= d:
        m, d = d, m
    if not 0 < m <= 12:
        return [f"{year}-{month}-{day}"]
    full = _ENGLISH[m]
    forms = [f"{full} {d}", f"{d} {full}"]
    forms += [f"{full[:3]} {d:02}", f"{full[:3]} {d:2}", f"{d:02} {full[:3]}", f"{d} {full[:3]}"]
    if year is None:
        return [*forms, f"-{m:02}-{d:02}", f"{d:02}/{full[:3]}/"]
    forms += [f"{year}{mark}{m:02}{mark}{d:02}" for mark in ("-", "/", ".", "")]
    forms += [f"{d:02}.{m:02}.{year}", f"{m:02}/{d:02}/{year}", f"{m}/{d}/{year}"]
    return [*forms, f"{d:02}/{full[:3]}/{year}"]


class _Search:
    """Marks the pages that have a form of a term."""

    def __init__(
        self, form: bytes, marked: bytearray, page: int, not_before: bytes, not_after: bytes
    ) -> None:
        """`marked`: one byte for each page of `page` bytes, which is set to 1. The form does not
        count next to the bytes `not_before` and `not_after`."""
        self._find = re.compile(re.escape(form)).search
        self._marked, self._page = marked, page
        self._not_before, self._not_after = not_before, not_after

    def mark(self, text: bytes, start: int) -> None:
        """Search a piece of the file, in lower case, which begins at the offset `start`."""
        at = misses = page = 0
        while (hit := self._find(text, at)) is not None:
            begin, at = hit.span()
            if (number := (start + begin) // self._page) != page:
                misses, page = 0, number
            misses += 1
            is_part = (begin > 0 and text[begin - 1] in self._not_before) or (
                at < len(text) and text[at] in self._not_after
            )
            if not is_part:
                self._marked[number] = 1
            if not is_part or misses > _MAX_MISSES:
                at = max(at, (number + 1) * self._page - start)


def _searches(term: Term, encoding: str, marked: bytearray, page: int) -> Iterator[_Search]:
    """The searches for the forms of a term in a file with this encoding."""
    wide = encoding.startswith(("utf-16", "utf-32"))
    known = set[bytes]()
    for form in term.forms:
        with suppress(UnicodeEncodeError):
            encoded = form.encode(encoding).lower()
            if encoded in known:
                continue
            known.add(encoded)
            before = after = b""
            if form[0].isdigit():
                before = _DIGITS
            elif form[0].isalpha() and (len(form) < _MIN_PART or not form.isalnum()):
                before = _LETTERS_AND_DIGITS
            if form[-1].isdigit():
                after = _DIGITS
            elif len(form) < _MIN_STEM:
                after = _LETTERS_AND_DIGITS
            yield _Search(encoded, marked, page, *((b"", b"") if wide else (before, after)))


def _best(scores: NDArray[np.float32], page: int, sample: int) -> NDArray[np.int64]:
    """The numbers of the pages to read, ascending: `sample` bytes if no page has a score. What
    stands beside a good page counts, too."""
    beside = np.maximum(np.append(scores[1:], 0), np.append(0, scores[:-1]))
    scores = scores + NEIGHBOUR_WEIGHT * beside
    numbers = np.arange(len(scores))
    order = np.lexsort((numbers * _SPREAD % 1, -scores))
    has_any = bool(len(scores)) and scores[order[0]] > 0
    best = order[: (FOUND if has_any else sample) // page]
    if has_any:
        best = best[scores[best] > 0]
    ends = max(1, ENDS // page)
    return np.unique(np.concatenate((numbers[:ends], best, numbers[-ends:])))


def _lines(text: LargeText, pages: NDArray[np.int64], page: int) -> Iterator[Lines]:
    """The lines on these pages; those that touch together."""
    stop = 0
    places: list[tuple[int, int]] = []
    for first, last in runs(pages.tolist()):
        start, stop = text.line_start(first * page, MAX_LINE), (last + 1) * page
        stop = text.line_end(min(stop, text.size), MAX_LINE)
        if places and start <= places[-1][1]:
            start = places.pop()[0]
        places.append((start, stop))
    for start, stop in places:
        if data := text.read(start, stop):
            first = text.line_at(start)
            yield Lines(first, text.line_at(stop - 1), "", data)

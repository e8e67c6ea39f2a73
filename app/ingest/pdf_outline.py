"""Headings of PDF files: titles of bookmarks or of tags, and the lines where they stand."""

from __future__ import annotations

import ctypes
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pypdfium2
from pypdfium2 import raw

from app.ingest.pdf_objects import pdfium
from app.ingest.pdf_text import PageText, Run

MAX_BOOKMARKS = 10_000
MAX_TITLES = 200
"""Maximum number of titles that are looked for on a page."""
MAX_LINES = 2_000
"""Number of lines of a page in which titles are looked for."""
MAX_ELEMENTS = 20_000
"""Maximum number of tags of a page."""
_MAX_NUMBER = 12
"""Maximum number of letters and digits before a title, such as `Chapter 12`."""
_MAX_LINES = 4
"""Maximum number of lines of a title."""
_ABOVE, _BELOW = 6.0, 60.0
"""How far above and below its bookmark's place a title stands, in points."""
_LOW = 200.0
"""If a bookmark's place is lower on its page, its title may be on the next one. In points."""
_LEVELS = {"Title": 1, "H": 1, **{f"H{level}": level for level in range(1, 7)}}
"""Levels of headings by their tags."""
_NOTE = re.compile(r"\[\^[^\]\n]{1,4}\]")
_NUMBER = re.compile(r"^[A-Z]?[\d.]+\s+")
_ANY_NUMBER = re.compile(
    r"\W{0,3}(?:[\w.]{0,9}\d[\w.]{0,9}|[^\W\d_]|[IVXLC]{1,9}|[ivxlc]{1,9})\W{0,3}"
)
"""Also a single letter."""
_PUNCTUATION = re.compile(r"\s*[.:;–—]")
_MAX_TAG = 64
"""Maximum bytes of a tag that is looked at."""


class Title(NamedTuple):
    """The title of a bookmark or a tag."""

    level: int
    text: str
    x: float = 0.0
    y: float | None = None
    """Where it is on its page, if that is known."""


class Outline:
    """The headings of a document."""

    def __init__(
        self, file: pypdfium2.PdfDocument, read: Callable[[int], list[str] | None]
    ) -> None:
        """`read` reads the lines of a page, if there is one."""
        self._read = read
        self._titles: dict[int, list[Title]] = defaultdict(list)
        self._carried: dict[int, list[Title]] = {}
        """Titles that are on the page after their bookmarks' places."""
        for count, bookmark in enumerate(file.get_toc()):
            action = raw.FPDFBookmark_GetAction(bookmark)
            is_here = not action or raw.FPDFAction_GetType(action) == raw.PDFACTION_GOTO
            target = bookmark.get_dest() if is_here else None
            page = None if target is None else target.get_index()
            if page is not None and (title := " ".join(bookmark.get_title().split())):
                level = min(bookmark.level + 1, 6)
                self._titles[page].append(Title(level, title, *_place(target)))
            if count == MAX_BOOKMARKS:
                break
        self._is_tagged = not self._titles and bool(raw.FPDFCatalog_IsTagged(file))

    def has_titles(self, number: int, page: pypdfium2.PdfPage) -> bool:
        """Whether there are headings on this page."""
        if self._is_tagged:
            return next(_tagged(page), None) is not None
        return bool(self._titles.get(number) or self._carried.get(number))

    def lines(
        self, number: int, page: pypdfium2.PdfPage, text: PageText, lines: Sequence[str]
    ) -> list[str]:
        """The lines of a page with marks of headings. `text` has the places of the lines."""
        marked = _Marked(lines, text)
        if self._is_tagged:
            for title in _titles_of_tags(page, text):
                marked.mark(title)
        for title in self._carried.get(number, []):
            marked.mark(title)
        for title in self._titles.get(number, [])[:MAX_TITLES]:
            height = None if title.y is None else text.upright(title.x, title.y)[1]
            if not marked.mark(title, height) and not self._carry(number + 1, title):
                marked.insert(title, height)
        return marked.lines()

    def _carry(self, number: int, title: Title) -> bool:
        """Whether a title is on this page, which is the one after its bookmark's place."""
        if title.y is not None and title.y > _LOW:
            return False
        lines = self._read(number)
        if lines is None or not _Marked(lines).mark(title):
            return False
        self._carried.setdefault(number, []).append(title)
        return True


class _Marked:
    """Lines of a page in which titles are marked."""

    def __init__(self, lines: Sequence[str], text: PageText | None = None) -> None:
        """`text` has the heights of the lines and their runs, if these are known."""
        self._lines: list[str | None] = [*lines]
        """None: a line that is part of a heading above it."""
        self._inserted: dict[int, list[str]] = defaultdict(list)
        """Titles that no line repeats, before the lines with these numbers."""
        self._bare = [*map(_bare, lines)]
        self._known = [] if text is None else text.lines
        self._begin = 0
        """The first line after the last title."""

    def lines(self) -> list[str]:
        found: list[str] = []
        for index, line in enumerate([*self._lines, None]):
            found += self._inserted.get(index, [])
            found += [] if line is None else [line]
        return found

    def mark(self, title: Title, height: float | None = None) -> bool:
        """Mark the lines that repeat a title, without regard to its number. If several do, it is
        the one that is nearest to a height."""
        for text in (title.text, _NUMBER.sub("", title.text)):
            wanted = _bare(text)
            found = [*self._matches(wanted)] if wanted else []
            if found:
                break
        if not found:
            return bool(wanted) and height is not None and self._cut(title, wanted, height)
        first, last = found[0]
        if height is not None and self._known:
            first, last = min(found, key=lambda each: abs(self._known[each[0]].y - height))
        whole = " ".join(filter(None, self._lines[first : last + 1]))
        self._lines[first : last + 1] = [
            _heading(title.level, whole),
            *[None] * (last - first),
        ]
        self._begin = last + 1
        return True

    def insert(self, title: Title, height: float | None) -> None:
        """Write a title where its bookmark leads."""
        at = self._begin
        if height is not None and self._known:
            below = (
                index
                for index in range(at, len(self._known))
                if self._known[index].y <= height + _ABOVE and self._lines[index] is not None
            )
            at = next(below, len(self._known) - 1)
        has_line = at < len(self._lines) and self._lines[at] is not None
        place = at if has_line else len(self._lines)
        self._inserted[place].append(_heading(title.level, title.text))

    def _matches(self, wanted: str) -> Iterator[tuple[int, int]]:
        """Yield the first and last lines of texts that end with a title and begin with it, or with
        a number."""
        bare = self._bare
        for first in range(self._begin, min(len(bare), MAX_LINES)):
            whole = ""
            for last in range(first, min(first + _MAX_LINES, len(bare))):
                whole += bare[last]
                if len(whole) > len(wanted) + _MAX_NUMBER:
                    break
                if bare[last] and len(whole) >= len(wanted) and whole.endswith(wanted):
                    before = len(whole) - len(wanted)
                    if before < len(bare[first]) and self._is_number(first, before):
                        yield first, last
                    break

    def _is_number(self, first: int, count: int) -> bool:
        """Whether the first letters and digits of a line, as many as this, number what follows:
        `2.1`, `Chapter IV`, `A`; or there are none."""
        line = self._lines[first] or ""
        words = line[: _offset(line, count)].split() if count else []
        return not words or _ANY_NUMBER.fullmatch(words[-1]) is not None

    def _cut(self, title: Title, wanted: str, height: float) -> bool:
        """Mark a title at the beginning of a line with more text, near a height."""
        for index in range(self._begin, len(self._known)):
            known, line = self._known[index], self._lines[index]
            start = self._bare[index].find(wanted)
            if not (height - _BELOW <= known.y <= height + _ABOVE and 0 <= start <= _MAX_NUMBER):
                continue
            end = _offset(line or "", start + len(wanted))
            rest = (line or "")[end:]
            if _PUNCTUATION.match(rest) or _ends_run(known.runs, start + len(wanted)):
                end += len(rest) - len(rest.lstrip(".:;–—- "))
                heading = _heading(title.level, (line or "")[:end].rstrip())
                self._lines[index] = f"{heading}\n{(line or '')[end:]}".rstrip("\n")
                self._begin = index + 1
                return True
        return False


def _heading(level: int, text: str) -> str:
    return f"{'#' * level} {' '.join(text.split())}"


def _bare(text: str) -> str:
    """The letters and digits of a text, without their accents and the marks of notes."""
    if "[^" in text:
        text = _NOTE.sub("", text)
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(filter(str.isalnum, plain))


def _offset(text: str, count: int) -> int:
    """The offset after the first `count` letters and digits of a text."""
    for offset, letter in enumerate(text):
        if count <= 0:
            return offset
        count -= len(_bare(letter))
    return len(text)


def _ends_run(runs: Sequence[Run], count: int) -> bool:
    """Whether a run ends after this many letters and digits."""
    for run in runs:
        count -= len(_bare(run.text))
        if count <= 0:
            return count == 0
    return False


def _place(target: pypdfium2.PdfDest) -> tuple[float, float | None]:
    """Where a bookmark leads on its page."""
    mode, numbers = target.get_view()
    if mode in (raw.PDFDEST_VIEW_FITH, raw.PDFDEST_VIEW_FITBH) and numbers:
        return 0.0, numbers[0]
    if mode == raw.PDFDEST_VIEW_FITR and len(numbers) == 4:
        return numbers[0], numbers[3]
    has = [ctypes.c_int() for _ in range(3)]
    x, y, zoom = (ctypes.c_float() for _ in range(3))
    found = raw.FPDFDest_GetLocationInPage(target, *has, x, y, zoom)
    return x.value, y.value if found and has[1].value else None


def _tagged(page: pypdfium2.PdfPage) -> Iterator[tuple[int, set[int]]]:
    """Yield the levels of headings by tags, and the numbers of what is marked as their text."""
    tree = raw.FPDF_StructTree_GetForPage(page)
    if not tree:
        return
    try:
        count = raw.FPDF_StructTree_CountChildren(tree)
        pending = [raw.FPDF_StructTree_GetChildAtIndex(tree, n) for n in range(count)][::-1]
        left = MAX_ELEMENTS
        while pending and left > 0:
            element = pending.pop()
            left -= 1
            if level := _LEVELS.get(_tag(element)):
                inside = [*_elements(element, left)]
                left -= len(inside)
                yield level, {number for each in inside for number in _marked_in(each)}
            else:
                pending += _below(element, left)
    finally:
        raw.FPDF_StructTree_Close(tree)


def _elements(element: Any, limit: int) -> Iterator[Any]:
    """Yield an element and those inside it."""
    pending = [element]
    while pending and limit > 0:
        yield (inner := pending.pop())
        limit -= 1
        pending += _below(inner, limit)


def _below(element: Any, limit: int) -> list[Any]:
    """The elements in another, from the last to the first."""
    count = min(raw.FPDF_StructElement_CountChildren(element), limit)
    found = (raw.FPDF_StructElement_GetChildAtIndex(element, n) for n in range(count))
    return [*filter(None, found)][::-1]


def _tag(element: Any) -> str:
    buffer = ctypes.create_string_buffer(_MAX_TAG)
    size = raw.FPDF_StructElement_GetType(element, buffer, _MAX_TAG)
    return buffer.raw[: max(0, size - 2)].decode("utf-16-le", "replace") if size <= _MAX_TAG else ""


def _marked_in(element: Any) -> Iterator[int]:
    for index in range(max(0, raw.FPDF_StructElement_GetMarkedContentIdCount(element))):
        yield raw.FPDF_StructElement_GetMarkedContentIdAtIndex(element, index)


def _titles_of_tags(page: pypdfium2.PdfPage, text: PageText) -> Iterator[Title]:
    runs: dict[int, list[str]] = defaultdict(list)
    for line in text.lines:
        for run in line.runs:
            if run.letters is not None and run.kind != "hidden":
                number = pdfium.FPDFPageObj_GetMarkedContentID(run.letters.handle)
                runs[number].append(run.text)
    for level, marked in _tagged(page):
        title = " ".join(text for number in sorted(marked) for text in runs.get(number, ()))
        if title.strip():
            yield Title(level, title)

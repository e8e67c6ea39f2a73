"""The lines of a page of a PDF file.

PDFium knows the characters and the ends of lines. It does not say what is raised, struck, cut off
or invisible, and it ends lines where letters are raised. So the objects of a page are looked at
first. If nothing of that kind is there, the lines are PDFium's; otherwise they are put together
from runs, the texts of single objects.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import pypdfium2
from pypdfium2 import raw

from app.ingest.line_ends import HYPHEN
from app.ingest.markdown import Line, visible
from app.ingest.pdf_objects import Box, Known, Letters, PageObjects, Rows, consume, pdfium
from app.ingest.pdf_right_to_left import has_letters, with_brackets, with_ligatures
from app.ingest.pdf_tables import MIN_COLUMNS, Cell, Row, add_row, gap_between_cells, tables

MAX_CHARACTERS = 200_000
"""Maximum number of characters of a page that is put together from runs."""
MAX_STRUCK = 100
"""Maximum number of lines that may strike a run."""
MAX_LINES = 500
"""Lines of a page with more stay in the order in which they are drawn."""
UNKNOWN = "\ufffd"
"""Stands for a letter that is not known."""
_SAMPLE = 20
"""Number of characters that tell whether the letters of a page are known."""
_FEW, _MANY = 0.1, 0.5
"""Shares of unknown letters that are marked, and that make a page unreadable."""
_READABLE = 0.4
"""Minimum share of a to z among the letters that PDFium guessed, if it guessed well."""
_SMALLEST, _SMALLER = 0.4, 0.93
"""Sizes of raised letters, in sizes of those beside them, as are all of these:"""
_LOWEST, _HIGHEST = 0.12, 0.8
_RAISED_GAPS = (-0.2, 0.6)
"""Space before raised letters. That of the A in LaTeX's logo is smaller."""
_NOTE_GAPS = (-0.2, 1.5)
_WORD_GAP = 0.15
_MARK_GAP = 4.0
"""Maximum space between the mark of a list and its item."""
_STRUCK = (0.12, 0.5)
"""How high above the line letters are struck."""
_JUMP = 3.0
"""How much higher a line must begin to count as drawn out of order."""
_MAX_RAISED, _MAX_NOTE = 24, 4
"""Maximum number of characters of a raised text, and of the mark of a note."""
_SMALL_NOTE = re.compile(r"(\d{1,3}|[*†‡§])(\s+\S)?")
"""The mark of a note, with or without the note, that is not raised."""
_POWER = re.compile(r"(?:^|[^\d.,])10$|\d\s?[a-zA-Zµ]{1,2}$")
"""Before figures that are raised because they are powers: 10, or a unit."""
_LEADERS = re.compile(r"[\s.·…_]*")
_LIST_MARK = re.compile(r"[\ue000-\uf8ff•‣◦⁃∙·▪▫■□●○◆–—*-]|\(?\w{1,4}[.)]")
_ROW = 0.9
"""How far apart letters of a row may stand."""
_DEGREES = frozenset("◦∘")
_MAX_COLUMN = 400
_SAME_WIDTH = 0.05
"""Maximum difference of the widths of letters in lines of one block."""
_UNKNOWN = re.compile(rf"[\x01-\x08\x0b-\x1f\x7f{UNKNOWN}]+")
_OWN_BULLET = re.compile(r"^[\ue000-\uf8ff](?=\s)", re.MULTILINE)
"""The mark of a list in a font of signs."""
_HALF = re.compile(r"[\ud800-\udfff]")
_SPACES = frozenset(map(ord, "\t\n\r "))
_STEP = 256
"""Number of characters in which the end of an object is searched for."""
_RIGHT_TO_LEFT = "\u0590"
"""The first letter of the scripts that are written to the left, and of others."""


@dataclass(slots=True)
class Run:
    """The text of an object: the characters between `start` and `end`."""

    before: str
    """What separates it from the run before: a space, a line end or nothing."""
    start: int
    end: int
    letters: Letters | None
    """None: they are not upright."""
    number: int
    """The number of the object, in the order in which objects are drawn."""
    size: float = 0.0
    y: float = math.nan
    text: str = ""
    left: float = 0.0
    right: float = 0.0
    kind: str = ""
    """`raised`, `hidden`, `struck`, or empty for ordinary text."""

    def is_level_with(self, other: Run) -> bool:
        return abs(self.y - other.y) <= 0.1 * other.size

    def is_raised_above(self, base: Run) -> bool:
        """Whether the letters are smaller and higher than those of another run."""
        return self._is_shifted(base, self.y - base.y)

    def is_lowered_below(self, base: Run) -> bool:
        return self._is_shifted(base, base.y - self.y)

    def _is_shifted(self, base: Run, by: float) -> bool:
        size = base.size
        is_smaller = _SMALLEST * size <= self.size <= _SMALLER * size
        return is_smaller and _LOWEST * size <= by <= _HIGHEST * size

    def follows(self, before: Run, size: float, gaps: tuple[float, float]) -> bool:
        """Whether it stands beside the run before."""
        return gaps[0] * size <= self.left - before.right <= gaps[1] * size


@dataclass(slots=True)
class TextLine:
    """A line of text, and how high on the page it stands, if that is known."""

    text: str
    y: float = math.nan
    runs: Sequence[Run] = ()
    size: float = 0.0
    left: float = 0.0
    right: float = 0.0

    def overlaps(self, other: TextLine) -> bool:
        """Whether one stands above the other."""
        return self.left < other.right and other.left < self.right


class PageText(NamedTuple):
    text: str
    lines: Sequence[TextLine]
    """Those of `text`; empty if the places of lines are not known."""
    objects: PageObjects
    unknown: float = 0.0
    """Share of the letters that are not known."""

    @property
    def is_unreadable(self) -> bool:
        return self.unknown >= _MANY

    @property
    def has_unknown(self) -> bool:
        """Whether many letters are not known, and marked."""
        return self.unknown >= _FEW

    def upright(self, x: float, y: float) -> tuple[float, float]:
        """A point of the page as `TextLine.y` has it."""
        return self.objects.upright(x, y)


def page_text(
    page: pypdfium2.PdfPage,
    known: Known,
    struck: Sequence[Box] = (),
    by_runs: bool = False,
) -> PageText:
    """The lines of a page, which is turned so that most of its letters are upright. `struck`: where
    annotations strike text. `by_runs`: find the heights of the lines in any case."""
    objects, lines = PageObjects(page, known), _StruckLines([])
    is_plain = is_uniform = not by_runs and not struck and objects.is_uniform()
    if not is_uniform:
        objects.read()
        marked = (_middle_line(objects.upright_box(box)) for box in struck)
        lines = _StruckLines([*objects.thin_lines(), *marked])
        is_plain = not by_runs and _is_plain(objects, lines)
    if raw.FPDFPage_GetRotation(page):
        raw.FPDFPage_SetRotation(page, 0)
    unseen = set() if is_plain else objects.unseen()
    if objects.quarter:
        raw.FPDFPage_SetRotation(page, objects.quarter)
    textpage = page.get_textpage()
    try:
        unknown = _unknown_share(textpage)
        count = raw.FPDFText_CountChars(textpage)
        if unknown >= _MANY:
            return PageText("", (), objects, unknown)
        is_large = count > MAX_CHARACTERS or not objects.is_complete
        if is_large or (is_plain and unknown < _FEW):
            text = textpage.get_text_range()
            if is_large or text.count("\n") < objects.levels():
                if has_letters(text):
                    text = _with_ligatures(textpage, text)
                    text = "\n".join(with_brackets(text.split("\n")))
                return PageText(text, (), objects, unknown)
        if is_uniform:
            objects.read()
        found = _PageByRuns(textpage, objects, unknown >= _FEW).lines(unseen, lines)
        text = "\n".join(line.text for line in found)
        if has_letters(text):
            texts = with_brackets([line.text for line in found])
            found = [replace(line, text=shown) for line, shown in zip(found, texts, strict=True)]
            text = "\n".join(texts)
        return PageText(text, found, objects, unknown)
    finally:
        textpage.close()


def cleaned(text: str) -> str:
    """Text without what nobody sees. Control characters stand for letters that are not known. A
    hyphen where a line may end is drawn as one."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\xad", "-").replace("\0", "")
    shown = text.replace("\n", "").replace("\t", "").replace(HYPHEN, "")
    if UNKNOWN in text or not shown.isprintable():
        text = _OWN_BULLET.sub("•", visible(_UNKNOWN.sub(UNKNOWN, text)))
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _with_ligatures(textpage: pypdfium2.PdfTextPage, text: str) -> str:
    """A text of the page, if it has one character for each of PDFium's."""
    if len(text) != raw.FPDFText_CountChars(textpage):
        return text

    def place(index: int) -> tuple[float, ...]:
        point = Rows("d", 2, 1)
        pdfium.FPDFText_GetCharOrigin(textpage.raw, index, point.column(0)[0], point.column(1)[0])
        return next(iter(point))

    return with_ligatures(text, place)


def _middle_line(box: Box) -> Box:
    left, bottom, right, top = box
    return left, (bottom + top) / 2, right, (bottom + top) / 2


def _is_plain(objects: PageObjects, lines: _StruckLines) -> bool:
    """Whether nothing on a page needs a closer look."""
    left, bottom, right, top = objects.page_box()
    before: Letters | None = None
    is_fixed, row, longest_row = False, 0, 0
    for each in objects.letters:
        if each.is_invisible or each.is_white or each.layers:
            return False
        if not (left <= each.x <= right and bottom <= each.y <= top):
            return False
        if before is None or each.y != before.y:
            if is_fixed:
                return False
            is_fixed, row = each.is_fixed, 0
        is_fixed = is_fixed and each.is_fixed
        row += 1
        longest_row = row if row > longest_row else longest_row
        if before is not None:
            rise, size = each.y - before.y, max(each.size, before.size)
            if rise > size or (each.x < before.x - size and abs(rise) < 0.3 * size):
                return False  # drawn out of order
            if each.size != before.size and _LOWEST * size < abs(rise) < size:
                return False  # raised
        before = each
    if is_fixed or any(map(lines.through, objects.letters)):
        return False
    return longest_row < MIN_COLUMNS or not _may_have_tables(objects)


def _may_have_tables(objects: PageObjects) -> bool:
    """Whether lines that follow each other have different numbers of letters that stand apart."""
    rows = [[*group] for _, group in groupby(objects.letters, key=lambda each: each.y)]
    for before, row in pairwise(rows):
        few, many = sorted((before, row), key=len)
        if 1 < len(few) < len(many) and _stand_apart(many, objects):
            return True
    return False


def _stand_apart(row: Sequence[Letters], objects: PageObjects) -> bool:
    if len(row) < MIN_COLUMNS or any(b.x - a.x < 2 * a.size for a, b in pairwise(row)):
        return False
    boxes = (objects.upright_box(each.box()) for each in row)
    gap = gap_between_cells(row[0].size)
    return all(after[0] - before[2] >= gap for before, after in pairwise(boxes))


class _StruckLines:
    """Horizontal lines, some of which may strike letters."""

    def __init__(self, lines: Iterable[Box]) -> None:
        self._lines = sorted(lines, key=lambda line: line[1])
        self._heights = [line[1] for line in self._lines]

    def through(self, letters: Letters) -> list[Box]:
        """The lines at the height where letters would be struck, and not before them."""
        if not self._lines:
            return []
        low, high = letters.y + _STRUCK[0] * letters.size, letters.y + _STRUCK[1] * letters.size
        first = bisect_left(self._heights, low)
        if first == len(self._lines) or self._heights[first] >= high:
            return []
        last = bisect_left(self._heights, high, first)
        return [line for line in self._lines[first:last] if line[2] > letters.x]


def _unknown_share(textpage: pypdfium2.PdfTextPage) -> float:
    """The share of letters that are not known, unless PDFium guessed them well: letters of old
    bitmap fonts have no names, but the numbers of ASCII."""
    count = raw.FPDFText_CountChars(textpage)
    indexes = range(0, count, max(1, count // _SAMPLE))
    unknown = [index for index in indexes if _is_unknown(textpage.raw, index)]
    letters = (pdfium.FPDFText_GetUnicode(textpage.raw, index) for index in unknown)
    readable = sum(97 <= letter <= 122 for letter in letters)
    is_guessed = readable >= _READABLE * len(unknown)
    return 0.0 if not unknown or is_guessed else len(unknown) / len(indexes)


def _is_unknown(page: Any, index: int) -> bool:
    """Whether a font does not say which letter a character is, or only that it is its own."""
    letter: int = pdfium.FPDFText_GetUnicode(page, index)
    if pdfium.FPDFText_HasUnicodeMapError(page, index) == 1:
        return letter not in _SPACES
    return 0xE000 <= letter < 0xF900


class _PageByRuns:
    """Puts the lines of a page together."""

    def __init__(
        self, textpage: pypdfium2.PdfTextPage, objects: PageObjects, mark_unknown: bool
    ) -> None:
        self._page, self._handle, self._objects = textpage, textpage.raw, objects
        self._count: int = raw.FPDFText_CountChars(textpage)
        self._text = _with_ligatures(textpage, self._characters(mark_unknown))
        self._runs = self._read_runs()

    def lines(self, unseen: set[int], struck_by: _StruckLines) -> list[TextLine]:
        runs = self._runs
        if any(run.letters is not None and struck_by.through(run.letters) for run in runs):
            extents = self._extents()
            runs = [piece for run in runs for piece in self._pieces(run, struck_by, extents)]
        _join_level(runs)
        _mark_raised(runs)
        _undo_fractions(runs)
        _mark_notes(runs)
        page = self._objects.page_box()
        for run in runs:
            is_unseen = run.number in unseen or _is_outside(run, page)
            if is_unseen and any(map(str.isalnum, run.text)):
                run.kind = "hidden"
        found: list[list[Run]] = []
        for run in runs:
            if not found or "\n" in run.before:
                found.append([])
            found[-1].append(run)
        lines = [*map(_line, found)]
        if len(lines) <= MAX_LINES:
            lines = _in_order(_with_marks(lines))
        self._write(lines)
        return _with_tables(lines)

    def _characters(self, mark_unknown: bool) -> str:
        """The text with one character for each of PDFium's."""
        text: str = self._page.get_text_range()
        if len(text) == self._count and not mark_unknown:
            return text
        letters = map(chr, self._of_all(pdfium.FPDFText_GetUnicode))
        hyphens = self._of_all(pdfium.FPDFText_IsHyphen)
        return "".join(
            UNKNOWN
            if mark_unknown and _is_unknown(self._handle, index)
            else HYPHEN
            if hyphen == 1
            else letter
            for index, (letter, hyphen) in enumerate(zip(letters, hyphens, strict=True))
        )

    def _of_all(self, get: Callable[[Any, int], int]) -> Iterator[int]:
        return map(get, repeat(self._handle), range(self._count))

    def _read_runs(self) -> list[Run]:
        runs: list[Run] = []
        letters = self._objects.by_address()
        before = 0
        for start, end, address in self._spans():
            run = Run(self._text[before:start], start, end, None, 0, text=self._text[start:end])
            if own := letters.get(address):
                run.number = own.number
                if own.quarter == self._objects.quarter:
                    run.letters, run.size, run.y = own, own.size, own.y
            runs.append(run)
            before = end
        for run, last in zip(runs, self._boxes(run.end - 1 for run in runs), strict=True):
            if run.letters is not None and run.text < _RIGHT_TO_LEFT:
                run.left, run.right = run.letters.x, last[2]
            else:
                (first,) = self._boxes([run.start])
                run.left, run.right = min(first[0], last[0]), max(first[2], last[2])
        return runs

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield where the characters of an object begin and end, and its address. Characters that
        PDFium added have none. The end is often that of a line; otherwise it is searched for by
        halves."""
        handle, text, count = self._handle, self._text, self._count
        object_at = pdfium.FPDFText_GetTextObject

        def belongs(index: int, address: int) -> bool:
            """Whether a character, or the next one with an object, belongs to this object."""
            while index < count:
                if found := object_at(handle, index):
                    return bool(found == address)
                index += 1
            return False

        start = 0
        while start < count:
            address = object_at(handle, start)
            if not address:
                start += 1
                continue
            begin = last = start
            while True:
                stop = min(last + _STEP, count)
                line_end = text.find("\r", last + 1, stop)
                start = stop if line_end < 0 else line_end
                if not belongs(start, address):
                    break
                last = start
            if belongs(start - 1, address):
                last = start - 1
            while start - last > 1:
                middle = (last + start) // 2
                if belongs(middle, address):
                    last = middle
                else:
                    start = middle
            yield begin, start, address

    def _boxes(self, indexes: Iterable[int]) -> list[Box]:
        indexes = [*indexes]
        rows = Rows("f", 4, len(indexes))
        consume(map(pdfium.FPDFText_GetLooseCharBox, repeat(self._handle), indexes, rows.column(0)))
        upright = self._objects.upright_box
        return [upright((left, bottom, right, top)) for left, top, right, bottom in rows]

    def _pieces(
        self, run: Run, lines: _StruckLines, extents: dict[float, tuple[float, float]]
    ) -> Iterator[Run]:
        """Yield the parts of a run that are struck, and those that are not. A line that goes on
        beside the texts is a frame."""
        near = [] if run.letters is None else lines.through(run.letters)[:MAX_STRUCK]
        left, right = extents[run.y] if near else (0.0, 0.0)
        found = [
            line
            for line in near
            if line[0] < run.right and left - run.size <= line[0] and line[2] <= right + run.size
        ]
        if not found:
            yield run
            return
        boxes = self._boxes(range(run.start, run.end))
        at = run.start
        for is_struck, group in groupby(boxes, key=lambda box: _is_struck(box, found)):
            struck = [*group]
            text = self._text[at : at + len(struck)]
            kind = "struck" if is_struck and any(map(str.isalnum, text)) else ""
            before = run.before if at == run.start else ""
            end, left, right = at + len(struck), struck[0][0], struck[-1][2]
            yield replace(
                run, before=before, start=at, end=end, text=text, left=left, right=right, kind=kind
            )
            at = end

    def _extents(self) -> dict[float, tuple[float, float]]:
        """Where the texts that stand on one line begin and end, by its height."""
        found: dict[float, tuple[float, float]] = {}
        for run in self._runs:
            left, right = found.get(run.y, (run.left, run.right))
            found[run.y] = min(left, run.left), max(right, run.right)
        return found

    def _write(self, lines: Sequence[TextLine]) -> None:
        """Write the texts of the lines. Those in fonts of one width keep their columns."""
        block: list[tuple[TextLine, list[tuple[float, str]], float]] = []
        for line in lines:
            usual = block[-1][2] if block else 0.0
            width, placed = self._in_columns(line, usual) if _is_fixed(line) else (0.0, [])
            if block and (width <= 0 or abs(width / block[-1][2] - 1) > _SAME_WIDTH):
                _write_columns(block)
                block = []
            if width > 0:
                block.append((line, placed, width))
            else:
                line.text = _shown(line.runs)
        _write_columns(block)
        for line in lines:
            line.text = _whole(line.text).replace("\n", " ").replace("\r", " ")

    def _in_columns(self, line: TextLine, usual: float) -> tuple[float, list[tuple[float, str]]]:
        """The width of most letters of a line in fonts of one width, 0 if it has none; where each
        letter begins, and the letter with the space before it. Runs of other widths are stretched.
        `usual`: the width in the line before."""
        runs = [(run, self._letters_of(run)) for run in line.runs]
        width = self._width(*max(runs, key=lambda each: len(each[1])), usual)
        found: list[tuple[float, str]] = []
        for run, letters in runs:
            stretch = width / (self._width(run, letters, width) or 1.0)
            for number, (at, letter) in enumerate(letters):
                space = " " if found and number == 0 and run.before else ""
                found.append((run.left + (at - run.left) * stretch, space + letter))
        return width, found

    def _letters_of(self, run: Run) -> list[tuple[float, str]]:
        """Where each letter begins, and the letter with the space before it."""
        indexes = range(run.start, run.end)
        rows = Rows("d", 2, len(indexes))
        place = pdfium.FPDFText_GetCharOrigin
        consume(map(place, repeat(self._handle), indexes, rows.column(0), rows.column(1)))
        quarter = self._objects.quarter
        found = []
        space = ""
        for letter, point in zip(self._text[run.start : run.end], rows, strict=True):
            if letter.isspace():
                space = " "
            else:
                found.append(
                    (-point[quarter % 2] if quarter > 1 else point[quarter % 2], space + letter)
                )
                space = ""
        return found

    def _width(self, run: Run, letters: Sequence[tuple[float, str]], usual: float) -> float:
        """The width of each letter of a run in a font of one width, with the space between them; 0
        without letters, and `usual` if none stand side by side."""
        steps = [after[0] - before[0] for before, after in pairwise(letters) if len(after[1]) == 1]
        if steps:
            return sorted(steps)[len(steps) // 2]
        if usual and letters:
            return usual
        if not letters:
            return 0.0
        ((left, _, right, _),) = self._boxes([run.start])
        return right - left


def _is_struck(box: Box, lines: Sequence[Box]) -> bool:
    middle = (box[0] + box[2]) / 2
    return any(line[0] < middle < line[2] for line in lines)


def _write_columns(block: Sequence[tuple[TextLine, list[tuple[float, str]], float]]) -> None:
    """Write lines that follow each other, in fonts of one width."""
    margin = min((placed[0][0] for _, placed, _ in block), default=0.0)
    for line, placed, width in block:
        text = ""
        for x, letter in placed:
            spaces = min(round((x - margin) / width), _MAX_COLUMN) - len(text)
            text += " " * spaces + letter.strip() if spaces > 0 else letter
        line.text = text.strip() if len(block) == 1 else text


def _whole(text: str) -> str:
    """Text in which halves of characters, as PDFium counts them, are put together."""
    if _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _shown(runs: Sequence[Run]) -> str:
    line, kind = Line(), ""
    for run in runs:
        line.add(run.before.replace("\r", "").replace("\n", ""), kind if run.kind == kind else "")
        line.add(run.text, run.kind)
        kind = run.kind
    return line.text()


def _is_fixed(line: TextLine) -> bool:
    return all(
        run.letters is not None and run.letters.is_fixed and not run.kind and HYPHEN not in run.text
        for run in line.runs
        if run.text.strip()
    )


def _line(runs: Sequence[Run]) -> TextLine:
    """A line, at the height of the run with the largest letters."""
    largest = max(runs, key=attrgetter("size"))
    left, right = min([run.left for run in runs]), max([run.right for run in runs])
    return TextLine("", largest.y, runs, largest.size, left, right)


def _is_outside(run: Run, page: Box) -> bool:
    left, bottom, right, top = page
    return (
        run.right <= left or run.left >= right or run.y >= top or run.y + 0.7 * run.size <= bottom
    )


def _mark_raised(runs: Sequence[Run]) -> None:
    """Mark raised runs, and join lines that PDFium ended before or after raised and lowered
    ones."""
    base: Run | None = None
    is_shifted = False
    for before, run in pairwise(runs):
        if base is None or not is_shifted:
            base = before
        was_shifted, is_shifted = is_shifted, False
        if (
            not run.kind
            and run.follows(before, base.size, _RAISED_GAPS)
            and len(run.text) <= _MAX_RAISED
            and (run.is_raised_above(base) or run.is_lowered_below(base))
        ):
            is_shifted = True
            if run.y > base.y or "\n" in run.before:
                run.before = ""
            if run.text.strip() in _DEGREES:
                run.text = "°"
            elif run.y > base.y:
                run.kind = "raised"
        elif (
            was_shifted
            and run.is_level_with(base)
            and run.follows(before, base.size, (_RAISED_GAPS[0], math.inf))
            and "\n" in run.before
        ):
            run.before = " " if run.left - before.right > _WORD_GAP * base.size else ""


def _join_level(runs: Sequence[Run]) -> None:
    """Join lines that PDFium ended although the next run stands beside the last."""
    for before, run in pairwise(runs):
        if "\n" in run.before and run.is_level_with(before) and run.left >= before.right:
            run.before = " "


def _undo_fractions(runs: Sequence[Run]) -> None:
    """The raised figure of a fraction is no exponent: 3 1/2."""
    for run, after in pairwise(runs):
        if run.kind == "raised" and after.text[:1] in ("/", "⁄"):
            run.kind, run.before = "", " "


def _mark_notes(runs: Sequence[Run]) -> None:
    """Write `[^1]` for the raised mark of a note that begins on the page, and at the note. The mark
    at the note is raised, too, or the note is in smaller letters."""
    notes: dict[str, Run] = {}
    largest = max((run.size for run in runs), default=0.0)
    for before, run, after in zip([None, *runs[:-1]], runs, [*runs[1:], None], strict=True):
        if run.kind or not (before is None or "\n" in run.before):
            continue
        mark = run.text.strip()
        beside = after if after is not None and after.follows(run, after.size, _NOTE_GAPS) else None
        small = _SMALL_NOTE.match(run.text) if run.size < largest else None
        if beside is not None and 0 < len(mark) <= _MAX_NOTE and run.is_raised_above(beside):
            notes.setdefault(mark, run)
            beside.before = "" if beside.text[:1].isspace() else " "
        elif small and (small[2] or (beside is not None and beside.is_level_with(run))):
            notes.setdefault(small[1], run)
    used: dict[str, Run] = {}
    for before, run in pairwise(runs) if notes else ():
        marks = re.split(r"[\s,]+", run.text.strip())
        if (
            run.kind == "raised"
            and _POWER.search(before.text) is None
            and all(mark in notes and notes[mark].y < run.y for mark in marks)
            and all(notes[mark].size < before.size for mark in marks)
        ):
            run.kind, run.text = "", "".join(f"[^{mark}]" for mark in marks)
            used |= {mark: notes[mark] for mark in marks}
    for mark, note in used.items():
        note.text = note.text.replace(mark, f"[^{mark}]:", 1)


def _with_marks(lines: Sequence[TextLine]) -> list[TextLine]:
    """Put marks of lists that were drawn apart before their items."""
    for mark in lines:
        if not _LIST_MARK.fullmatch("".join(run.before + run.text for run in mark.runs).strip()):
            continue
        beside = [
            line
            for line in lines
            if line.runs
            and line is not mark
            and abs(line.y - mark.y) <= 0.3 * line.size
            and -0.2 * line.size <= line.left - mark.right <= _MARK_GAP * line.size
        ]
        if beside:
            item = min(beside, key=lambda line: line.left)
            item.runs[0].before = " "
            item.runs, mark.runs = [*mark.runs, *item.runs], ()
            item.size, item.left = max(item.size, mark.size), min(item.left, mark.left)
    return [line for line in lines if line.runs]


def _with_tables(lines: Sequence[TextLine]) -> list[TextLine]:
    """Write rows of tables that have empty cells."""
    if max((len(line.runs) for line in lines), default=0) < MIN_COLUMNS:
        return [*lines]
    parts = [[] if _is_fixed(line) else _parts(line) for line in lines]
    if max(map(len, parts), default=0) < MIN_COLUMNS:
        return [*lines]
    rows, numbers = list[Row](), list[int]()
    for number, (line, found) in enumerate(zip(lines, parts, strict=True)):
        cells = [Cell(p[0].left, p[-1].right, _shown(p).strip()) for p in found]
        add_row(rows, Row(line.y, line.y, line.size, cells))
        numbers.append(number)
        del numbers[len(rows) :]
    shown: list[TextLine] = []
    at = 0
    for start, end, table in tables(rows):
        if shown and at == numbers[start]:
            shown.append(TextLine("", lines[at].y))
        shown += lines[at : numbers[start]]
        for number, text in enumerate(table):
            line = lines[numbers[start + max(0, number - 1)]]
            shown.append(TextLine(text, line.y, line.runs if number != 1 else ()))
        at = numbers[end] if end < len(rows) else len(lines)
    return [*shown, *lines[at:]]


def _parts(line: TextLine) -> list[Sequence[Run]]:
    """The parts of a line that stand apart. Dots that lead to a number are no part. A line that
    goes on after a hyphen has none."""
    runs, first = line.runs, 0
    if any(abs(run.y - line.y) > _ROW * line.size for run in runs):
        return []
    gap = gap_between_cells(line.size)
    found = []
    for number, (before, run) in enumerate(pairwise(runs), 1):
        if (
            run.left - before.right >= gap
            and not _LEADERS.fullmatch(run.text)
            and not _LEADERS.fullmatch(before.text)
        ):
            found.append(runs[first:number])
            first = number
    return [*found, runs[first:]]


def _in_order(lines: Sequence[TextLine]) -> list[TextLine]:
    """Lines that were drawn out of order stand where they are on the page: a block of lines that
    begins above what was drawn before goes before the first line that is below it, if most of what
    follows there is below it, too. So columns stay."""
    placed: list[TextLine] = []
    at, before = 0, math.nan
    for line in lines:
        if line.y - before > _JUMP * line.size:
            lower = [number for number, other in enumerate(placed) if other.y < line.y]
            below = [number for number in lower if placed[number].overlaps(line)]
            at = below[0] if 2 * len(below) > len(lower) else len(placed)
        for number in range(at, len(placed)):
            if placed[number].y > line.y and placed[number].overlaps(line):
                at = number + 1
        placed.insert(at, line)
        at, before = at + 1, line.y
    return placed

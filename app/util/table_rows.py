"""The rows of tables in a text: sheets, CSV and TSV files, columns of fixed width, and logs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median_high

from app.util.places import MARK

MIN_ROWS = 3
"""Fewer lines are no table."""
ALIKE = 0.7
"""Minimum share of the lines of a table that have the same number of columns."""
MAX_ROW = 2000
"""Longer lines are no rows. In characters."""
MAX_HEADER = 1000
"""Longer header rows are not shown. In characters."""
FEWER_DIGITS = 5
"""A header row has at most this fraction of the digits of the rows below it: names such as `Q1`."""
OPENING = 8192
"""Characters at the beginning of a table in which its header is looked for."""
_SEPARATORS = tuple(map(re.compile, (r"\|", r"\t++", r";", r",(?=\S)", r"(?<=\S) {2,}+(?=\S)")))
"""Between columns. After a comma in prose there is a space, and in code often the line's end."""
_TAB = _SEPARATORS[1]
_FRAME = "*#/|+ "
"""Around the lines of boxes."""
_OF_RULES = frozenset("-=+|: \t")
"""Characters of a line below a header row."""
_SHAPE = str.maketrans("0123456789", "0" * 10)
_STAMP = re.compile(
    r"[^\w\s]?(?:[^\W\d_]{3},? )?\W?(?:0{2,4}[-/.:]0{2}|[^\W\d_]{3} [ 0]0 0{2}:0{2})"
)
"""Matches the beginning of a line of a log whose digits are zeros."""


@dataclass(frozen=True, slots=True)
class Table:
    """Lines that are rows, as (start, end). `mark` is the line with the sheet's name before it, and
    `header` the row with the names of the columns and the rule below it, if there are any."""

    rows: tuple[tuple[int, int], ...]
    mark: tuple[int, int] | None = None
    header: tuple[int, int] | None = None


def tables_of(text: str) -> Iterator[Table]:
    """Yield the tables of a text, in order."""
    for blank, block in groupby(_lines(text), lambda line: not text[slice(*line)].strip()):
        if not blank:
            yield from _tables_in(text, [*block])


def names_of(text: str, offset: int) -> tuple[str, str]:
    """The line with the sheet's name, and the header row, that belong to the row of a table at an
    offset; empty where there are none."""
    begin = text.rfind("\n\n", 0, offset) + 1
    if (mark := text.rfind("\n[Sheet ", begin - 1, offset)) >= 0:
        begin = mark + 1
    opening = text[begin : begin + OPENING].strip("\n")
    begin += text[begin : begin + OPENING].find(opening)
    table = next(tables_of(opening), None)
    if table is None or not table.rows or offset - begin < table.rows[0][0]:
        return "", ""
    mark_line, header = (
        "" if each is None else opening[slice(*each)].rstrip()
        for each in (table.mark, table.header)
    )
    return mark_line, header if len(header) <= MAX_HEADER else ""


def _lines(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        yield at, end
        at = end + 1


def _tables_in(text: str, lines: Sequence[tuple[int, int]]) -> Iterator[Table]:
    """The tables among lines of which none is empty. Each mark of a sheet begins another one."""
    contents = [text[slice(*line)].strip() for line in lines]
    marks = {number for number, line in enumerate(contents) if MARK.fullmatch(line)}
    borders = sorted({0, *marks, len(lines)})
    for first, last in pairwise(borders):
        begin = first + (first in marks)
        mark = lines[first] if first in marks else None
        own = [number for number in range(begin, last) if contents[number][:1] != "#"]
        separator = _separator([contents[number] for number in own])
        if separator is None:
            own = [*range(begin, last)]
            separator = _separator([contents[number] for number in own])
            if separator is None:
                continue
        count = _header_rows([contents[number] for number in own])
        header = (lines[own[0]][0], lines[own[count - 1]][1]) if count else None
        if header is None:  # perhaps a comment
            titles = range(own[0] - 1, begin - 1, -1)
            header = next((lines[n] for n in titles if separator.search(contents[n])), None)
        yield Table(tuple(lines[number] for number in own[count:]), mark, header)


def _separator(rows: Sequence[str]) -> re.Pattern[str] | None:
    """What separates the columns of a table, or the time from the rest in a log; None if the rows
    are not those of a table."""
    if len(rows) < MIN_ROWS or max(map(len, rows)) > MAX_ROW:
        return None
    shapes = [row[:16].translate(_SHAPE) for row in rows]
    if sum(_STAMP.match(shape) is not None for shape in shapes) >= ALIKE * len(rows):
        return _STAMP
    bare = [row.strip(_FRAME) for row in rows if not _is_rule(row)]
    for separator in _SEPARATORS:
        counts = Counter(len(separator.findall(row)) for row in bare)
        alike = max((often for columns, often in counts.items() if columns), default=0)
        if separator is _TAB:  # the last cells may be missing
            alike = counts.total() - counts[0]
        if alike >= max(ALIKE * len(bare), MIN_ROWS):
            return separator
    return None


def _header_rows(rows: Sequence[str]) -> int:
    """How many of the first rows name the columns: none, or one and a rule below it."""
    if _is_rule(rows[1]):
        return 2
    digits = [sum(map(str.isdigit, row)) for row in rows[:20]]
    return int(FEWER_DIGITS * digits[0] < median_high(digits))


def _is_rule(row: str) -> bool:
    return _OF_RULES.issuperset(row) and not {"-", "="}.isdisjoint(row)

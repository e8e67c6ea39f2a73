"""Where a character of a document is: page or line, and the headings above it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from app.util import formatting

MARK = re.compile(r"^\[(Page|Slide|Section|Sheet) ([^\]\n]{1,200})\]$", re.MULTILINE)
"""The line before each part of a document that a file format has."""
UNNAMED = "text"
"""Begins the made-up name of a text that has none, such as `text 2`."""
_MARKED = re.compile(
    r"(?:.*\.(?:pdf|epub|f?od[gpst]|ot[pst]|(?:doc|dot|xls|xlt|ppt|pps|pot)[mx]?|xml)(?:#.*)?"
    rf"|(?!{UNNAMED}(?: \d+)?(?: \(\d+\))?$)[^.]*)",
    re.IGNORECASE | re.DOTALL,
)
"""Names of files whose texts have marks; in others such a line is a line."""
_LABELLED = re.compile(r"(.+) \((\d[\d,]{0,12}) of \d[\d,]{0,12}\)")
"""A page whose label is not its number in the file."""
_NUMBER = re.compile(r"\d{1,9}|\d{1,3}(?:,\d{3}){1,3}")
_GAP = re.compile(r"\[Row (\d{1,9})\]")
"""Before the rows of a sheet that follow a gap."""
_EMPTY = re.compile(r"\s*(?:\(This \w+ could not be read\.\)\s*)?")
_NOT_READ = re.compile(r"^\[(.*), not read\]$", re.MULTILINE)
_HEADING = re.compile(r"^(?:(#{1,6}) ++(\S.*+)| {0,3}(`{3,}+|~{3,}+)(.*+)|\[Page )", re.MULTILINE)
"""A heading, a line that begins or ends a block of code, or a page, which ends one."""
_TITLED = re.compile(
    r"\.(?:md|mkd|mdx|markdown|[rq]md|txt|text|pdf|epub|rtf|f?od[gpst]|ot[pst]|ipynb|ics|xml"
    r"|(?:doc|dot|xls|xlt|ppt|pps|pot)[mx]?|x?html?|mht(?:ml)?|webarchive|emlx?|mbox|msg|key|pages"
    r"|numbers)(?=#|$)",
    re.IGNORECASE,
)
"""Endings of files in which a line that begins with `#` is a heading; a part may follow.
In others it is a comment."""
MAX_HEADING = 60
"""Longer headings are cut. In characters."""


@dataclass(frozen=True, slots=True)
class Place:
    """`part` is the part that the place is in, such as `page 12`, and empty if the text has none.
    `line` counts from 1 in that part, or in the file. `headings`: from the outermost one."""

    part: str
    line: int
    headings: tuple[str, ...] = ()
    unit: str = "line"
    """`row` for a row of a sheet, which the program that shows it counts likewise."""
    page: int | None = None
    """The number of the page in its file, if the text has pages. Its label may be another."""

    @property
    def text(self) -> str:
        """`page 12, line 4`"""
        return ", ".join(filter(None, (self.part, f"{self.unit} {self.line:,}")))

    @property
    def short(self) -> str:
        """`page 12, Termination`: the part or the line, and the nearest heading; of sheets, the
        row."""
        if self.unit == "row":
            return self.text
        return ", ".join((self.part or f"line {self.line:,}", *self.headings[-1:]))


def place_of(
    text: str,
    offset: int,
    first_line: int = 1,
    name: str = "",
    within: tuple[str, int] | None = None,
) -> Place:
    """The place of a character. The text starts at the `first_line` of the file `name`, or at an
    offset of a longer text of that file, which it is `within`."""
    if within is not None:
        text, begin = within
        first_line -= text.count("\n", 0, begin)
        offset += begin
    start, part, line, page = 0, "", first_line, None
    for mark in takewhile(lambda each: each.start() <= offset, marks(text, name)):
        start, line = mark.end() + 1, 1
        label, number = label_of(mark)
        own = None if mark[1] == "Sheet" else _number(label)
        part = f"{mark[1].lower()} {label if own is None else f'{own:,}'}"
        page = number if mark[1] == "Page" else None
    if part.startswith("sheet ") and (row := _row(text, start, offset)):
        return Place(part, row, unit="row")
    line += text.count("\n", start, max(offset, start))
    return Place(part, line, _path(text, offset, name), page=page)


def _row(text: str, start: int, offset: int) -> int:
    """The row of a sheet that a character is in; 0 outside of its tables. The text begins at
    `start`."""
    line = text.rfind("\n", 0, offset) + 1
    if line < start or not text.startswith("|", line):
        return 0
    gap = text.rfind("\n[Row ", start - 1, line)
    number = _GAP.match(text, gap + 1) if gap >= 0 else None
    first = start if number is None else number.end() + 1
    lines = text.count("\n", first, line)  # the second one is no row
    return (1 if number is None else int(number[1])) + lines - (lines > 0)


def label_of(mark: re.Match[str]) -> tuple[str, int | None]:
    """The label of a part by its mark, and its number in the file: `iv` and 4 for
    `[Page iv (4 of 210)]`."""
    if mark[1] == "Page" and (labelled := _LABELLED.fullmatch(mark[2])):
        return labelled[1], _number(labelled[2])
    number = _number(mark[2])
    return mark[2] if number is None else str(number), number


def _number(label: str) -> int | None:
    """The number that a label is, also written as `1,000`; None if it is another one."""
    return int(label.replace(",", "")) if _NUMBER.fullmatch(label) else None


def marks(text: str, name: str = "") -> Iterator[re.Match[str]]:
    """Yield the marks of the parts of a document with this name."""
    return MARK.finditer(text) if _MARKED.fullmatch(name) else iter(())


def escape_marks(text: str, name: str = "") -> str:
    """The text of a file that has no parts. Unless its name tells that, a blank is put before
    lines that look like marks."""
    return MARK.sub(r" \g<0>", text) if _MARKED.fullmatch(name) else text


def gaps(text: str, name: str = "") -> Iterator[str]:
    """Yield what could not be read of a document, such as `2 of 80 pages without text`."""
    found = [*marks(text, name)]
    ends = [*(mark.start() for mark in found[1:]), len(text)]
    empty = sum(
        mark[1] != "Sheet" and _EMPTY.fullmatch(text, mark.end(), end) is not None
        for mark, end in zip(found, ends, strict=False)
    )
    if empty:
        kind = found[0][1].lower()
        yield f"{empty:,} of {formatting.plural(len(found), kind)} without text"
    others = [mark[1] for mark in _NOT_READ.finditer(text)]
    attached = sum(each.startswith("Attachment ") for each in others)
    if attached:
        yield f"{formatting.plural(attached, 'attachment')} not read"
    for each in dict.fromkeys(others):
        if not each.startswith("Attachment "):
            yield f"{each[0].lower()}{each[1:]} not read"


@dataclass(frozen=True, slots=True)
class Heading:
    """A Markdown heading. `start` is the offset of its first `#`."""

    start: int
    level: int
    title: str


def headings(text: str, name: str = "") -> Iterator[Heading]:
    """Yield the headings of a text. In files whose `name` does not say that they may have some, a
    line that begins with `#` is a comment."""
    if not _may_have_headings(name):
        return
    code = ""
    for found in _HEADING.finditer(text):
        marks, title, fence, rest = found.groups()
        if marks and not code:
            yield Heading(found.start(), len(marks), _without_closing_hashes(title.rstrip()))
        elif fence and not code and not (fence[0] == "`" and "`" in rest):
            code = fence
        elif not marks and (not fence or (fence.startswith(code) and not rest.strip())):
            code = ""


def _may_have_headings(name: str) -> bool:
    """Without an ending only names like README may, and those of texts that are no files."""
    bare = name.partition("#")[0].rpartition("/")[2]
    return (
        not name
        or _TITLED.search(name) is not None
        or ("." not in bare and (bare.isupper() or " " in bare))
    )


def _without_closing_hashes(title: str) -> str:
    """A title without the `#` that may follow it."""
    bare = title.rstrip("#")
    return bare.rstrip() if bare.endswith(" ") else title


def _path(text: str, offset: int, name: str) -> tuple[str, ...]:
    """The headings that a character stands below, or in."""
    path: list[Heading] = []
    for heading in takewhile(lambda each: each.start <= offset, headings(text, name)):
        while path and path[-1].level >= heading.level:
            path.pop()
        path.append(heading)
    return tuple(
        each.title if len(each.title) <= MAX_HEADING else f"{each.title[:MAX_HEADING]}…"
        for each in path
    )

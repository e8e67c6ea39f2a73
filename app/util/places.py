"""Where a character of a document is: page or line, and the headings above it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
_HEADING = re.compile(
    r"^(?:(#{1,6}) ++(\S.*+)| {0,3}(`{3,}+|~{3,}+)(.*+)|\[Page |(#))", re.MULTILINE
)
"""A heading, a line that begins or ends a block of code, a page, which ends one, or a comment."""
_STARS = re.compile(r"^(\*{1,20}) ++(\S.*+)()()()", re.MULTILINE)
_EQUALS = re.compile(
    r"^(?:([=#]{1,6}) ++(\S.*+)"
    r"|(`{3,}+|(?:-{4,}+|\.{4,}+|\+{4,}+|/{4,}+)(?=[ \t\r]*$))(.*+)())",
    re.MULTILINE,
)
"""The same in Org and AsciiDoc."""
_UNDERLINED = re.compile(
    r"(?:\A(?:[ \t\r]*+\n)*+|\n[ \t\r]*+\n)"
    r"(?:(([!-/:-@\[-`{-~])\2{2,}+)[ \t\r]*+\n[ \t]*+)?(\S.*+)\n"
    r"(([!-/:-@\[-`{-~])\5{2,}+)[ \t\r]*+$",
    re.MULTILINE,
)
"""A heading in reStructuredText, which may also have a line above it."""
_COMMAND = re.compile(
    r"^[ \t]*+\\(part|chapter|(?:sub){0,2}section|(?:sub)?paragraph)\*?(?:\[[^\]\n]{0,300}\])?"
    r"\{((?:[^{}\n]|\{[^{}\n]{0,100}\}){1,300})\}",
    re.MULTILINE,
)
"""A heading in LaTeX."""
_LEVELS = "part chapter section subsection subsubsection paragraph subparagraph"
_COMMANDS = {name: level for level, name in enumerate(_LEVELS.split(), 1)}
_OWN_KIND = re.compile(
    r"^(?!www\.|.*://).*\.(?:(?P<underlined>rst|rest)|(?P<stars>org)|(?P<equals>adoc|asciidoc)|(?P<command>tex|latex))"
    r"(?=#|$)",
    re.IGNORECASE | re.DOTALL,
)
"""Endings of files whose headings have another form."""
_APART = re.compile(r".*+(?:\Z|\n(?:[ \t\r]*+(?:\n|\Z)|[-*+>|] |\d{1,3}[.)] |##))")
"""A line before an empty one, a list, a quote, a table or a lower heading. Few comments are."""
_TITLED = re.compile(
    r"\.(?:md|mkdn?|mdx|mdown|mdwn|markdown|[rq]md|txt|text|pdf|epub|rtf|f?od[gpst]|ot[pst]|ipynb|ics"
    r"|xml|(?:doc|dot|xls|xlt|ppt|pps|pot)[mx]?|x?html?|mht(?:ml)?|webarchive|emlx?|mbox|msg|key|pages"
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
    """A heading. `start` is the offset of its first line."""

    start: int
    level: int
    title: str


def headings(text: str, name: str = "") -> Iterator[Heading]:
    """Yield the headings of a text, in the form that the `name` of its file tells. In files that do
    not have any, such as source code, a line that begins with `#` is a comment. Without an ending,
    names like README may have some, and others if no line in the text seems to be a comment."""
    if (own := _OWN_KIND.search(name)) is not None:
        yield from filter(None, _OF_KINDS[own.lastgroup or ""](text))
        return
    found = _marked_headings(text, _HEADING)
    bare = name.partition("#")[0].rpartition("/")[2]
    if not name or _TITLED.search(name) or ("." not in bare and (bare.isupper() or " " in bare)):
        yield from filter(None, found)
    elif "." not in bare and not bare.endswith("file"):
        known = [*found]
        is_markdown = all(each and _APART.match(text, each.start) for each in known)
        yield from filter(None, known if is_markdown or MARK.match(text) else ())


def _marked_headings(text: str, lines: re.Pattern[str]) -> Iterator[Heading | None]:
    """Yield headings that begin with marks, and None for each comment outside of code."""
    code = ""
    for found in lines.finditer(text):
        marks, title, fence, rest, comment = found.groups()
        if marks and not code:
            yield Heading(
                found.start(), len(marks), _without_closing_marks(title.rstrip(), marks[0])
            )
        elif comment:
            if not code:
                yield None
        elif fence and not code and not (fence[0] == "`" and "`" in rest):
            code = fence
        elif not marks and (not fence or (fence.startswith(code) and not rest.strip())):
            code = ""


def _underlined_headings(text: str) -> Iterator[Heading]:
    levels: dict[tuple[str, bool], int] = {}
    for found in _UNDERLINED.finditer(text):
        above, _, title, below, mark = found.groups()
        title = title.rstrip()
        if not any(map(str.isalnum, title)):
            continue
        if above in (None, below) and len(below) >= min(len(title), 4):
            level = levels.setdefault((mark, above is not None), len(levels) + 1)
            yield Heading(found.start(3 if above is None else 1), level, title)


def _command_headings(text: str) -> Iterator[Heading]:
    for found in _COMMAND.finditer(text):
        yield Heading(found.start(), _COMMANDS[found[1]], found[2].strip())


_OF_KINDS: dict[str, Callable[[str], Iterator[Heading | None]]] = {
    "underlined": _underlined_headings,
    "command": _command_headings,
    "stars": lambda text: _marked_headings(text, _STARS),
    "equals": lambda text: _marked_headings(text, _EQUALS),
}
"""By the groups of `_OWN_KIND`."""


def _without_closing_marks(title: str, mark: str) -> str:
    bare = title.rstrip(mark)
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

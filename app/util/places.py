"""Where a character of a document is: page or line, and the headings above it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

_MARK = re.compile(r"^\[(Page|Slide|Section|Sheet) ([^\]\n]{1,200})\]$", re.MULTILINE)
"""The line before each part of a document that a file format has."""
_HEADING = re.compile(r"^(#{1,6}) +(\S.*?)[ #]*$", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)
_SOURCE = re.compile(
    r"\.(?:bash|cfg|conf|csv|ini|jl|log|mk|nix|php|pl|pm|ps1|pyi?|r|rb|sh|sql|tcl|toml|tsv|ya?ml|zsh)"
)
"""Endings of files in which a `#` begins no heading."""
MAX_HEADING = 60
"""Longer headings are cut. In characters."""


@dataclass(frozen=True, slots=True)
class Place:
    """`part` is the part that the place is in, such as `page 12`, and empty if the text has none.
    `line` counts from 1 in that part, or in the file. `headings`: from the outermost one."""

    part: str
    line: int
    headings: tuple[str, ...] = ()

    @property
    def page(self) -> int | None:
        """The number of the page, if the text has pages."""
        kind, _, number = self.part.partition(" ")
        return int(number) if kind == "page" and number.isdigit() else None

    @property
    def text(self) -> str:
        """`page 12, line 4`"""
        return ", ".join(filter(None, (self.part, f"line {self.line:,}")))

    @property
    def short(self) -> str:
        """`page 12, Termination`: the part or the line, and the nearest heading."""
        return ", ".join((self.part or f"line {self.line:,}", *self.headings[-1:]))


def place_of(text: str, offset: int, first_line: int = 1, name: str = "") -> Place:
    """The place of a character. The text starts at the `first_line` of the file `name`."""
    start, part, line = 0, "", first_line
    for mark in _MARK.finditer(text, 0, offset):
        start, line = mark.end() + 1, 1
        number = f"{int(mark[2]):,}" if mark[2].isdecimal() else mark[2]
        part = f"{mark[1].lower()} {number}"
    line += text.count("\n", start, max(offset, start))
    has_headings = not _SOURCE.fullmatch(PurePath(name).suffix.lower())
    return Place(part, line, _headings(text, offset) if has_headings else ())


def _headings(text: str, offset: int) -> tuple[str, ...]:
    """The Markdown headings that a character stands below, or in."""
    fences = [match.start() for match in _FENCE.finditer(text, 0, offset)]
    code = list(zip(fences[::2], [*fences[1::2], offset], strict=False))
    path: list[tuple[int, str]] = []
    for heading in _HEADING.finditer(text):
        if heading.start() > offset:
            break
        if any(start < heading.start() < end for start, end in code):
            continue
        level = len(heading[1])
        while path and path[-1][0] >= level:
            path.pop()
        title = heading[2].strip()
        path.append((level, title if len(title) <= MAX_HEADING else f"{title[:MAX_HEADING]}…"))
    return tuple(title for _, title in path)

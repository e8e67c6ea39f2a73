"""The parts of a web page that are written when they are complete: lines, tables, formulas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import TreeBuilder

from app.ingest.formulas import linear
from app.ingest.html_elements import SPECIAL
from app.ingest.html_source import Tag
from app.ingest.markdown import Line, Writer, max_cells

_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")
_HEADING_MARK = re.compile(r"^#{1,6} ", re.MULTILINE)
_RULE = re.compile(r"^\|(?: --- \|)+\n", re.MULTILINE)
_ROW = re.compile(r"^\| (.*) \|$", re.MULTILINE)
_BLOCK = re.compile(r"(?:#{1,6}|-|\d+\.|\||>) ")
_MAX_SPAN = 100
"""Maximum cells that a table has with its spans, for each cell of the source."""
_MAX_FORMULA = 50_000
"""Maximum characters of a formula that is written in its linear form."""
_MAX_FORMULA_DEPTH = 80


class Flow:
    """Lines of text that follow each other: those of the page, or of a cell."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.pieces: list[tuple[str, str]] = []
        """Texts of the current line, and their kinds (see `markdown.Line`)."""
        self.line = 0
        """Number of the current line."""
        self.heading = 0
        """Level of the open heading."""
        self.note = ""
        """The mark of a note that begins here."""
        self.is_code = False
        self.has_code = False
        """Whether it has lines of code, which cannot stand in a table."""
        self.lists: list[OpenList] = []
        self.items: list[Item] = []
        self._lines: list[str] = []

    def add(self, text: str, kind: str = "") -> None:
        if self.note and text.strip():
            mark, self.note = self.note, ""
            if not text.strip(" [(").startswith(mark):
                self.add(f"[{mark}] ")
        if not self.is_code and (not self.pieces or self.pieces[-1][0].endswith(" ")):
            text = text.removeprefix(" ")
        if text:
            self.pieces.append((text, kind))

    def end_line(self) -> None:
        if self.is_code:
            if self.pieces and not self.pieces[-1][0].endswith("\n"):
                self.pieces.append(("\n", ""))
        elif self.pieces:
            self._lines.append(self._shown())

    def end_paragraph(self) -> None:
        self.end_line()
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        if not any(map(str.strip, lines)):
            return
        mark = self.items[-1].take() if self.items else ""
        if self.heading:
            words = [mark if mark != "-" else "", *lines]
            self.writer.heading(self.heading, " ".join(filter(None, words)))
            self.heading = 0
        elif self.items:
            self.writer.item(self.items[-1].depth, mark, "\n".join(lines))
        else:
            self.writer.paragraph("\n".join(lines))

    def end_code(self, in_cell: bool) -> None:
        self.is_code = False
        code = self._shown()
        if not code.strip():
            return
        if in_cell and "\n" not in code.strip("\n"):
            self._lines.append(code.strip())
            self.end_paragraph()
        else:
            self.has_code = True
            self.write_mark()
            self.writer.code(code)

    def write_mark(self) -> None:
        """Write the number of an item before what is not its text."""
        self.end_paragraph()
        if self.items and (mark := self.items[-1].take()):
            self.writer.item(self.items[-1].depth, mark, "")

    def quote(self, quoted: Flow) -> None:
        """Write what a quote holds."""
        self.write_mark()
        lines = quoted.text().split("\n")
        if any(lines):
            self.writer.block("\n".join(f"> {line}".rstrip() for line in lines))
        self.line += 1
        self.has_code |= quoted.has_code

    def text(self) -> str:
        self.end_paragraph()
        return self.writer.text()

    def _shown(self) -> str:
        line = Line()
        for text, kind in self.pieces:
            line.add(text, kind)
        self.pieces.clear()
        self.line += 1
        return line.text()


@dataclass(slots=True)
class OpenList:
    """An open list."""

    format: str
    """As in `list_numbers.formatted`; or `bullet`; or `none`: items without marks."""
    number: int = 1
    step: int = 1
    items: int = 0

    def next(self, value: str) -> int:
        """The number of the next item, which may have a `value`."""
        number = integer(value, self.number)
        self.number = number + self.step
        self.items += 1
        return number


@dataclass(slots=True)
class Item:
    """An open item of a list. Its mark is written before its first text."""

    depth: int
    mark: str

    def take(self) -> str:
        mark, self.mark = self.mark, ""
        return mark


@dataclass(slots=True)
class Cell:
    columns: int
    rows: int
    text: str = ""


@dataclass(slots=True)
class Table:
    """An open table."""

    role: str = ""
    rows: list[list[Cell]] = field(default_factory=list)
    has_table: bool = False
    has_code: bool = False
    has_header: bool = False

    def grid(self) -> list[list[str]]:
        """Rows with the texts of the cells in their columns. Columns in which no cell begins are
        dropped. If there would be many more cells than in the source, spans are ignored."""
        room = max_cells(sum(map(len, self.rows)))
        spans = sum(each.columns * (each.rows - 1) for row in self.rows for each in row) <= room
        placed: list[dict[int, str]] = []
        covered: dict[int, int] = {}  # columns that a cell above covers, and for how many rows
        for row in self.rows:
            line, column = dict[int, str](), 0
            below = {at: rows - 1 for at, rows in covered.items() if rows > 1}
            for cell in row:
                while column in covered:
                    column += 1
                line[column] = cell.text
                if spans and cell.rows > 1:
                    below |= dict.fromkeys(range(column, column + cell.columns), cell.rows - 1)
                column += cell.columns
            covered = below
            placed.append(line)
        columns = sorted({column for line in placed for column in line})
        if len(columns) * len(placed) > room:
            return [[*line.values()] for line in placed]
        return [[line.get(column, "") for column in columns] for line in placed]


class Choice:
    """An open field of a form that offers options."""

    def __init__(self, is_multiple: bool) -> None:
        self._is_multiple = is_multiple
        self._options: list[list[str]] = []
        self._chosen: list[int] = []

    def option(self, is_chosen: bool) -> None:
        if is_chosen:
            self._chosen.append(len(self._options))
        self._options.append([])

    def add(self, text: str) -> None:
        if self._options:
            self._options[-1].append(text)

    def text(self) -> str:
        chosen = self._chosen if self._is_multiple else (self._chosen or [0])[-1:]
        options = [" ".join("".join(self._options[at]).split()) for at in chosen if self._options]
        return f"[{', '.join(options) or ' '}]"


class Formula:
    """An open formula in MathML."""

    def __init__(self) -> None:
        self._builder = TreeBuilder()
        self._root = self._builder.start("math", {})
        self._open = ["math"]
        self._texts: list[str] = []

    def takes(self, tag: Tag) -> bool:
        """Read a tag, if it is one of the formula."""
        if tag.name in SPECIAL and not tag.is_end:
            return False
        if not tag.is_end:
            self._start(tag)
        elif tag.name != "math" and tag.name in self._open:
            self._end(tag.name)
        return not tag.is_end or tag.name != "math"

    def _start(self, tag: Tag) -> None:
        if len(self._open) < _MAX_FORMULA_DEPTH:
            known = tag.attributes if tag.name in ("mfrac", "mfenced") else {}
            self._builder.start(tag.name, {**known})
            self._open.append(tag.name)
            if tag.is_empty:
                self._end(tag.name)

    def _end(self, name: str) -> None:
        """End the innermost element of a name, and those inside it."""
        while (last := self._open.pop()) != name:
            self._builder.end(last)
        self._builder.end(name)

    def add(self, text: str) -> None:
        self._builder.data(text)
        self._texts.append(text)

    def text(self) -> str:
        for name in reversed(self._open):
            self._builder.end(name)
        is_long = sum(map(len, self._texts)) > _MAX_FORMULA
        return " ".join((" ".join(self._texts) if is_long else linear(self._root)).split())


def blocks(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the texts of a table that only arranges them. A row of short texts is a line."""
    lines: list[str] = []
    for row in rows:
        texts = [text for text in row if text.strip()]
        if all("\n" not in text and not _BLOCK.match(text) for text in texts):
            lines += [" | ".join(texts)] if texts else []
            continue
        if lines:
            yield "\n".join(lines)
            lines = []
        yield from texts
    if lines:
        yield "\n".join(lines)


def in_cell(text: str) -> str:
    """The text of a cell without headings, and with the rows of a table inside it as a list."""
    text = _HEADING_MARK.sub("", text)
    if "| --- |" in text:
        text = _ROW.sub(lambda row: f"{', '.join(row[1].split(' | '))};", _RULE.sub("", text))
        text = text.replace(";\n\n", "\n\n").replace("\\|", "|").removesuffix(";")
    return text


def integer(value: str, default: int) -> int:
    return int(value) if _INTEGER.fullmatch(value) else default


def span(value: str) -> int:
    known = value.isdecimal() and len(value) < 5 and value.strip("0")
    return min(int(value), _MAX_SPAN) if known else 1

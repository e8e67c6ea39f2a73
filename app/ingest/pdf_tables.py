"""Tables on the pages of PDF files that have empty cells: without columns, what stands after an
empty cell would seem to be in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from app.ingest import markdown

MAX_COLUMNS = 50
MIN_COLUMNS = 3
_CELL_GAP = 0.8
"""Minimum space between cells, in sizes of their letters."""
_ROW_GAP = 4.0
"""Maximum distance of rows."""


class Cell(NamedTuple):
    """A part of a line that stands apart from the others."""

    left: float
    right: float
    text: str

    def overlaps(self, other: Cell) -> bool:
        return self.left < other.right and other.left < self.right


class Row(NamedTuple):
    """A line with cells. `y` is its height on the page."""

    y: float
    size: float
    cells: Sequence[Cell]


def gap_between_cells(size: float) -> float:
    """The space from which on texts are cells of their own."""
    return _CELL_GAP * size


def tables(rows: Sequence[Row]) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the tables with empty cells before others: the first row, the one after the last, and
    the lines of Markdown."""
    start = 0
    while start < len(rows):
        if not MIN_COLUMNS <= len(rows[start].cells) <= MAX_COLUMNS:
            start += 1
            continue
        found = _table(rows, start)
        if any(not cell and any(row[n:]) for row in found for n, cell in enumerate(row)):
            yield start, start + len(found), markdown.table(found).split("\n")
        start += len(found)


def _table(rows: Sequence[Row], start: int) -> list[list[str]]:
    """The texts of rows in the columns of the row at `start`, which are as wide as their widest
    cells. A row with one cell may continue a cell above it, but does not end a table."""
    columns = [*rows[start].cells]
    found = [[cell.text for cell in columns]]
    last = 1
    for at in range(start + 1, len(rows)):
        row = rows[at]
        numbers = _columns_of(row, columns)
        if numbers is None or not 0 < rows[at - 1].y - row.y <= _ROW_GAP * row.size:
            break
        texts = [""] * len(columns)
        for number, cell in zip(numbers, row.cells, strict=True):
            texts[number], column = cell.text, columns[number]
            columns[number] = Cell(min(column.left, cell.left), max(column.right, cell.right), "")
        found.append(texts)
        if len(row.cells) > 1:
            last = len(found)
    return found[:last]


def _columns_of(row: Row, columns: Sequence[Cell]) -> list[int] | None:
    """The column of each cell of a row; None if a cell is in several columns or in none, or two are
    in one."""
    numbers = []
    for cell in row.cells:
        below = [number for number, column in enumerate(columns) if column.overlaps(cell)]
        if len(below) != 1 or below[0] in numbers:
            return None
        numbers += below
    return numbers

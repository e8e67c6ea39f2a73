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
_MAX_LINES = 12
"""Maximum lines of a cell."""
_SAME_HEIGHT = 0.1
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
    """A line with cells, or several if cells have more. `y` is the height of the first line on the
    page."""

    y: float
    last_y: float
    size: float
    cells: Sequence[Cell]


def gap_between_cells(size: float) -> float:
    """The space from which on texts are cells of their own."""
    return _CELL_GAP * size


def add_row(rows: list[Row], row: Row) -> None:
    """Add the row of a line. If it stands beside a row before, it is part of that one, and the
    lines between are those of a cell."""
    for at in range(len(rows) - 1, max(-1, len(rows) - _MAX_LINES), -1):
        other = rows[at]
        if abs(other.y - row.y) <= _SAME_HEIGHT * row.size:
            lines = [*other.cells[-1:], *(each.cells[0] for each in rows[at + 1 :])]
            if _is_one_row(other.cells, lines, row.cells):
                cells = [*other.cells[:-1], _whole(lines), *row.cells]
                rows[at:] = [other._replace(last_y=rows[-1].last_y, cells=cells)]
                return
        if other.y >= row.y or len(other.cells) != 1:
            break
    rows.append(row)


def _is_one_row(left: Sequence[Cell], lines: Sequence[Cell], right: Sequence[Cell]) -> bool:
    """Whether cells are those of one row; `lines` are those of the last one to the left. Texts in
    columns have two cells."""
    return (
        min(len(left), len(right)) > 0
        and len(left) + len(right) >= MIN_COLUMNS
        and all(line.overlaps(left[-1]) for line in lines)
        and _whole(lines).right < right[0].left
    )


def _whole(lines: Sequence[Cell]) -> Cell:
    """The cell of several lines."""
    left, right = min(line.left for line in lines), max(line.right for line in lines)
    return Cell(left, right, " ".join(line.text for line in lines))


def tables(rows: Sequence[Row]) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the tables with empty cells before others: the first row, the one after the last, and
    the lines of Markdown."""
    start = 0
    while start < len(rows):
        if not MIN_COLUMNS <= len(rows[start].cells) <= MAX_COLUMNS:
            start += 1
            continue
        found = _table(rows, start)
        if len(found) > 1 and any(
            not cell and any(row[n:]) for row in found for n, cell in enumerate(row)
        ):
            yield start, start + len(found), markdown.table(found).split("\n")
        start += len(found)


def _table(rows: Sequence[Row], start: int) -> list[list[str]]:
    """The texts of rows in the columns of the row at `start`, which are as wide as their widest
    cells. The first row may have no cell above the first column. A row with one cell may continue a
    cell above it, but does not end a table."""
    columns = [*rows[start].cells]
    corner = rows[start + 1].cells[:1] if start + 1 < len(rows) else ()
    if corner and corner[0].right < columns[0].left:
        columns.insert(0, corner[0]._replace(text=""))
    found = [[cell.text for cell in columns]]
    last = 1
    for at in range(start + 1, len(rows)):
        row = rows[at]
        numbers = _columns_of(row, columns)
        if numbers is None or not 0 < rows[at - 1].last_y - row.y <= _ROW_GAP * row.size:
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

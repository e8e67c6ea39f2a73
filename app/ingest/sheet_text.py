"""Writes the rows of a sheet as tables, so that each line tells its row.

Rows follow each other as in the program that shows them. After a longer gap a new table begins,
below a line such as `[Row 45]`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from app.ingest import markdown
from app.ingest.parts import Part
from app.util import formatting

MAX_ROWS = 50_000
MAX_COLUMNS = 1_000
MAX_CELLS = 1_000_000
"""Cells after which no further row of a sheet is read."""
_MAX_GAP = 2
"""Empty rows that are written; after more of them a new table begins."""
_NOT_CALCULATED = "(not calculated)"


def column_name(column: int) -> str:
    """`A` for 0, `AB` for 27."""
    name = ""
    column += 1
    while column > 0:
        column, letter = divmod(column - 1, 26)
        name = chr(65 + letter) + name
    return name


class SheetText:
    """The text of a sheet."""

    def __init__(self, name: str, hidden: bool = False) -> None:
        self._mark = f"[Sheet {' '.join(name.split())}{' (hidden)' if hidden else ''}]"
        self._rows: list[tuple[int, list[str]]] = []
        self._hidden: set[int] = set()
        self._cells = 0
        self._more = False
        self._formulas = 0

    def hide_columns(self, columns: Iterable[int]) -> None:
        """Columns that the program does not show, from 0."""
        self._hidden.update(columns)

    def not_calculated(self, formula: str) -> str:
        """The text of a cell whose formula has no value yet."""
        self._formulas += 1
        return f"={formula.removeprefix('=')} {_NOT_CALCULATED}"

    def add(self, number: int, cells: Sequence[str], times: int = 1, hidden: bool = False) -> bool:
        """Add a row, from 0, as often as it is repeated. Returns whether more rows are read."""
        if len(cells) > MAX_COLUMNS:
            self._more = self._more or any(cells[MAX_COLUMNS:])
            cells = cells[:MAX_COLUMNS]
        if not any(cells):
            return True
        row = [*cells]
        if hidden:
            first = next(place for place, text in enumerate(row) if text)
            row[first] = f"(hidden) {row[first]}"
        for each in range(number, number + times):
            if len(self._rows) == MAX_ROWS or self._cells > MAX_CELLS:
                self._more = True
                return False
            self._rows.append((each, row))
            self._cells += len(row)
        return True

    def link(self, number: int, column: int, target: str) -> None:
        """Add the address that a cell links to, unless the cell shows it."""
        at = bisect_left(self._rows, number, key=lambda row: row[0])
        row = self._rows[at][1] if at < len(self._rows) and self._rows[at][0] == number else []
        if column < len(row):
            row[column] += markdown.address(target, row[column])

    def part(self, after: str = "") -> Part:
        """The sheet as a part of the document. `after` is what follows the rows."""
        used = sorted({place for _, row in self._rows for place, text in enumerate(row) if text})
        blocks: list[str] = []
        table: list[list[str]] = []
        first = last = -1

        def end() -> None:
            if table:
                if first > (0 if not blocks else -1):
                    blocks.append(f"[Row {first + 1}]")
                blocks.append(markdown.table(table))
                table.clear()

        for number, row in self._rows:
            if table and number - last - 1 > _MAX_GAP:
                end()
            if table:
                table += [[]] * (number - last - 1)
            else:
                first = number
                if not blocks:
                    row = self._with_hidden_columns(row)
            table.append([row[place] for place in used if place < len(row)])
            last = number
        end()
        rows = len(self._rows)
        note = f"only the first {rows:,} rows and {MAX_COLUMNS:,} columns" if self._more else ""
        text = "\n".join(blocks)
        said = []
        if self._formulas:
            formulas = formatting.plural(self._formulas, "formula")
            detail = f"has {formulas} without a value ({self._mark[1:-1]})"
            said.append((detail, "open it in a spreadsheet program and save it"))
        return Part(self._mark, "\n\n".join(filter(None, (text, after))), note, said=tuple(said))

    def _with_hidden_columns(self, row: list[str]) -> list[str]:
        return [
            f"(hidden) {text}".strip() if place in self._hidden else text
            for place, text in enumerate(row)
        ]

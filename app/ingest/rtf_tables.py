"""Tables of Rich Text, which the file gives as paragraphs, cells and rows that end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar

from app.ingest.markdown import Writer

Block = Callable[[Writer], object]
"""Writes a paragraph, a table or another block."""
_MAX_TABLES = 8
"""Tables that are nested deeper are read as the text of their cell."""
_SAME_PLACE = 60
"""Cells that begin as near to each other, in twentieths of a point, are in the same column."""
_MAX_EMPTY = 20
"""Maximum cells of a table in columns, for each cell that it has."""


def written(outer: Writer, blocks: Iterable[Block]) -> str:
    """The text of blocks inside what `outer` writes, such as those of a cell or a note."""
    writer = Writer(outer)
    for block in blocks:
        block(writer)
    return writer.text()


class RowShape:
    """Where the cells of a row begin, and which are parts of others."""

    WORDS: ClassVar = ("trleft", "cellx", "clmrg", "clvmrg")

    def __init__(self) -> None:
        self._places = [0]
        """Where each cell begins, and where the last one ends."""
        self._beside: set[int] = set()
        self._below: set[int] = set()

    def word(self, word: str, value: int) -> None:
        cell = len(self._places) - 1
        if word == "cellx":
            self._places.append(value)
        elif word == "clmrg":
            self._beside.add(cell)
        elif word == "clvmrg":
            self._below.add(cell)
        elif cell == 0:
            self._places[0] = value

    def starts(self, cells: int) -> Sequence[int] | None:
        """Where that many cells begin; None if the file does not say it."""
        return self._places[:cells] if cells < len(self._places) else None

    def is_beside(self, cell: int) -> bool:
        """Whether a cell is a part of the one before it."""
        return cell in self._beside

    def is_below(self, cell: int) -> bool:
        """Whether a cell is a part of the one above it."""
        return cell in self._below


class Blocks:
    """Passes the blocks of a text on, those of a table as a table."""

    def __init__(self, emit: Callable[[Block], object]) -> None:
        self._emit = emit
        self._tables: list[_Table] = []
        """The tables that have not ended yet: each is in a cell of the one before it."""

    def put(self, block: Block | None, level: int) -> None:
        """Add a block that is in that many tables. Even without a block, deeper ones have ended."""
        self._go_to(level)
        if block is not None:
            self._add(block)

    def end_cell(self, level: int) -> None:
        self._go_to(max(1, level))
        self._tables[-1].end_cell()

    def end_row(self, level: int, shape: RowShape) -> None:
        """End a row of the outermost table, or (level 2) of the innermost one."""
        self._go_to(1 if level == 1 else max(2, len(self._tables)))
        self._tables[-1].end_row(shape)

    def close(self) -> None:
        self._go_to(0)

    def _add(self, block: Block) -> None:
        if self._tables:
            self._tables[-1].cell.append(block)
        else:
            self._emit(block)

    def _go_to(self, level: int) -> None:
        level = max(0, min(level, _MAX_TABLES))
        while len(self._tables) > level:
            for block in self._tables.pop().blocks():
                self._add(block)
        while len(self._tables) < level:
            self._tables.append(_Table())


class _Table:
    def __init__(self) -> None:
        self.cell: list[Block] = []
        """The cell that has not ended yet."""
        self._cells: list[list[Block]] = []
        self._rows: list[tuple[list[list[Block]], RowShape]] = []

    def end_cell(self) -> None:
        self._cells.append(self.cell)
        self.cell = []

    def end_row(self, shape: RowShape) -> None:
        if self.cell:
            self.end_cell()
        if self._cells:
            self._rows.append((self._cells, shape))
            self._cells = []

    def blocks(self) -> Iterator[Block]:
        """The table, or what it contains if it only frames that."""
        self.end_row(RowShape())
        if any(len(cells) > 1 for cells, _ in self._rows):
            yield partial(_write_table, rows=self._rows)
        else:
            for cells, _ in self._rows:
                for cell in cells:
                    yield from cell


def _write_table(writer: Writer, rows: Iterable[tuple[list[list[Block]], RowShape]]) -> None:
    texts = [([written(writer, cell) for cell in cells], shape) for cells, shape in rows]
    writer.table(_aligned(texts))


def _aligned(rows: Sequence[tuple[list[str], RowShape]]) -> list[list[str]]:
    """The cells of each row in the columns where they are shown. Text of cells that are parts of
    others is added to these."""
    columns = _columns(rows)
    shown: list[list[list[str]]] = []
    tops: dict[int, list[str]] = {}
    for texts, shape in rows:
        line: list[list[str]] = []
        places = shape.starts(len(texts)) if columns else None
        for number, text in enumerate(texts):
            at = len(line) if places is None else max(len(line), columns[places[number]])
            cell = [text] if text else []
            if shape.is_beside(number) and line:
                line[-1] += cell
                cell = []
            elif shape.is_below(number) and at in tops:
                tops[at] += cell
                cell = []
            else:
                tops[at] = cell
            line += [[] for _ in range(at - len(line))]
            line.append(cell)
        shown.append(line)
    return [[" ".join(cell) for cell in line] for line in shown]


def _columns(rows: Sequence[tuple[list[str], RowShape]]) -> dict[int, int]:
    """The column of each place where cells begin; empty if cells are in columns by their number."""
    starts = [shape.starts(len(texts)) for texts, shape in rows]
    if len({len(texts) for texts, _ in rows}) < 2 or None in starts:
        return {}
    columns: dict[int, int] = {}
    number, begin = -1, 0
    for place in sorted({place for each in starts for place in each or ()}):
        if number < 0 or place > begin + _SAME_PLACE:
            number, begin = number + 1, place
        columns[place] = number
    cells = sum(len(texts) for texts, _ in rows)
    return columns if (number + 1) * len(rows) <= 1_000 + _MAX_EMPTY * cells else {}

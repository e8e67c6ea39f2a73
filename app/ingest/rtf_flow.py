"""Texts of Rich Text. The file has no tables, only the ends of paragraphs, cells and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from app.ingest.markdown import Line, Writer, max_cells

Block = Callable[[Writer], object]
"""Writes a paragraph, a table or another block."""
_MAX_TABLES = 8
"""Tables that are nested deeper are read as the text of their cell."""
_SAME_PLACE = 60
"""Cells that begin as near to each other, in twentieths of a point, are in the same column."""


def written(outer: Writer, blocks: Iterable[Block]) -> str:
    """The text of blocks inside what `outer` writes, such as those of a cell or a note."""
    writer = Writer(outer)
    for block in blocks:
        block(writer)
    return writer.text()


@dataclass(slots=True)
class RowShape:
    """Where the cells of a row are."""

    places: list[int] = field(default_factory=lambda: [0])
    """Where each cell begins, and where the last one ends."""
    merged: dict[int, str] = field(default_factory=dict)
    """The cells that are parts of others: of the one before (`clmrg`) or above (`clvmrg`)."""

    def begin(self, place: int) -> None:
        self.places[0] = place

    def merge(self, kind: str) -> None:
        """Make the next cell a part of another one."""
        self.merged[len(self.places) - 1] = kind


class Flow:
    """Text with paragraphs of its own: the document's, or that of a note, box or margin."""

    def __init__(
        self, emit: Callable[[Block], object] | None = None, is_margin: bool = False
    ) -> None:
        """`emit` gets each block; without it, they are in `blocks`."""
        self.blocks: list[Block] = []
        self._emit = emit or self.blocks.append
        self._tables: list[_Table] = []
        """The tables that have not ended yet: each is in a cell of the one before it."""
        self.line = Line()
        self.mark: str | None = None
        """The mark of a list's item that the file gives for the paragraph."""
        self.after: list[Block] = []
        """Notes and boxes, which follow the paragraph in which they stand."""
        self.is_margin = is_margin
        self.is_endnote = False
        self.has_note_mark = False
        """Whether the number of a note was just shown."""
        self.in_row = False
        """Whether a row has started, for writers that do not mark its paragraphs."""
        self.indents: list[tuple[int, int, int]] = []
        """Indentation, level and depth of the items that contain the paragraph before."""

    @property
    def has_paragraph(self) -> bool:
        """Whether there is a paragraph that has not ended."""
        return bool(self.line or self.mark or self.after)

    def depth(self, left: int, level: int) -> int:
        """How many items an item is in. Levels begin again in each list, indentations do not."""
        while self.indents and self.indents[-1][:2] > (left, level):
            self.indents.pop()
        last = self.indents[-1] if self.indents else (-1, -1, -1)
        if last[:2] != (left, level):
            last = left, level, max(level, last[2] + 1)
            self.indents.append(last)
        return last[2]

    def add_note(self, mark: str, text: str) -> None:
        self.line.add(mark)
        self.after.append(partial(Writer.note, mark=mark, text=text))

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


@dataclass(frozen=True, slots=True)
class _Cell:
    blocks: list[Block]
    start: int | None
    """Where it begins; None if the file does not say it."""
    merged: str
    """As in `RowShape`."""


class _Table:
    def __init__(self) -> None:
        self.cell: list[Block] = []
        """The cell that has not ended yet."""
        self._cells: list[list[Block]] = []
        self._rows: list[list[_Cell]] = []

    def end_cell(self) -> None:
        self._cells.append(self.cell)
        self.cell = []

    def end_row(self, shape: RowShape) -> None:
        if self.cell:
            self.end_cell()
        cells, self._cells = self._cells, []
        has_places = len(cells) < len(shape.places)
        row = [
            _Cell(blocks, shape.places[n] if has_places else None, shape.merged.get(n, ""))
            for n, blocks in enumerate(cells)
        ]
        if row:
            self._rows.append(row)

    def blocks(self) -> Iterator[Block]:
        """The table, or what it contains if it only frames that."""
        self.end_row(RowShape())
        if any(len(row) > 1 for row in self._rows):
            yield partial(_write_table, rows=self._rows)
        else:
            for row in self._rows:
                yield from row[0].blocks


def _write_table(writer: Writer, rows: Sequence[Sequence[_Cell]]) -> None:
    """Write the cells in the columns where they are shown. Text of cells that are parts of others
    is added to these."""
    columns = _columns(rows)
    shown: list[list[list[str]]] = []
    tops: dict[int, list[str]] = {}
    for row in rows:
        line: list[list[str]] = []
        for cell in row:
            at = max(len(line), columns.get(cell.start, 0))
            text = [text] if (text := written(writer, cell.blocks)) else []
            line += [[] for _ in range(at - len(line) + 1)]
            if cell.merged == "clmrg" and at:
                line[at - 1] += text
            elif cell.merged == "clvmrg" and at in tops:
                tops[at] += text
            else:
                line[at] = tops[at] = text
        shown.append(line)
    writer.table([[" ".join(cell) for cell in line] for line in shown])


def _columns(rows: Sequence[Sequence[_Cell]]) -> dict[int | None, int]:
    """The column of each place where cells begin; empty if cells are in columns by their number."""
    starts = [cell.start for row in rows for cell in row]
    known = sorted({start for start in starts if start is not None})
    if len({len(row) for row in rows}) < 2 or None in starts:
        return {}
    columns: dict[int | None, int] = {}
    number, begin = 0, known[0]
    for place in known:
        if place > begin + _SAME_PLACE:
            number, begin = number + 1, place
        columns[place] = number
    return columns if (number + 1) * len(rows) <= max_cells(len(starts)) else {}

"""A Markdown table that fits the width: cells wrap instead of being cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.content import Content
from textual.geometry import Size
from textual.widgets._markdown import MarkdownBlock, MarkdownTable, MarkdownTD, MarkdownTH

LINE = "$ink-faint"
MAX_WORD_CELLS = 20
"""A longer word is broken if the column is too narrow."""
MIN_VALUE_CELLS = 10
"""Cells for a value next to its header, in a table shown as a list."""


class Align(StrEnum):
    LEFT = "left"
    RIGHT = "right"
    CENTER = "center"


@dataclass(frozen=True, slots=True)
class Table:
    """Every row has as many cells as there are headers."""

    headers: tuple[Content, ...]
    aligns: tuple[Align, ...]
    rows: tuple[tuple[Content, ...], ...]


def table_lines(table: Table, width: int) -> list[Content]:
    """The lines of a framed table, or of a list if the words do not fit next to each other."""
    widths = _widths(table, width - 3 * len(table.headers) - 1)
    return _as_list(table, width) if widths is None else [*_framed(table, widths)]


def _widths(table: Table, available: int) -> list[int] | None:
    """Widths of the columns, in cells; None if single words do not fit next to each other."""
    columns = list(zip(table.headers, *table.rows, strict=True))
    whole = [max(1, *(cell.cell_length for cell in column)) for column in columns]
    if sum(whole) <= available:
        return whole
    widths = [min(MAX_WORD_CELLS, max(map(_longest_word, column))) for column in columns]
    if sum(widths) > available:
        return None
    # The remaining cells go one by one to the column that wraps most.
    for _ in range(available - sum(widths)):
        narrow = [i for i, full in enumerate(whole) if widths[i] < full]
        widths[max(narrow, key=lambda i: whole[i] / widths[i])] += 1
    return widths


def _framed(table: Table, widths: Sequence[int]) -> Iterator[Content]:
    def rule(left: str, middle: str, right: str) -> Content:
        dashes = middle.join("─" * (width + 2) for width in widths)
        return Content.styled(left + dashes + right, LINE)

    rows = [_row(row, table.aligns, widths) for row in table.rows]
    separate = any(len(row) > 1 for row in rows)
    yield rule("┌", "┬", "┐")
    yield from _row([cell.stylize("bold") for cell in table.headers], table.aligns, widths)
    for number, row in enumerate(rows):
        if separate or not number:
            yield rule("├", "┼", "┤")
        yield from row
    yield rule("└", "┴", "┘")


def _row(cells: Sequence[Content], aligns: Sequence[Align], widths: Sequence[int]) -> list[Content]:
    """The lines of one row."""
    wrapped = [cell.wrap(width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(1, *map(len, wrapped))):
        parts = [
            _aligned(cell[number].rstrip() if number < len(cell) else Content(""), align, width)
            for cell, align, width in zip(wrapped, aligns, widths, strict=True)
        ]
        line = Content.styled(" │ ", LINE).join(parts)
        lines.append(Content.assemble(("│ ", LINE), line, (" │", LINE)))
    return lines


def _aligned(line: Content, align: Align, width: int) -> Content:
    free = max(0, width - line.cell_length)
    left = {Align.LEFT: 0, Align.RIGHT: free, Align.CENTER: free // 2}[align]
    return Content.assemble(" " * left, line, " " * (free - left))


def _as_list(table: Table, width: int) -> list[Content]:
    """Each row as lines of `header: value`, without empty values."""
    lines: list[Content] = []
    for row in table.rows:
        if lines:
            lines.append(Content.styled("─" * width, LINE))
        for header, cell in zip(table.headers, row, strict=True):
            if not cell:
                continue
            name = Content.assemble(header.stylize("bold"), ": ") if header else Content("")
            if name.cell_length + MIN_VALUE_CELLS > width:
                lines += [*name.wrap(width), *cell.wrap(width)]
                continue
            first, *rest = cell.wrap(width - name.cell_length)
            indent = " " * name.cell_length
            lines += [name + first, *(Content.assemble(indent, line) for line in rest)]
    names = Content(" · ").join(header.stylize("bold") for header in table.headers)
    return lines or names.wrap(width)


def _longest_word(cell: Content) -> int:
    return max((cell_len(word) for word in cell.plain.split()), default=1)


class AnswerTable(MarkdownTable):
    """Renders all cells itself: hundreds of widgets would be slow."""

    _table = Table((), (), ())
    _lines: tuple[int, Sequence[Content]] = (-1, ())
    """The lines rendered last, and their width."""

    def compose(self) -> ComposeResult:
        self._show(self._read())
        return []

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        """Called while the answer streams."""
        if isinstance(block, AnswerTable):
            self._show(block._read())
        else:
            await super()._update_from_block(block)

    def render(self) -> Content:
        return Content("\n").join(self._drawn(self.content_size.width))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._drawn(width))

    def _drawn(self, width: int) -> Sequence[Content]:
        if self._lines[0] != width:
            self._lines = width, table_lines(self._table, width)
        return self._lines[1]

    def _show(self, table: Table) -> None:
        self._table, self._lines = table, (-1, ())
        self.refresh(layout=True)

    def _read(self) -> Table:
        headers: list[MarkdownBlock] = []
        rows: list[list[Content]] = []
        for block in _flat(self):
            if isinstance(block, MarkdownTH):
                headers.append(block)
            elif isinstance(block, MarkdownTD):
                if not rows or len(rows[-1]) == len(headers):
                    rows.append([])
                rows[-1].append(block._content)
        blank = Content("")
        return Table(
            tuple(header._content for header in headers),
            tuple(map(_align, headers)),
            tuple((*row, *[blank] * (len(headers) - len(row))) for row in rows),
        )


def _flat(block: MarkdownBlock) -> Iterator[MarkdownBlock]:
    return chain.from_iterable((*_flat(inner), inner) for inner in block._blocks)


def _align(header: MarkdownBlock) -> Align:
    style = str(header._token.attrs.get("style", ""))
    return next((each for each in Align if style.endswith(each)), Align.LEFT)

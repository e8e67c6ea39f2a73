"""Lines that are too long go on in their own column, not under what stands before it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

MIN_TEXT_WIDTH = 10
"""Cells that the text has in any case."""


def hanging_indent(
    before: Content, text: Content, width: int, again: Content | None = None
) -> Content:
    """`before` and `text`, wrapped. On its other lines stands `again`, or as much room as `before`
    takes."""
    indent = Content(" " * before.cell_length) if again is None else again
    lines = text.wrap(max(MIN_TEXT_WIDTH, width - before.cell_length))
    return Content("\n").join(
        Content.assemble(indent if number else before, line) for number, line in enumerate(lines)
    )


class HangingLines(Widget):
    """As high as what `lines` draws in its width."""

    def lines(self, width: int) -> Sequence[Content]:
        raise NotImplementedError

    def render(self) -> Content:
        return Content("\n").join(self.lines(self.content_size.width))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return sum(line.plain.count("\n") + 1 for line in self.lines(width))

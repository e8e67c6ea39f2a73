"""Wraps a text with a hanging indent: its lines stay right of what comes before the first one."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

MIN_TEXT_WIDTH = 10
"""Cells for the text, even if the line gets too long."""


def hanging_indent(
    before: Content, text: Content, width: int, again: Content | None = None
) -> Content:
    """`before` and the wrapped `text`. The other lines start with `again`, or with as many spaces
    as `before` has cells."""
    indent = Content(" " * before.cell_length) if again is None else again
    lines = text.wrap(max(MIN_TEXT_WIDTH, width - before.cell_length))
    return Content("\n").join(
        Content.assemble(indent if number else before, line) for number, line in enumerate(lines)
    )


class HangingLines(Widget):
    """As high as its `lines`, which depend on the width."""

    def lines(self, width: int) -> Sequence[Content]:
        raise NotImplementedError

    def render(self) -> Content:
        return Content("\n").join(self.lines(self.content_size.width))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return sum(line.plain.count("\n") + 1 for line in self.lines(width))

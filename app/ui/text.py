"""Lines of text: spread over a width, wrapped with a hanging indent, or with pieces to click."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import isawaitable

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.widget import Widget

MIN_TEXT_WIDTH = 10
"""Cells for the text, even if the line gets too long."""


def spread(left: Content, right: Content, width: int, gap: int = 2) -> Content:
    """One line of at most `width` cells with `right` at its end. `left` is cut where both do not
    fit, with `gap` cells between them."""
    room = max(1, width - right.cell_length - gap)
    left = left.truncate(room, ellipsis=True)
    space = " " * max(1, width - left.cell_length - right.cell_length)
    return Content.assemble(left, space, right).truncate(max(1, width), ellipsis=True)


def hanging_indent(
    before: Content,
    text: Content,
    width: int,
    again: Content | None = None,
    wrap: Callable[[Content, int], list[Content]] = Content.wrap,
) -> Content:
    """`before` and the wrapped `text`. The other lines start with `again`, or with as many spaces
    as `before` has cells."""
    indent = Content(" " * before.cell_length) if again is None else again
    lines = wrap(text, max(MIN_TEXT_WIDTH, width - before.cell_length))
    return Content("\n").join(
        Content.assemble(indent if number else before, line) for number, line in enumerate(lines)
    )


def wrap_evenly(text: Content, width: int) -> list[Content]:
    """The lines of a paragraph, which are made a little shorter if the last one would be a single
    word."""
    lines = text.wrap(width)
    if len(lines) < 2 or " " in lines[-1].plain.strip():
        return lines
    for narrower in range(width - 1, max(width * 2 // 3, MIN_TEXT_WIDTH), -1):
        evener = text.wrap(narrower)
        if len(evener) > len(lines):
            break
        if " " in evener[-1].plain.strip():
            return evener
    return lines


def fit_path(path: str, width: int) -> str:
    """A path in about `width` cells: the folders in its middle give way, then the middle of its
    last name."""
    if cell_len(path) <= width:
        return path
    folders, _, last = path.rpartition("/")
    room = width - cell_len(last) - 2
    if room >= 0 and folders:
        kept = set_cell_size(folders + "/", room).rpartition("/")[0]
        return f"{kept}/…/{last}" if kept else f"…/{last}"
    half = max(1, (width - 1) // 2)
    end = set_cell_size(last[::-1], half)[::-1]
    return f"{set_cell_size(last, half).rstrip()}…{end.lstrip()}"


class HangingLines(Widget):
    """A widget as high as its `lines`, which depend on the width."""

    def lines(self, width: int) -> Sequence[Content]:
        raise NotImplementedError

    def render(self) -> Content:
        return Content("\n").join(self.lines(self.content_size.width))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return sum(line.plain.count("\n") + 1 for line in self.lines(width))


@dataclass(frozen=True, slots=True)
class LinePart:
    text: str
    style: str = ""
    on_click: Callable[[], object] | None = None


class ClickLine(Widget):
    """One row of pieces, which subclasses return; each may be clicked."""

    def pieces(self) -> Iterable[LinePart]:
        raise NotImplementedError

    def render(self) -> Content:
        return Content.assemble(*((piece.text, piece.style) for piece in self.pieces()))

    async def on_click(self, event: Click) -> None:
        offset, end = event.get_content_offset(self), 0
        for piece in self.pieces():
            end += cell_len(piece.text)
            if offset is not None and offset.x < end:
                result = piece.on_click() if piece.on_click is not None else None
                if isawaitable(result):
                    await result
                return

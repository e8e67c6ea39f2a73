"""The whole document as a column: what was read, search hits, and what is on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from textual.events import Click
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from app.ui.spans.passages import ReadDocument, ReadKind
from app.ui.spans.view import TextRange, overlapping

ALL, SOME, NONE, HIT = "█", "▒", "·", "◆"


class Minimap(Widget):
    """Each row stands for an equal share of the characters."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "minimap--read",
        "minimap--unread",
        "minimap--hit",
        "minimap--visible",
    }

    @dataclass
    class Clicked(Message):
        """`offset` is the first character of the row."""

        offset: int

    def __init__(self, document: ReadDocument) -> None:
        super().__init__()
        self._document = document
        self._pins: Sequence[TextRange] = ()
        self._hits: Sequence[TextRange] = ()
        self._visible: TextRange = (0, 0)

    def show(
        self,
        document: ReadDocument,
        pins: Sequence[TextRange],
        hits: Sequence[TextRange],
        visible: TextRange,
    ) -> None:
        """`visible` is what is on the screen, in characters."""
        self._document, self._pins, self._hits, self._visible = document, pins, hits, visible
        self.refresh()

    def row_range(self, row: int) -> TextRange:
        """The characters that a row stands for."""
        length, height = len(self._document.text), max(1, self.size.height)
        return row * length // height, max((row + 1) * length // height, row * length // height + 1)

    def render_line(self, y: int) -> Strip:
        start, end = self.row_range(y)
        character, name = self._mark(start, end)
        style = self.get_component_rich_style(f"minimap--{name}")
        if start < self._visible[1] and self._visible[0] < end:
            style += self.get_component_rich_style("minimap--visible")
        return Strip([Segment(f"{character:>{self.size.width}}", style)])

    def _mark(self, start: int, end: int) -> tuple[str, str]:
        if overlapping(self._hits, start, end):
            return HIT, "hit"
        read = {
            passage.kind is not ReadKind.UNREAD for passage in self._document.between(start, end)
        }
        if read == {True}:
            return ALL, "read"
        if True in read or overlapping(self._pins, start, end):
            return SOME, "read"
        return NONE, "unread"

    def on_click(self, event: Click) -> None:
        self.post_message(self.Clicked(self.row_range(event.y)[0]))

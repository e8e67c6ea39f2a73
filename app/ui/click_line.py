"""A line made of pieces of text, some of which can be clicked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import isawaitable

from rich.cells import cell_len
from textual.content import Content
from textual.events import Click
from textual.widget import Widget


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    style: str = ""
    on_click: Callable[[], object] | None = None


class ClickLine(Widget):
    """One row high. Subclasses return its pieces."""

    def pieces(self) -> Iterable[Piece]:
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

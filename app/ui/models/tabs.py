"""The three lists of the models screen, by their names."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content
from textual.events import Click
from textual.widget import Widget

from app.ui.models.rows import Tab

GAP = "   "


class Tabs(Widget):
    """The three lists by their names; a click goes to one."""

    def __init__(self, go: Callable[[Tab], None]) -> None:
        super().__init__(id="models-parts")
        self._go = go
        self._zones: list[tuple[int, int, Tab]] = []
        self._counts: dict[Tab, int] = {}
        self._shown = Tab.INSTALLED

    def show(self, shown: Tab, counts: dict[Tab, int]) -> None:
        self._shown, self._counts = shown, counts
        self.refresh()

    def render(self) -> Content:
        pieces: list[Content] = []
        self._zones, at = [], 0
        for part in Tab:
            count = self._counts.get(part, 0)
            text = f"{'●' if part is self._shown else '○'} {part} {count}"
            style = "bold $accent" if part is self._shown else "$ink-dim"
            pieces.append(Content.styled(text, style))
            self._zones.append((at, at + len(text), part))
            at += len(text) + len(GAP)
        return Content(GAP).join(pieces)

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        for start, end, part in self._zones:
            if offset is not None and start <= offset.x < end:
                self._go(part)

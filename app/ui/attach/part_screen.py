"""Enter on a chip: choose a part of the document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from app.ingest.excerpt import Outline
from app.ui.filter_list import FilterList, FilterListScreen
from app.ui.help import Section
from app.ui.text import spread
from app.util.sanitize import sanitize_line

WHOLE = "#"
"""The result for all of the document."""


class PartScreen(FilterListScreen[str | None]):
    """A list of sheets and headings; numbers of pages, slides, sections or lines are typed."""

    HINTS = ("⏎ attach this part", "type to find", "Esc")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Attach", id="part.attach", tooltip="Attach only this part"),
        Binding("escape", "close", "Close", id="part.close", priority=True),
    ]  # fmt: skip

    def __init__(self, name: str, outline: Outline, is_part: bool) -> None:
        """`is_part`: a part is attached now, so that all of it can be chosen, too."""
        super().__init__()
        self._name, self._outline, self._is_part = name, outline, is_part
        what = "Type to find" if outline.sheets else f"Type {outline.unit}s, such as 2 or 3,5-7"
        self.list.filter.placeholder = what

    def help_sections(self) -> tuple[Section, ...]:
        return (("A part of a document", PartScreen), ("The list", FilterList))

    def compose(self) -> ComposeResult:
        yield self.heading
        yield self.list
        yield self.message
        yield self.foot

    def on_mount(self) -> None:
        self.draw()

    def list_rows(self, text: str, width: int) -> Iterator[tuple[str, Content]]:
        if self._is_part and not text:
            yield WHOLE, Content("All of it")
        names = [*self._outline.named()]
        if self._outline.can_find(text) and text not in dict(names):
            yield text, Content(f"#{sanitize_line(text)}")
        for name, place in names:
            if text.casefold() in name.casefold():
                note = Content.styled(place, "$ink-dim")
                yield name, spread(Content(sanitize_line(name)), note, width)

    def draw_frame(self) -> None:
        self.show_heading(f"A part of {self._name}", self._outline.units)
        text = self.list.text
        if text and not self.list.highlighted:
            missing = self._outline.missing(text)
            self.show_message(f"{self._name} {missing.detail}: {missing.advice}.")

    @on(FilterList.RowChosen)
    def _chosen(self, event: FilterList.RowChosen) -> None:
        self.dismiss(event.key)

"""The documents of the spans view, as a list to choose from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.ui.filter_list import FilterList
from app.ui.help.screen import Section
from app.ui.spans.collection import Collection
from app.ui.spans.passages import ReadDocument
from app.ui.text import spread
from app.util import formatting
from app.util.sanitize import sanitize_line

BAR_CELLS = 10
MIN_NAME = 12


class DocumentsScreen(ModalScreen[int | None]):
    """Returns the index of the chosen document."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Show", id="documents.show", tooltip="Show"),
        Binding("escape", "dismiss", "Close", id="documents.close", tooltip="Close"),
    ]

    def __init__(self, collection: Collection, current: int) -> None:
        super().__init__()
        self._collection, self._current = collection, current
        self.list = FilterList(self._rows)

    def help_sections(self) -> tuple[Section, ...]:
        return (("Documents", DocumentsScreen), ("The list", FilterList))

    def compose(self) -> ComposeResult:
        count = formatting.plural(len(self._collection), "document")
        fraction = formatting.percent(self._collection.read_fraction)
        heading = Content.assemble(
            (f"{count}, the most important first", "bold $accent"),
            (f" · read {fraction} in all", "$ink-dim"),
        )
        with Vertical(id="documents"):
            yield Static(heading)
            yield self.list
            hints = "⏎ show   ↑↓ choose   Esc close"
            yield Static(Content.styled(hints, "$ink-dim"), id="documents-foot")

    def on_mount(self) -> None:
        self.list.draw(str(self._current))  # at once: keys typed ahead are meant for it

    def on_resize(self) -> None:
        self.call_after_refresh(self.list.draw)

    def _rows(self, text: str, width: int) -> Iterator[tuple[str, Content]]:
        for index, document in enumerate(self._collection.documents):
            if text.casefold() in document.title.casefold():
                yield str(index), document_line(document, index, width)

    def action_choose(self) -> None:
        self.list.choose()

    @on(FilterList.Chosen)
    def _chosen(self, event: FilterList.Chosen) -> None:
        self.dismiss(int(event.key))


def document_line(document: ReadDocument, index: int, width: int) -> Content:
    """One line of at most `width` cells: its name, and how much of it was read. Where it is narrow
    the number of passages goes first, then the bar."""
    share = f"{formatting.percent(document.read_fraction):>4}"
    passages = f" · {document.passages_read:>3}" + (
        " passage " if document.passages_read == 1 else " passages"
    )
    filled = round(document.read_fraction * BAR_CELLS) or int(document.passages_read > 0)
    bar = Content.assemble(("━" * filled, "$accent"), ("─" * (BAR_CELLS - filled), "$ink-faint"))
    number = Content.styled(f"{index + 1:>3}  ", "$ink-dim")
    for right in (
        Content.assemble(bar, "  ", (share + passages, "$ink-dim")),
        Content.assemble(bar, "  ", (share, "$ink-dim")),
        Content.styled(share, "$ink-dim"),
    ):
        if width - number.cell_length - right.cell_length - 2 >= MIN_NAME:
            break
    name_style = "" if document.passages_read else "$ink-dim"
    name = Content.assemble(number, (sanitize_line(document.title), name_style))
    return spread(name, right, width)

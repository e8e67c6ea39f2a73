"""The documents of the spans view, as a list to choose from."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.ui.help import Section
from app.ui.safe_input import SafeInput
from app.ui.spans.collection import Collection
from app.ui.spans.passages import ReadDocument
from app.util import formatting
from app.util.sanitize import sanitize_line

BAR_CELLS = 10
LEAST_NAME = 12


class DocumentsScreen(ModalScreen[int | None]):
    """Gives back the index of the one that was chosen."""

    # Before the focused line, which would take some of them for its own.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Show", id="documents.show", tooltip="Show it"),
        Binding("up", "move('up')", "Up", id="documents.up", tooltip="Up", priority=True),
        Binding("down", "move('down')", "Down", id="documents.down", tooltip="Down", priority=True),
        Binding(
            "pageup", "move('page_up')", "Page up", id="documents.page_up", tooltip="A page up",
            priority=True,
        ),
        Binding(
            "pagedown", "move('page_down')", "Page down", id="documents.page_down",
            tooltip="A page down", priority=True,
        ),
        Binding("escape", "close", "Close", id="documents.close", tooltip="Close"),
    ]  # fmt: skip

    def __init__(self, collection: Collection, shown: int) -> None:
        super().__init__()
        self._collection, self._shown = collection, shown
        self.filter = SafeInput(placeholder="Type to find", id="documents-filter", compact=True)
        self.list = OptionList(id="documents-list", compact=True, markup=False)

    def help_sections(self) -> tuple[Section, ...]:
        return (("Documents", DocumentsScreen),)

    def compose(self) -> ComposeResult:
        with Vertical(id="documents"):
            yield Static(id="documents-head", markup=False)
            yield self.filter
            yield self.list
            yield Static(
                Content.styled("⏎ show   ↑↓ choose   Esc close", "$ink-dim"), id="documents-foot"
            )

    def on_mount(self) -> None:
        self.list.can_focus = False
        self.filter.focus()
        self._draw(self._shown)  # at once: keys typed ahead are meant for it

    def on_resize(self) -> None:
        self.call_after_refresh(lambda: self._draw(self._highlighted))

    @property
    def _highlighted(self) -> int | None:
        place = self.list.highlighted
        return None if place is None else int(self.list.get_option_at_index(place).id or 0)

    def _draw(self, highlighted: int | None) -> None:
        words, width = self.filter.value.strip().casefold(), max(20, self.list.size.width - 2)
        listed = [
            (index, document)
            for index, document in enumerate(self._collection.documents)
            if words in document.name.casefold()
        ]
        self.list.set_options(
            Option(document_line(d, index, width), id=str(index)) for index, d in listed
        )
        places = [place for place, (index, _) in enumerate(listed) if index == highlighted]
        self.list.highlighted = (*places, 0)[0] if listed else None
        fraction = formatting.percent(self._collection.read_fraction)
        many = formatting.plural(len(self._collection), "document")
        head = Content.assemble(
            (f"{many}, the most important first", "bold $accent"),
            (f" · read {fraction} in all", "$ink-dim"),
        )
        self.query_one("#documents-head", Static).update(head)

    @on(Input.Changed)
    def _filter_changed(self) -> None:
        self._draw(None if self.filter.value.strip() else self._shown)

    def action_move(self, where: str) -> None:
        getattr(self.list, f"action_{where if where.startswith('page') else f'cursor_{where}'}")()

    @on(Input.Submitted)
    def action_choose(self) -> None:
        if self._highlighted is not None:
            self.dismiss(self._highlighted)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(int(event.option_id or 0))

    def action_close(self) -> None:
        self.dismiss(None)


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
    dim = Content.styled(share, "$ink-dim")
    for right in (
        Content.assemble(bar, "  ", dim, (passages, "$ink-dim")),
        Content.assemble(bar, "  ", dim),
        dim,
    ):
        room = width - number.cell_length - right.cell_length - 2
        if room >= LEAST_NAME:
            break
    name = Content(sanitize_line(document.name))
    name = (name if document.passages_read else name.stylize("$ink-dim")).truncate(
        max(1, room), ellipsis=True
    )
    gap = " " * max(1, width - number.cell_length - name.cell_length - right.cell_length)
    return Content.assemble(number, name, gap, right).truncate(max(1, width), ellipsis=True)

"""The citations of an answer: a folded line below it, and a list to choose from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static

from app.chat.citations import Footnote, summary
from app.chat.conversation import Conversation, Turn
from app.ui.filter_list import FilterList
from app.ui.help import Section
from app.ui.originals import OpenOriginal
from app.ui.text import HangingLines, hanging_indent
from app.util.sanitize import sanitize_line


class CitationsView(HangingLines):
    """`▸ 3 citations · 1 sentence without a source`, what could not be read of the documents, and
    the footnotes once it is unfolded. Hidden if there is nothing to say."""

    @dataclass
    class Chosen(Message):
        """Show the passage of a footnote."""

        turn: Turn
        note: Footnote

    def __init__(self, turn: Turn, conversation: Conversation) -> None:
        super().__init__(classes="citations")
        self._turn, self._conversation = turn, conversation
        self._open, self._said = False, ""

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        found = self._turn.citations
        missing = "" if found is None else self._conversation.missing(self._turn)
        self._said = summary(found, missing)
        self.display = bool(self._said)
        if self.display:
            self.refresh(layout=True)

    def on_click(self, event: Click) -> None:
        event.stop()
        notes = self._conversation.footnotes(self._turn)
        offset = event.get_content_offset(self)
        row = 0 if offset is None else offset.y
        for note, line in zip(notes, self.lines(self.content_size.width)[1:], strict=False):
            height = line.plain.count("\n") + 1
            if 1 <= row <= height:
                self.post_message(self.Chosen(self._turn, note))
                return
            row -= height
        self._open = not self._open
        self.show()

    def lines(self, width: int) -> list[Content]:
        mark = "▾" if self._open else "▸"
        line = Content.styled(f"{mark} {sanitize_line(self._said)}", "$ink-dim")
        if not self._open:
            return [line]
        return [
            line,
            *(_note_lines(note, width) for note in self._conversation.footnotes(self._turn)),
        ]


def _note_lines(note: Footnote, width: int) -> Content:
    number = Content.styled(f"[{note.number}] ", "$accent")
    excerpt = (f": {sanitize_line(note.excerpt)}", "$ink-dim")
    return hanging_indent(
        number, Content.assemble(sanitize_line(note.source), excerpt), width, Content("    ")
    )


class CitationsScreen(ModalScreen[Footnote | None]):
    """Returns the footnote whose passage is to be shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Show", id="citations.show", tooltip="Show the passage"),
        Binding(
            "ctrl+o", "open_original", "Open the file", id="citations.open",
            tooltip="Open the file in its own program, at the cited page if it can",
        ),
        Binding("escape", "dismiss", "Close", id="citations.close", tooltip="Close"),
    ]  # fmt: skip

    def __init__(self, notes: Sequence[Footnote], said: str) -> None:
        """`said` is the summary."""
        super().__init__()
        self._notes, self._said = notes, said
        self.list = FilterList(self._rows)

    def help_sections(self) -> tuple[Section, ...]:
        return (("Citations", CitationsScreen), ("The list", FilterList))

    def compose(self) -> ComposeResult:
        with Vertical(id="citations"):
            yield Static(Content.styled(self._said, "bold $accent"))
            yield self.list
            hints = "⏎ show the passage   ^O open the file   ↑↓ choose   Esc close"
            yield Static(Content.styled(hints, "$ink-dim"), id="citations-foot")

    def on_mount(self) -> None:
        self.list.draw("0")  # at once: keys typed ahead are meant for it

    def on_resize(self) -> None:
        self.list.fit_box(self.size.height)

    def _rows(self, text: str, width: int) -> Iterator[tuple[str, Content]]:
        for index, note in enumerate(self._notes):
            if text.casefold() in note.line.casefold():
                yield str(index), _note_lines(note, width)

    def action_choose(self) -> None:
        self.list.choose()

    def action_open_original(self) -> None:
        """Open the file of the highlighted citation."""
        if self.list.highlighted:
            note = self._notes[int(self.list.highlighted)]
            document = note.document
            self.app.post_message(OpenOriginal(document.name, document.origin, note.place.page))
            self.dismiss(None)

    @on(FilterList.RowChosen)
    def _chosen(self, event: FilterList.RowChosen) -> None:
        self.dismiss(self._notes[int(event.key)])

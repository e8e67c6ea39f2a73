"""A dialog: a text, and below it the actions to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.ui.help.screen import Section
from app.util.sanitize import sanitize_line

Value = TypeVar("Value")


class ActionDialog(ModalScreen[Value | None]):
    """Returns the value of the chosen label."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Do", id="dialog.do", tooltip="Do the highlighted action"),
        Binding(
            "pageup", "scroll(-1)", "Up", id="dialog.up", tooltip="Scroll up", priority=True
        ),
        Binding(
            "pagedown", "scroll(1)", "Down", id="dialog.down", tooltip="Scroll down", priority=True
        ),
        Binding("escape", "dismiss", "Cancel", id="dialog.close", tooltip="Cancel"),
    ]  # fmt: skip

    def __init__(self, text: Content, choices: Sequence[tuple[str, Value]]) -> None:
        super().__init__()
        self.choices = choices
        self._text = VerticalScroll(Static(text, markup=False), id="dialog-text", can_focus=False)
        labels = (Option(sanitize_line(label)) for label, _ in choices)
        self.list = OptionList(*labels, id="dialog-choices", compact=True, markup=False)

    def help_sections(self) -> tuple[Section, ...]:
        return (("Details", ActionDialog),)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield self._text
            yield self.list
            hints = "⏎ choose   PgUp PgDn scroll   Esc cancel"
            yield Static(Content.styled(hints, "$ink-dim"), id="dialog-foot")

    def on_mount(self) -> None:
        self.list.highlighted = 0 if self.choices else None
        self.list.focus()

    def action_choose(self) -> None:
        self.list.action_select()

    def action_scroll(self, pages: int) -> None:
        self._text.scroll_relative(y=pages * max(1, self._text.size.height - 1), animate=False)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.choices[event.option_index][1])

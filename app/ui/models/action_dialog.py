"""One model, or one decision, in full: what there is to know, and what can be done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.ui.help import Section
from app.util.sanitize import sanitize_line


@dataclass(frozen=True, slots=True)
class Action:
    """Something that can be done; `run` is called when the card has closed."""

    label: str
    run: Callable[[], object]


class ActionDialog(ModalScreen[Action | None]):
    """Gives back what was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "do", "Do", id="card.do", tooltip="Do what is marked"),
        Binding("pageup", "scroll(-1)", "Up", id="card.up", tooltip="Read on above", priority=True),
        Binding(
            "pagedown", "scroll(1)", "Down", id="card.down", tooltip="Read on below", priority=True
        ),
        Binding("escape", "leave", "Leave", id="card.close", tooltip="Leave it as it is"),
    ]

    def __init__(self, text: Content, actions: Sequence[Action]) -> None:
        super().__init__()
        self._actions = tuple(actions)
        self._text = VerticalScroll(Static(text, markup=False), id="card-text", can_focus=False)
        self.list = OptionList(
            *(Option(sanitize_line(deed.label)) for deed in self._actions),
            id="card-deeds",
            compact=True,
            markup=False,
        )

    def help_sections(self) -> tuple[Section, ...]:
        return (("One of them", ActionDialog),)

    def compose(self) -> ComposeResult:
        with Vertical(id="card"):
            yield self._text
            yield self.list
            yield Static(
                Content.styled("⏎ do it   PgUp PgDn read   Esc leave", "$ink-dim"), id="card-foot"
            )

    def on_mount(self) -> None:
        self.list.highlighted = 0 if self._actions else None
        self.list.focus()

    def action_do(self) -> None:
        self.list.action_select()

    def action_scroll(self, pages: int) -> None:
        self._text.scroll_relative(y=pages * max(1, self._text.size.height - 1), animate=False)

    def action_leave(self) -> None:
        self.dismiss(None)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._actions[event.option_index])

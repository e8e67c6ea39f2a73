"""All choices of one setting, one below the other."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.settings.schema import Setting, Value
from app.ui.settings.row import display_value


class ChoiceScreen(ModalScreen[Value | None]):
    """Gives back the one that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Leave", id="choices.close", tooltip="Leave it as it was")
    ]

    def __init__(self, setting: Setting, value: Value) -> None:
        super().__init__()
        self._setting, self._value = setting, value

    def compose(self) -> ComposeResult:
        options = (
            Option(f"{'●' if choice == self._value else '○'} {display_value(choice)}")
            for choice in self._setting.choices
        )
        choices = OptionList(*options, id="setting-choices", markup=False)
        choices.highlighted = self._setting.choices.index(self._value)
        yield choices

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._setting.choices[event.option_index])

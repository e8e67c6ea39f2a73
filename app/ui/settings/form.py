"""A setting on one line, and the form of such lines that the two screens of settings share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import DescendantFocus, Key
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.protocol.options import MODELS_OWN
from app.settings.definitions import Setting, Value
from app.ui.framed_screen import FramedScreen, Result
from app.ui.keys import run_own_binding
from app.ui.text import ClickLine, LinePart

LABEL_WIDTH = 23
MAX_SIDE_BY_SIDE = 4
"""Up to this number, all choices are shown; otherwise only the chosen one."""
MAX_DIGITS = 12


class SettingRow(ClickLine, can_focus=True):
    """A switch or a few choices are shown side by side, many choices one at a time; a number can be
    typed, too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "left", "move(-1)", "Less", id="setting.less", tooltip="Less, or the previous choice"
        ),
        Binding("right", "move(1)", "More", id="setting.more", tooltip="More, or the next choice"),
        Binding("pagedown", "move(-10)", "Less by 10", id="setting.less10", tooltip="Much less"),
        Binding("pageup", "move(10)", "More by 10", id="setting.more10", tooltip="Much more"),
        Binding(
            "enter,space", "set", "Set", id="setting.set",
            tooltip="Switch, choose from a list, or set the typed number",
        ),
        Binding(
            "ctrl+d", "default", "Default", id="setting.default", tooltip="Reset to the default"
        ),
        Binding("backspace", "erase", show=False),
    ]  # fmt: skip

    @dataclass
    class ValueChanged(Message):
        setting: Setting
        value: Value

    @dataclass
    class ValueRejected(Message):
        """What was typed is not a valid value."""

        reason: str

    @dataclass
    class LetterTyped(Message):
        """A key that is meant for the search."""

        key: Key

    def __init__(self, setting: Setting, value: Value) -> None:
        super().__init__()
        self.setting, self.value = setting, value
        self.typed = ""

    def show(self, value: Value) -> None:
        if value != self.value:
            self.value = value
            self.refresh()

    def clear_typed(self) -> None:
        self.typed = ""
        self.refresh()

    # -------------------------------------------------------------------------- drawing

    def pieces(self) -> Iterator[LinePart]:
        changed = self.value != self.setting.default
        pieces = [
            LinePart(("❯" if self.has_focus else " ") + ("• " if changed else "  "), "$accent"),
            LinePart(f"{self.setting.label:<{LABEL_WIDTH}}"),
            *self._control(),
        ]
        yield from pieces
        if changed:
            default = f"default {self.setting.display(self.setting.default)}"
            used = sum(cell_len(piece.text) for piece in pieces)
            gap = self.content_size.width - used - cell_len(default)
            if gap >= 2:
                yield LinePart(" " * gap)
                yield LinePart(default, "$ink-dim", self.action_default)

    def _control(self) -> Iterator[LinePart]:
        choices = self.setting.choices
        if 0 < len(choices) <= MAX_SIDE_BY_SIDE:
            for choice in choices:
                chosen, choose = choice == self.value, partial(self._change, choice)
                dot, name = "● " if chosen else "○ ", self.setting.display(choice)
                yield LinePart(dot, "$accent" if chosen else "$ink-dim", choose)
                yield LinePart(name, "bold" if chosen else "$ink-dim", choose)
                yield LinePart("  ")
        elif self.setting.type is str:
            yield LinePart(self.setting.display(self.value), "bold")
            yield LinePart("  choose with ^L", "$ink-dim")
        else:
            text = f"{self.typed}▏" if self.typed else self.setting.display(self.value)
            hint = f"  ⏎ all {len(choices)}" if choices else f"  {self.setting.bounds}"
            show_all = self.action_set if choices else None
            yield LinePart("‹", "$accent", partial(self.action_move, -1))
            yield LinePart(f" {text} ", "bold", show_all)
            yield LinePart("›", "$accent", partial(self.action_move, 1))
            yield LinePart(hint, "$ink-dim", show_all)

    # -------------------------------------------------------------------------- keys

    async def on_key(self, event: Key) -> None:
        if await run_own_binding(self, event):
            return
        if event.character is None or not event.is_printable:
            return
        event.stop()
        event.prevent_default()
        if self.setting.range is not None and event.character in "0123456789.":
            self.typed = (self.typed + event.character)[:MAX_DIGITS]
            self.refresh()
        else:
            self.post_message(self.LetterTyped(event))

    def on_blur(self) -> None:
        self.clear_typed()

    def action_move(self, steps: int) -> None:
        self.clear_typed()
        if (bounds := self.setting.range) is not None:
            assert isinstance(self.value, int | float)
            moved = round(self.value + steps * bounds.step, 6)
            if self.setting.is_models_own(self.value):
                moved = bounds.neutral or 0
            elif bounds.neutral is not None and moved < self.value == bounds.min:
                moved = MODELS_OWN
            else:
                moved = min(bounds.max, max(bounds.min, moved))
            self._change(self.setting.validate(moved))
        elif choices := self.setting.choices:
            index = choices.index(self.value) + (steps > 0) - (steps < 0)
            self._change(choices[min(len(choices) - 1, max(0, index))])

    def action_set(self) -> None:
        choices = self.setting.choices
        if self.typed:
            self._set_typed()
        elif len(choices) > MAX_SIDE_BY_SIDE:
            self.app.push_screen(ChoiceScreen(self.setting, self.value), self._chosen)
        elif choices:
            self._change(choices[(choices.index(self.value) + 1) % len(choices)])

    def action_default(self) -> None:
        self.clear_typed()
        self._change(self.setting.default)

    def action_erase(self) -> None:
        self.typed = self.typed[:-1]
        self.refresh()

    def _set_typed(self) -> None:
        typed = self.typed
        self.clear_typed()
        try:
            number = float(typed) if "." in typed else int(typed)
            self._change(self.setting.validate(number))
        except ValueError:
            reason = f"'{self.setting.label}' must be {self.setting.requirement}."
            self.post_message(self.ValueRejected(reason))

    def _chosen(self, value: Value | None) -> None:
        if value is not None:
            self._change(value)

    def _change(self, value: Value) -> None:
        if value != self.value:
            self.show(value)  # at once: keys typed ahead start from this value
            self.post_message(self.ValueChanged(self.setting, value))


class ChoiceScreen(ModalScreen[Value | None]):
    """All choices of one setting. Returns the chosen one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Cancel", id="choices.close", tooltip="Cancel")
    ]  # fmt: skip

    def __init__(self, setting: Setting, value: Value) -> None:
        super().__init__()
        self._setting, self._choices, self._value = setting, setting.choices, value

    def compose(self) -> ComposeResult:
        options = (
            Option(f"{'●' if choice == self._value else '○'} {self._setting.display(choice)}")
            for choice in self._choices
        )
        choices = OptionList(*options, id="setting-choices", markup=False)
        choices.highlighted = self._choices.index(self._value)
        yield choices

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index])


class SettingsForm(FramedScreen[Result]):
    """The `fields` in their order, and a `description` of the focused one."""

    def __init__(self) -> None:
        super().__init__()
        self.description = Static(classes="description", markup=False)

    def fields(self) -> Sequence[Widget]:
        raise NotImplementedError

    def describe(self, text: str, details: str) -> None:
        parts = (text, "\n" if text else "", (details, "$ink-dim"))
        self.description.update(Content.assemble(*parts))

    def details_of(self, setting: Setting) -> str:
        allowed = f"{setting.allowed} · " if setting.range is not None else ""
        return f"{allowed}default {setting.display(setting.default)}"

    def describe_other(self) -> None:
        """The focused field is not a setting."""

    @on(DescendantFocus)
    def _describe(self, event: DescendantFocus) -> None:
        row = event.widget
        if not isinstance(row, SettingRow):
            self.describe_other()
            return
        self.describe(row.setting.doc, self.details_of(row.setting))
        # A longer description leaves fewer rows for the list.
        self.call_after_refresh(row.scroll_visible, animate=False)

    def action_go(self, step: int) -> None:
        fields = self.fields()
        index = next((i for i, field in enumerate(fields) if field.has_focus), 0)
        self.set_focus(fields[min(len(fields) - 1, max(0, index + step))])

    def on_setting_row_value_rejected(self, event: SettingRow.ValueRejected) -> None:
        self.show_message(event.reason)


def group_heading(name: str, details: str) -> Static:
    text = Content.assemble((name, "bold $accent"), (f"  {details}", "$ink-dim"))
    return Static(text, classes="group")

"""One setting on one line: its name, and what changes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, Key
from textual.message import Message
from textual.widget import Widget

from app.settings.schema import Setting, Value, format_value
from app.ui.keys import run_own_binding

LABEL_WIDTH = 15
SIDE_BY_SIDE = 4
"""Choices that are all shown; of more, one at a time."""
LONGEST_NUMBER = 12


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    style: str = ""
    click: Callable[[], None] | None = None


class SettingRow(Widget, can_focus=True):
    """A switch or a few choices stand side by side, of many one is shown, and a number can be typed
    too. It says in messages what the user wants, and shows what it is given."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Less", id="setting.less", tooltip="Less, or the one before"),
        Binding("right", "move(1)", "More", id="setting.more", tooltip="More, or the one after"),
        Binding("pagedown", "move(-10)", "Less by 10", id="setting.less10", tooltip="Much less"),
        Binding("pageup", "move(10)", "More by 10", id="setting.more10", tooltip="Much more"),
        Binding(
            "enter,space",
            "set",
            "Set",
            id="setting.set",
            tooltip="Switch it, choose of all, or set the number that is typed",
        ),
        Binding(
            "ctrl+d", "default", "Default", id="setting.default", tooltip="Back to the default"
        ),
        Binding("backspace", "erase", show=False),
    ]

    @dataclass
    class ValueChanged(Message):
        setting: Setting
        value: Value

    @dataclass
    class ValueRejected(Message):
        """What was typed is no value; why, in a sentence."""

        sentence: str

    @dataclass
    class ChoicesRequested(Message):
        """All choices are to be shown."""

        setting: Setting

    @dataclass
    class LetterTyped(Message):
        """A letter, which is meant for the search."""

        key: Key

    def __init__(self, setting: Setting, value: Value) -> None:
        super().__init__()
        self.setting, self.value = setting, value
        self.typed = ""
        self._zones: list[tuple[int, int, Callable[[], None]]] = []

    def show(self, value: Value) -> None:
        if value != self.value:
            self.value = value
            self.refresh()

    def clear_typed(self) -> None:
        self.typed = ""
        self.refresh()

    # -------------------------------------------------------------------------- drawing

    def render(self) -> Content:
        changed = self.value != self.setting.default
        mark = Piece(("❯" if self.has_focus else " ") + ("• " if changed else "  "), "$accent")
        pieces = [mark, Piece(f"{self.setting.label:<{LABEL_WIDTH}}"), *self._control()]
        if changed:
            default = f"default {display_value(self.setting.default)}"
            width = self.content_size.width
            gap = width - sum(cell_len(piece.text) for piece in pieces) - cell_len(default)
            if gap >= 2:
                pieces.append(Piece(" " * gap))
                pieces.append(Piece(default, "$ink-dim", self.action_default))
        self._zones, at = [], 0
        for piece in pieces:
            end = at + cell_len(piece.text)
            if piece.click is not None:
                self._zones.append((at, end, piece.click))
            at = end
        return Content.assemble(*((piece.text, piece.style) for piece in pieces))

    def _control(self) -> list[Piece]:
        choices = self.setting.choices
        if 0 < len(choices) <= SIDE_BY_SIDE:
            return [piece for choice in choices for piece in self._choice(choice)]
        if self.setting.type is str:
            return [Piece(display_value(self.value), "bold"), Piece("  ^L chooses", "$ink-dim")]
        less, more = partial(self.action_move, -1), partial(self.action_move, 1)
        text = f"{self.typed}▏" if self.typed else display_value(self.value)
        middle = Piece(f" {text} ", "bold", self.action_set if choices else None)
        aside = f"  ⏎ all {len(choices)}" if choices else f"  {self.setting.allowed}"
        after = Piece(aside, "$ink-dim", middle.click)
        return [Piece("‹", "$accent", less), middle, Piece("›", "$accent", more), after]

    def _choice(self, choice: Value) -> list[Piece]:
        chosen = choice == self.value
        click = partial(self._want, choice)
        mark = Piece("● " if chosen else "○ ", "$accent" if chosen else "$ink-dim", click)
        return [
            mark,
            Piece(display_value(choice), "bold" if chosen else "$ink-dim", click),
            Piece("  "),
        ]

    # -------------------------------------------------------------------------- keys and mouse

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        for start, end, click in self._zones:
            if offset is not None and start <= offset.x < end:
                click()

    async def on_key(self, event: Key) -> None:
        if await run_own_binding(self, event):
            return
        if event.character is None or not event.is_printable:
            return
        event.stop()
        event.prevent_default()
        if self.setting.range is not None and event.character in "0123456789.":
            self.typed = (self.typed + event.character)[:LONGEST_NUMBER]
            self.refresh()
        else:
            self.post_message(self.LetterTyped(event))

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.clear_typed()

    def action_move(self, steps: int) -> None:
        self.clear_typed()
        if (bounds := self.setting.range) is not None:
            assert isinstance(self.value, int | float)
            moved = round(self.value + steps * bounds.step, 6)
            self._want(self.setting.validate(min(bounds.max, max(bounds.min, moved))))
        elif choices := self.setting.choices:
            place = choices.index(self.value) + (steps > 0) - (steps < 0)
            self._want(choices[min(len(choices) - 1, max(0, place))])

    def action_set(self) -> None:
        choices = self.setting.choices
        if self.typed:
            self._set_typed()
        elif len(choices) > SIDE_BY_SIDE:
            self.post_message(self.ChoicesRequested(self.setting))
        elif choices:
            self._want(choices[(choices.index(self.value) + 1) % len(choices)])

    def action_default(self) -> None:
        self.clear_typed()
        self._want(self.setting.default)

    def action_erase(self) -> None:
        self.typed = self.typed[:-1]
        self.refresh()

    def _set_typed(self) -> None:
        typed = self.typed
        self.clear_typed()
        try:
            number = float(typed) if "." in typed else int(typed)
            self._want(self.setting.validate(number))
        except ValueError:
            wanted = f"'{self.setting.label}' must be {self.setting.requirement}."
            self.post_message(self.ValueRejected(wanted))

    def _want(self, value: Value) -> None:
        if value != self.value:
            self.show(value)  # at once: keys that were typed ahead go on from here
            self.post_message(self.ValueChanged(self.setting, value))


def display_value(value: Value) -> str:
    """As people say it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return format_value(value) or "none"

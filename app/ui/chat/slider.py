"""The slider that sets keep: a bar and the effect of the chosen keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Key
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from app.protocol.options import AUTO_KEEP, expected_keep
from app.ui.keys import forward_key, run_own_binding
from app.util import formatting

MIN_PERCENT, MAX_PERCENT = 1, 100
BY_ONE, BY_FIVE = "Lower or raise keep by 1%", "Lower or raise keep by 5%"


def keep_bar(keep: float, width: int) -> Content:
    """`━━━━●──────` for a keep of 0..1; the knob is always inside the bar."""
    knob = min(width - 1, max(0, round(keep * width) - 1))
    return Content.assemble(
        ("━" * knob, "$accent"), ("●", "$accent"), ("─" * (width - 1 - knob), "$ink-faint")
    )


def _percent(keep: float) -> int:
    return min(MAX_PERCENT, max(MIN_PERCENT, round(keep * 100)))


class KeepSlider(Widget, can_focus=True):
    """A slider, hidden until `open`. `effect` describes the effect of the keep."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,down", "move(-1)", "Lower keep", id="keep.less", tooltip=BY_ONE),
        Binding("right,up", "move(1)", "Higher keep", id="keep.more", tooltip=BY_ONE),
        Binding("pagedown", "move(-5)", "Lower by 5%", id="keep.less5", tooltip=BY_FIVE),
        Binding("pageup", "move(5)", "Higher by 5%", id="keep.more5", tooltip=BY_FIVE),
        Binding("enter", "set", "Set", id="keep.set", tooltip="Use this keep"),
        Binding(
            "a",
            "automatic",
            "Keep auto",
            id="keep.auto",
            tooltip="Let specchat choose",
        ),
        Binding("escape", "cancel", "Cancel", id="keep.cancel"),
        Binding("backspace", "erase", show=False),
    ]

    value: reactive[int] = reactive(20, layout=False)
    effect: reactive[str] = reactive("")

    @dataclass
    class Tried(Message):
        """Another keep is being tried."""

        keep: float

    @dataclass
    class Decided(Message):
        """`keep` is the new one. Without it, `automatic` is auto mode, else nothing was changed."""

        keep: float | None = None
        automatic: bool = False

    def __init__(self) -> None:
        super().__init__()
        self._digits = ""
        self._automatic = False
        """Whether it was opened at AUTO_KEEP and not moved since."""
        self._opened_from: Widget | None = None

    @property
    def keep(self) -> float:
        """What is being tried."""
        return AUTO_KEEP if self._automatic else self.value / 100

    def open(self, keep: float) -> None:
        """Open at this keep. AUTO_KEEP is the default one until `settle` says what it is."""
        if self.display:
            return
        self._digits = ""
        self.effect = ""
        self._automatic = keep == AUTO_KEEP
        self.value = _percent(expected_keep(keep))
        self._opened_from = self.screen.focused
        self.display = True
        self.screen.set_focus(self)

    def settle(self, keep: float) -> None:
        """Show the keep that AUTO_KEEP chooses, unless the slider has been moved."""
        if self._automatic:
            self.value = _percent(keep)

    def render(self) -> Content:
        width = self.content_size.width
        first = Content.assemble(
            ("keep ", "bold"),
            keep_bar(self.value / 100, max(10, width // 5)),
            (f" {formatting.percent(self.value / 100)}", "bold"),
            (f"   {self.effect}" if self.effect else "", "$accent"),
        )
        keys = "←→ 1%   PgUp PgDn 5%   0-9 type a number   ⏎ set   a auto   Esc cancel"
        short = "←→ 1%  PgUp PgDn 5%  ⏎ set  a auto  Esc cancel"
        second = Content.styled(keys if len(keys) <= width else short, "$ink-dim")
        lines = (first, second)
        return Content("\n").join(line.truncate(width, ellipsis=True) for line in lines)

    async def on_key(self, event: Key) -> None:
        if not self.display:  # typed ahead, before it closed
            if self._opened_from is not None:
                forward_key(event, self._opened_from)
        elif event.character is not None and event.character in "0123456789":
            event.stop()
            self._type(event.character)
        else:
            await run_own_binding(self, event)

    def on_blur(self) -> None:
        if self.display:
            self.action_cancel()

    def action_move(self, step: int) -> None:
        self._digits = ""
        self._try(self.value + step)

    def action_erase(self) -> None:
        self._digits = self._digits[:-1]
        if self._digits:
            self._try(int(self._digits))

    def action_set(self) -> None:
        self._close(self.Decided(keep=self.value / 100))

    def action_automatic(self) -> None:
        self._close(self.Decided(automatic=True))

    def action_cancel(self) -> None:
        self._close(self.Decided())

    def _type(self, digit: str) -> None:
        """Append a digit, or start a new number where the result would not be 1 to 100."""
        digits = self._digits + digit
        if not MIN_PERCENT <= int(digits) <= MAX_PERCENT:
            digits = digit
        self._digits = digits if int(digits) else ""
        if self._digits:
            self._try(int(self._digits))

    def _try(self, value: int) -> None:
        self._automatic = False
        self.value = _percent(value / 100)
        self.post_message(self.Tried(self.value / 100))

    def _close(self, message: Decided) -> None:
        self.display = False
        if self.has_focus:
            self.screen.set_focus(self._opened_from)
        self.post_message(message)

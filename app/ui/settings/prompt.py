"""The box that a system prompt is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from app.ui.keys import run_own_binding
from app.util.sanitize import sanitize

LONGEST = 32_768
"""Characters: what is longer is a document, and drawn too slowly here."""


class PromptBox(TextArea):
    """Shows what will be sent: control characters are symbols."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "up", "Up", id="prompt.up", tooltip="A line up"),
        Binding("down", "down", "Down", id="prompt.down", tooltip="A line down, then to the rest"),
    ]

    @dataclass
    class Left(Message):
        """Down on the last line."""

    @dataclass
    class TooLong(Message):
        """Something was pasted that is no system prompt."""

    def __init__(self, prompt: str) -> None:
        super().__init__(
            sanitize(prompt),
            id="own-prompt",
            soft_wrap=True,
            compact=True,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder="None. Say who the model is to be, or how it is to answer",
        )
        self._prompt, self._shown = prompt, self.text

    @property
    def prompt(self) -> str:
        """To the byte what it was, unless it was changed."""
        return self._prompt if self.text == self._shown else self.text.strip()

    async def _on_key(self, event: Key) -> None:
        if not await run_own_binding(self, event):
            await super()._on_key(event)

    async def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        if len(self.text) + len(event.text) > LONGEST:
            self.post_message(self.TooLong())
            return
        text = sanitize(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        self._replace_via_keyboard(text, *self.selection)

    def action_up(self) -> None:
        self.action_cursor_up()

    def action_down(self) -> None:
        if self.navigator.is_last_wrapped_line(self.cursor_location):
            self.post_message(self.Left())
        else:
            self.action_cursor_down()

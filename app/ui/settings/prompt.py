"""The box for the system prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from app.ui.keys import odd_character, run_own_binding
from app.util.sanitize import sanitize

MAX_LENGTH = 32_768
"""Characters: a longer text is a document, and slow to draw here."""


class PromptBox(TextArea):
    """Shows control characters as symbols."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "up", "Up", id="prompt.up", tooltip="Line up"),
        Binding("down", "down", "Down", id="prompt.down", tooltip="Line down, or to the settings"),
    ]

    @dataclass
    class MovedPast(Message):
        """Down was pressed on the last line."""

    @dataclass
    class TooLong(Message):
        """The pasted text does not fit into a system prompt."""

    def __init__(self, prompt: str) -> None:
        super().__init__(
            sanitize(prompt),
            id="system-prompt",
            soft_wrap=True,
            compact=True,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder="None. Say who the model should be, or how it should answer",
        )
        self._prompt, self._shown = prompt, self.text

    @property
    def prompt(self) -> str:
        """Byte for byte as given, unless it was changed."""
        return self._prompt if self.text == self._shown else self.text.strip()

    async def _on_key(self, event: Key) -> None:
        if character := odd_character(event):
            self._replace_via_keyboard(character, *self.selection)
        elif not await run_own_binding(self, event):
            await super()._on_key(event)

    async def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        if len(self.text) + len(event.text) > MAX_LENGTH:
            self.post_message(self.TooLong())
            return
        text = sanitize(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        self._replace_via_keyboard(text, *self.selection)

    def action_up(self) -> None:
        self.action_cursor_up()

    def action_down(self) -> None:
        if self.navigator.is_last_wrapped_line(self.cursor_location):
            self.post_message(self.MovedPast())
        else:
            self.action_cursor_down()

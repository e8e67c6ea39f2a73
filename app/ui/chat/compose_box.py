"""The box a question is written in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from app.ui.attach.chips import is_long
from app.ui.completion.completion_list import CompletionList
from app.ui.keys import run_own_binding
from app.ui.terminal.clipboard import Clipboard
from app.util.sanitize import sanitize


class ComposeBox(TextArea):
    """Grows with its text. Enter sends, Ctrl+J breaks a line, Up and Down leaf through history."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="compose.send", tooltip="Send the question"),
        Binding(
            "ctrl+j,shift+enter",
            "newline",
            "New line",
            id="compose.newline",
            tooltip="Begin a new line",
        ),
        Binding(
            "up",
            "earlier",
            "Earlier question",
            id="compose.earlier",
            tooltip="The question before (on the first line)",
        ),
        Binding(
            "down",
            "later",
            "Later question",
            id="compose.later",
            tooltip="The question after (on the last line)",
        ),
        Binding(
            "backspace",
            "erase",
            "Erase",
            id="compose.erase",
            tooltip="Take away what was attached last (in an empty box)",
        ),
        Binding(
            "@",
            "type('@')",
            "Attach",
            id="compose.attach",
            tooltip="Attach a file or a folder (where a word begins)",
        ),
        Binding(
            "/",
            "type('/')",
            "Commands",
            id="compose.commands",
            tooltip="Everything that can be done (in an empty box)",
        ),
        Binding(
            "ctrl+v",
            "paste_system",
            "Paste",
            id="compose.paste",
            tooltip="Paste what was copied, also elsewhere",
        ),
        Binding(
            "pageup",
            "screen.scroll_transcript(-1)",
            "Scroll up",
            id="compose.scroll_up",
            tooltip="Scroll the conversation up",
        ),
        Binding(
            "pagedown",
            "screen.scroll_transcript(1)",
            "Scroll down",
            id="compose.scroll_down",
            tooltip="Scroll it down; at its end it follows again",
        ),
    ]

    @dataclass
    class Submitted(Message):
        """Enter was pressed, with this in the box. What is typed after it may be there already
        when this is handled."""

        text: str

    @dataclass
    class LongPaste(Message):
        """A paste that is to become a chip."""

        text: str

    @dataclass
    class ErasedNothing(Message):
        """Backspace in an empty box."""

    @dataclass
    class UndidNothing(Message):
        """Ctrl+Z where nothing was written that could be undone."""

    clipboard: Clipboard | None = None
    """The system's, where there is one."""

    def __init__(self) -> None:
        super().__init__(
            soft_wrap=True,
            compact=True,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder="Ask; paste a document, or type @ for a file",
        )
        self.choices = CompletionList(self)
        self._typing = False
        self._history: list[str] = []
        self._history_index = 0
        self._unsent = ""

    def add_to_history(self, text: str) -> None:
        """Put a sent question into the history."""
        if not self._history or self._history[-1] != text:
            self._history.append(text)
        self._history_index = len(self._history)
        self._unsent = ""

    def set_history(self, texts: Iterable[str]) -> None:
        """These questions, the last of which was sent last, instead of all others."""
        self._history, self._history_index, self._unsent = [], 0, ""
        for text in texts:
            self.add_to_history(text)

    def replace_all(self, text: str) -> None:
        self._typing = False
        self.text = text
        self.move_cursor(self.document.end)

    def insert_paste(self, event: Paste) -> None:
        """A short paste is typed text, and shows what will be sent: control characters in it
        become symbols here. A long one goes on as it is."""
        event.stop()
        event.prevent_default()
        self._typing = False
        if is_long(event.text):
            self.post_message(self.LongPaste(event.text))
        elif event.text:
            text = sanitize(event.text.replace("\r\n", "\n").replace("\r", "\n"))
            self._replace_via_keyboard(text, *self.selection)

    async def _on_paste(self, event: Paste) -> None:
        self.insert_paste(event)

    async def _on_key(self, event: Key) -> None:
        if await self.choices.handles(event.key):
            self._typing = False
            event.stop()
            event.prevent_default()
            await run_own_binding(self.choices, event)
            return
        self._typing = event.is_printable or event.key == "backspace"
        await run_own_binding(self, event)

    def watch_selection(self) -> None:
        """At once, and not when the text is told to have changed: the next key may be here."""
        if self.is_mounted:
            self.choices.update_for_cursor(self._typing)

    def on_blur(self) -> None:
        self.choices.close()

    async def action_send(self) -> None:
        """A text that is a command's whole name is that command; all other texts are sent."""
        command = self.choices.command(self.text)
        if command is None:
            self.choices.close()
            self.post_message(self.Submitted(self.text))
        else:
            self.replace_all("")
            await command.run()

    def action_type(self, character: str) -> None:
        """As the key of that character does; also where it was not a key that asked for it."""
        self._typing = True
        self._replace_via_keyboard(character, *self.selection)

    async def action_paste_system(self) -> None:
        """Without a clipboard of the system, or a text in it, what was copied here."""
        text = None
        if self.clipboard is not None:
            text = await asyncio.wrap_future(self.clipboard.read())
        if text is None:
            self.action_paste()
        else:
            self.insert_paste(Paste(text))

    def action_newline(self) -> None:
        self._replace_via_keyboard("\n", *self.selection)

    def action_erase(self) -> None:
        if self.text:
            self.action_delete_left()
        else:
            self.post_message(self.ErasedNothing())

    def action_undo(self) -> None:
        if self.history._undo_stack:
            super().action_undo()
        else:
            self.post_message(self.UndidNothing())

    def action_earlier(self) -> None:
        if not self.navigator.is_first_wrapped_line(self.cursor_location):
            self.action_cursor_up()
        elif self._history_index > 0:
            if self._history_index == len(self._history):
                self._unsent = self.text
            self._browse_history(self._history_index - 1)

    def action_later(self) -> None:
        if not self.navigator.is_last_wrapped_line(self.cursor_location):
            self.action_cursor_down()
        elif self._history_index < len(self._history):
            self._browse_history(self._history_index + 1)

    def _browse_history(self, place: int) -> None:
        self._history_index = place
        at_end = place == len(self._history)
        self.replace_all(self._unsent if at_end else self._history[place])

"""Handles keys in the order in which they were pressed.

Textual runs a binding only when its key has bubbled up to the app. By then the widget may have got
the keys that came after it in the same read: of `35`, Enter and a question, typed ahead or over a
slow line, the question would end up in the wrong place. So widgets that change what the next key
means run their own bindings at once.
"""

from __future__ import annotations

import unicodedata
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.widget import Widget
from textual.widgets import Input

from app.util.sanitize import sanitize_line

MAX_PASTE = 1_000
WORD_BINDINGS = (
    Binding("alt+left", "cursor_word_left", show=False),
    Binding("alt+right", "cursor_word_right", show=False),
    Binding("alt+backspace", "delete_word_left", show=False),
    Binding("ctrl+delete", "delete_word_right", show=False),
)
"""More keys of a `TextArea`."""


class SafeInput(Input):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("alt+left", "cursor_left_word", show=False),
        Binding("alt+right", "cursor_right_word", show=False),
        Binding("alt+backspace", "delete_left_word", show=False),
        Binding("ctrl+delete", "delete_right_word", show=False),
        Binding("ctrl+home", "home", show=False),
        Binding("ctrl+end", "end", show=False),
    ]

    async def _on_key(self, event: Key) -> None:
        if character := odd_character(event):
            self.insert_text_at_cursor(character)
        elif event.is_printable or not await run_own_binding(self, event):
            await super()._on_key(event)

    def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        self.insert_text_at_cursor(sanitize_line(" ".join(event.text.split()))[:MAX_PASTE])


async def run_own_binding(widget: Widget, event: Key) -> bool:
    """Run the binding that `widget` itself has for this key. Returns whether there is one."""
    bindings = widget._bindings.key_to_bindings.get(event.key)
    if not bindings:
        return False
    event.stop()
    event.prevent_default()
    await widget.run_action(bindings[0].action)
    return True


def odd_character(event: Key) -> str:
    """Take a key that types a character which Textual calls not printable; returns that character,
    or an empty text. Those are joiners of Persian, Indic languages and emoji, spaces of other
    widths, and what is newer than Python's tables."""
    character = event.character or ""
    if len(character) != 1 or event.is_printable or unicodedata.category(character) == "Cc":
        return ""
    if sanitize_line(character) != character:  # it would change how the text around it is shown
        return ""
    event.stop()
    event.prevent_default()
    return character


def forward_key(event: Key, widget: Widget) -> None:
    """Give a key that arrived at the wrong widget to this one."""
    event.stop()
    event.prevent_default()
    widget._forward_event(Key(event.key, event.character))

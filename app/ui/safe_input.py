"""A one-line input that shows control characters in pasted text as symbols."""

from __future__ import annotations

from textual.events import Key, Paste
from textual.widgets import Input

from app.ui.keys import odd_character, run_own_binding
from app.util.sanitize import sanitize_line

MAX_PASTE = 1_000


class SafeInput(Input):
    async def _on_key(self, event: Key) -> None:
        if character := odd_character(event):
            self.insert_text_at_cursor(character)
        elif event.is_printable or not await run_own_binding(self, event):
            await super()._on_key(event)

    def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        self.insert_text_at_cursor(sanitize_line(" ".join(event.text.split()))[:MAX_PASTE])

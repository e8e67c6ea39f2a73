"""The line that is searched in."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widget import Widget

from app.ui.keys import forward_key
from app.ui.safe_input import SafeInput


class SearchLine(SafeInput):
    """Hidden until it is searched. Keys that were on their way here when it closed are for
    `behind`."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "screen.close", show=False)]

    def __init__(self, behind: Widget) -> None:
        super().__init__(placeholder="Find", id="spans-search", compact=True)
        self._behind = behind

    async def _on_key(self, event: Key) -> None:
        if self.display:
            await super()._on_key(event)
        else:
            forward_key(event, self._behind)

    def takes(self, event: Key) -> bool:
        """Whether a key that came to something else, while this has the focus, was typed before
        that was known there. Of those that came here none gets further."""
        return event.is_printable or event.key in self._bindings.key_to_bindings

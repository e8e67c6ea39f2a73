"""The search line of the spans view."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widget import Widget

from app.ui.keys import forward_key
from app.ui.safe_input import SafeInput


class SearchLine(SafeInput):
    """Hidden until a search starts. Keys that arrive after it has closed go to `behind`."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "screen.close", show=False)]

    def __init__(self, behind: Widget) -> None:
        super().__init__(placeholder="Find", id="spans-search", compact=True)
        self._behind = behind

    async def _on_key(self, event: Key) -> None:
        if self.display:
            await super()._on_key(event)
        else:
            forward_key(event, self._behind)

    def wants(self, event: Key) -> bool:
        """Whether a key that arrived elsewhere is for this line, which has the focus."""
        return event.is_printable or event.key in self._bindings.key_to_bindings

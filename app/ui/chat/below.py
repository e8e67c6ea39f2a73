"""The mark that there is more to be seen further down."""

from __future__ import annotations

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widgets import Static


class NewTextMarker(Static):
    """Hidden while the end is in sight, or nothing came since it was."""

    class Clicked(Message):
        """To the end, please."""

    def __init__(self) -> None:
        words = Content.styled("↓ new text below · ^B goes there", "$accent")
        super().__init__(words, markup=False, id="below")

    def on_click(self, event: Click) -> None:
        event.stop()
        self.post_message(self.Clicked())

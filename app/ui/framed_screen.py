"""A screen with a heading, a line for messages, and the keys at the bottom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from app.util.sanitize import sanitize_line

Result = TypeVar("Result")


class FramedScreen(Screen[Result]):
    """Subclasses yield `heading`, `message` and `foot` in their `compose`."""

    HINTS: ClassVar[Sequence[str]] = ()
    """The keys at the bottom. In a narrow terminal, the last one stays the longest."""

    def __init__(self) -> None:
        super().__init__()
        self.heading = Static(classes="heading", markup=False)
        self.message = Static(classes="message", markup=False)
        self.message.display = False
        self.foot = Static(classes="foot", markup=False)

    @property
    def inner_width(self) -> int:
        """Cells between the margins."""
        return self.size.width - 4

    def on_resize(self) -> None:
        hints = list(self.HINTS)
        while len("   ".join(hints)) > self.inner_width and len(hints) > 1:
            del hints[-2]
        self.foot.update(Content.styled("   ".join(hints), "$ink-dim"))

    def show_heading(self, title: str, details: str) -> None:
        shown = sanitize_line(title), f"  {sanitize_line(details)}"
        self.heading.update(Content.assemble((shown[0], "bold $accent"), (shown[1], "$ink-dim")))

    def show_message(self, text: str) -> None:
        """Until the next one. An empty one hides the line."""
        lines = map(sanitize_line, text.splitlines())
        self.message.update(Content.styled("\n".join(lines), "$accent"))
        self.message.display = bool(text)

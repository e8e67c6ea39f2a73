"""A screen with a heading, a line for messages, and the keys at the bottom; and the one that is
shown while the terminal is too small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from app.util.sanitize import sanitize_line

Result = TypeVar("Result")


MIN_SIZE = Size(40, 10)


def fits(size: Size) -> bool:
    return size.width >= MIN_SIZE.width and size.height >= MIN_SIZE.height


class SmallScreen(ModalScreen[None]):
    """The app dismisses it once the terminal is large enough."""

    DEFAULT_CSS = """
    SmallScreen {
        align: center middle;
        background: $background;

        & > Static {
            width: auto;
            height: auto;
            text-align: center;
        }
    }
    """

    def compose(self) -> ComposeResult:
        yield Static(markup=False)

    def on_resize(self) -> None:
        size = self.app.size
        text = Content.assemble(
            ("specchat", "bold $accent"),
            f" needs {MIN_SIZE.width} × {MIN_SIZE.height} cells,\n",
            f"this window has {size.width} × {size.height}.\n",
            ("Still running. ^Q quits.", "$ink-dim"),
        )
        self.query_one(Static).update(text)


class FramedScreen(Screen[Result]):
    """Subclasses yield `heading`, `message` and `foot` in their `compose`."""

    HINTS: ClassVar[Sequence[str]] = ()
    """The keys at the bottom. In a narrow terminal, the last one stays the longest."""

    def __init__(self) -> None:
        super().__init__()
        self.heading = Static(classes="heading", markup=False)
        self.message = Static(classes="message", markup=False)
        self.message.display = False
        self.said = ""
        """The message that is shown."""
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
        """Show it until the next one. An empty message hides the line."""
        lines = map(sanitize_line, text.splitlines())
        self.message.update(Content.styled("\n".join(lines), "$accent"))
        self.message.display, self.said = bool(text), text

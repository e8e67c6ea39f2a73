"""Shown instead of everything else while the terminal is too small."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widgets import Static

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

"""What is shown instead of everything where there is no room for it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widgets import Static

LEAST = Size(40, 10)


def fits(size: Size) -> bool:
    return size.width >= LEAST.width and size.height >= LEAST.height


class SmallScreen(ModalScreen[None]):
    """Goes by itself once there is room. What runs goes on, and what is written stays."""

    def compose(self) -> ComposeResult:
        yield Static(id="small-words", markup=False)

    def on_resize(self) -> None:
        size = self.app.size
        words = Content.assemble(
            ("specchat", "bold $accent"),
            f" needs {LEAST.width} × {LEAST.height},\n",
            f"and here is {size.width} × {size.height}.\n",
            ("All goes on. ^Q quits.", "$ink-dim"),
        )
        self.query_one("#small-words", Static).update(words)

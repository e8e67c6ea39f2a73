"""A line below the list that asks for a title or a file name."""

from __future__ import annotations

from collections.abc import Callable

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from app.ui.safe_input import SafeInput
from app.util.sanitize import sanitize_line


class PromptLine(Horizontal):
    """Hidden until `ask`."""

    class Closed(Message):
        """Enter was pressed."""

    def __init__(self) -> None:
        super().__init__()
        self._label = Static(markup=False)
        self._input = SafeInput(compact=True)
        self._on_submit: Callable[[str], None] = lambda text: None

    def compose(self) -> ComposeResult:
        yield self._label
        yield self._input

    def ask(self, label: str, default: str, on_submit: Callable[[str], None]) -> None:
        self._on_submit = on_submit
        self._label.update(f"{label}: ")
        self._input.value = sanitize_line(default)
        self._input.cursor_position = len(self._input.value)
        self.display = True
        self.screen.set_focus(self._input)  # at once: keys typed ahead are meant for it

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Closed())
        self._on_submit(event.value)

"""A line at the bottom of the list, to be filled in: a title, a file."""

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
        """Enter was pressed, and the answer is given."""

    def __init__(self) -> None:
        super().__init__(id="list-line")
        self._asked = Static(markup=False, classes="asked-for")
        self._input = SafeInput(compact=True)
        self._done: Callable[[str], None] = lambda typed: None

    def compose(self) -> ComposeResult:
        yield self._asked
        yield self._input

    def ask(self, what: str, suggested: str, done: Callable[[str], None]) -> None:
        self._done = done
        self._asked.update(f"{what}: ")
        self._input.value = sanitize_line(suggested)
        self._input.cursor_position = len(self._input.value)
        self.display = True
        self.screen.set_focus(self._input)  # at once: keys typed ahead are meant for it

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Closed())
        self._done(event.value)

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()

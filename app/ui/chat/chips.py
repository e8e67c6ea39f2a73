"""Long pastes, kept beside the compose box as chips.

Their text never enters the TextArea, which rewrites line ends, form feeds and U+2028: what was
pasted is what the model gets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Static

from app.engine.messages import Document
from app.ui import figures

CHIP_BYTES = 4096
LINE_END = re.compile(r"\r\n|\r|\n")


def is_long(text: str) -> bool:
    """Whether a paste becomes a chip: above 4 KB of UTF-8."""
    return len(text) > CHIP_BYTES or len(text.encode(errors="replace")) > CHIP_BYTES


@dataclass(frozen=True, slots=True)
class Paste:
    """One long paste. Numbered from 1 within a message."""

    number: int
    text: str

    @property
    def document(self) -> Document:
        """For the model. Terminals send a carriage return for every line end of a paste; a text
        that has no other line ends gets its newlines back."""
        text = self.text if "\n" in self.text else self.text.replace("\r", "\n")
        return Document(f"paste-{self.number}.txt", text)

    @property
    def label(self) -> str:
        return f"Paste {self.number} · {describe(self.text)}"


def describe(text: str) -> str:
    """`101 KB · 2,345 lines`. A last line without a line end counts too."""
    lines = sum(1 for _ in LINE_END.finditer(text)) + (not text.endswith(("\r", "\n")))
    return f"{figures.size(len(text.encode(errors='replace')))} · {figures.plural(lines, 'line')}"


class RemoveMark(Static):
    """The cross of a chip."""

    class Clicked(Message):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    def __init__(self, number: int) -> None:
        super().__init__(" ✕ ", markup=False, classes="chip-remove")
        self._number = number

    def on_click(self) -> None:
        self.post_message(self.Clicked(self._number))


class Chips(Horizontal):
    """The pastes that go with the next question."""

    def __init__(self) -> None:
        super().__init__()
        self._pastes: list[Paste] = []

    @property
    def pastes(self) -> tuple[Paste, ...]:
        return tuple(self._pastes)

    def add(self, text: str) -> None:
        number = max((paste.number for paste in self._pastes), default=0) + 1
        self._set([*self._pastes, Paste(number, text)])

    def remove_last(self) -> bool:
        if not self._pastes:
            return False
        self._set(self._pastes[:-1])
        return True

    def show(self, pastes: Sequence[Paste]) -> None:
        """These instead of all others."""
        self._set([*pastes])

    def on_remove_mark_clicked(self, event: RemoveMark.Clicked) -> None:
        event.stop()
        self._set([paste for paste in self._pastes if paste.number != event.number])

    def compose(self) -> ComposeResult:
        for paste in self._pastes:
            with Horizontal(classes="chip"):
                yield Static(f"▣ {paste.label}", markup=False, classes="chip-label")
                yield RemoveMark(paste.number)

    def _set(self, pastes: list[Paste]) -> None:
        self._pastes = pastes
        self.display = bool(pastes)
        self.refresh(recompose=True)

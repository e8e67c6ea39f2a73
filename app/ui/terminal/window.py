"""The title of the terminal's window, and notifications."""

from __future__ import annotations

from collections.abc import Callable

from app.util.sanitize import sanitize_line

PUSH_TITLE, POP_TITLE = "\x1b[22;2t", "\x1b[23;2t"
NAME = "specchat"
DONE_MARK = "✓"
TITLE_LENGTH = 80


class Window:
    """`write` passes escape sequences to the terminal. Text in them is sanitised here."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._conversation = self._shown = ""
        self._done = False

    def show_title(self, conversation: str) -> None:
        """The conversation's title, empty for a new one."""
        self._conversation = conversation
        self._draw()

    def notify(self, text: str) -> None:
        """Ask for attention, in all ways that terminals have: OSC 9 (iTerm2, kitty, Ghostty,
        WezTerm), the bell (Terminal.app), and a mark in the title."""
        self._write(f"\x1b]9;{sanitize_line(text)[:TITLE_LENGTH]}\x07\x07")
        self._done = True
        self._draw()

    def clear_mark(self) -> None:
        """The window has the focus again."""
        self._done = False
        self._draw()

    def _draw(self) -> None:
        conversation = sanitize_line(self._conversation)[:TITLE_LENGTH]
        parts = (DONE_MARK if self._done else "", conversation and f"{conversation} ·", NAME)
        title = " ".join(filter(None, parts))
        if title != self._shown:
            self._shown = title
            self._write(f"\x1b]2;{title}\x07")

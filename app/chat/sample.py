"""The text that ships with the program, and questions that show what can be done with it."""

from __future__ import annotations

from app.protocol.prompt import Document
from app.util.assets import assets_path

FILE = "gpl-3.0.txt"
QUESTION = 'What is a "patent license"?'
REAL_QUESTION = "What is the GPL?"
"""For a small model that is real."""
_CHARACTERS = 3.6
"""Per token, roughly: statistics have the exact number of tokens."""
_SECOND_HALF = "\n  7. Additional Terms.\n"


def sample() -> Document:
    """Waits for the disk. Raises OSError."""
    return Document(FILE, (assets_path() / "demo" / FILE).read_text(encoding="utf-8"))


def text_of(tokens: int) -> str:
    """About this many tokens of it, repeated as often as needed. Raises OSError."""
    text, length = sample().text, int(tokens * _CHARACTERS)
    return (text * (length // len(text) + 1))[:length]


def first_half() -> Document:
    """Half of it, which a real model reads in half a minute. Raises OSError."""
    text, _, _ = sample().text.partition(_SECOND_HALF)
    return Document(f"{FILE} (first half)", text)

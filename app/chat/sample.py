"""The text that ships with the program, and a question that shows what it can do with it."""

from __future__ import annotations

from app.paths import assets_path
from app.protocol.prompt import Document

FILE = "gpl-3.0.txt"
QUESTION = 'What does it say of "patent license"?'


def sample() -> Document:
    """Waits for the disk. Raises OSError."""
    return Document(FILE, (assets_path() / "demo" / FILE).read_text(encoding="utf-8"))

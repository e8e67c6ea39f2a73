"""What a long paste becomes for the model."""

from __future__ import annotations

import pytest

from app.ui.chat.chips import Paste


@pytest.mark.parametrize(
    ("pasted", "text"),
    [
        ("a\rb\r", "a\nb\n"),  # what a terminal makes of newlines
        ("a\nb\r", "a\nb\r"),  # real newlines: nothing is touched
        ("a\r\nb", "a\r\nb"),
        ("a\x00\x1b[31m\x0cb", "a\x00\x1b[31m\x0cb"),
    ],
)
def test_a_paste_keeps_its_text_but_gets_its_newlines_back(pasted: str, text: str) -> None:
    document = Paste(2, pasted).document
    assert document.text == text
    assert document.name == "paste-2.txt"

"""What a long paste becomes for the model."""

from __future__ import annotations

import pytest

from app.ui.attach.attachment import paste_attachment


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("a\rb\r", "a\nb\n"),  # what a terminal makes of newlines
        ("a\nb\r", "a\nb\r"),  # real newlines: nothing is touched
        ("a\r\nb", "a\r\nb"),
        ("a\x00\x1b[31m\x0cb", "a\x00\x1b[31m\x0cb"),
    ],
)
def test_a_paste_keeps_its_text_but_gets_its_newlines_back(given: str, text: str) -> None:
    (document,) = paste_attachment(given, 2).documents
    assert document.text == text
    assert document.name == "paste-2.txt"

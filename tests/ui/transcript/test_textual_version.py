"""The private parts of Textual that the app uses were checked against one version."""

from __future__ import annotations

import re
from importlib.metadata import version

from app.ui import terminal, transcript


def test_the_installed_textual_is_the_one_that_was_checked() -> None:
    for room in (transcript, terminal):
        checked = re.findall(r"Textual (\d+\.\d+\.\d+)", room.__doc__ or "")
        assert checked == [version("textual")], f"see the docstring of {room.__name__}"

"""Whatever text comes in, only what Textual and we write on purpose goes out to the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import unicodedata
from pathlib import Path

import pytest

from app.util.sanitize import BIDI_NAMES
from benchmarks.terminal import own_folders
from tests.e2e.hostile import TEXTS

ROOT = Path(__file__).parents[2]
SURFACES = ("streamed", "files", "stored", "pasted", "failed", "fell back", "spans", "models")
MODES = "7|25|1000|1003|1004|1006|1015|1016|1049|2004|2026|2048"
ALLOWED = re.compile(
    rf"""
    \x1b\[[0-9;:]*m                       # colours
    | \x1b\[\d+;\d+H                      # the cursor's place
    | \x1b\[\?({MODES})[hl]               # what a terminal can be switched to
    | \x1b\[\?(2026|2048)\$p              # questions about that
    | \x1b\[>\d+u | \x1b\[<u | \x1b\[\?u   # the kitty keyboard
    | \x1b\]11;\?\x07 | \x1b>            # the background is asked for; the number pad
    | \x1b\[2[23];2t                      # the window's title, kept and put back
    | \x1b\]2;[^\x00-\x1f\x7f-\x9f]*\x07  # the title
    | \x1b\]22;[a-z-]*\x07                # the pointer's shape
    """,
    re.VERBOSE,
)
HOSTILE_COLOURS = ("\x1b[35;5;41m", "\x9b35;5;41m")
"""Allowed by their form, and never written by Textual."""


def written_by(surface: str, folder: Path) -> str:
    """All that the app writes to its terminal while it shows every text on that surface."""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {"TERM": "xterm-256color", **own_folders(folder / ".home")}
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        os.chdir(folder if surface == "files" else ROOT)
        script = str(ROOT / "tests/e2e/hostile_screen.py")
        os.execve(
            sys.executable, [sys.executable, script, surface, str(folder)], os.environ | environment
        )
    written = bytearray()
    while True:
        try:
            read = os.read(terminal, 1 << 16)
        except OSError:  # the program has ended
            break
        if not read:
            break
        written += read
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    failed = folder / "failed"
    assert status == 0, failed.read_text() if failed.exists() else written[-2000:]
    return written.decode(errors="strict")


def test_there_are_enough_cases() -> None:
    assert len(TEXTS) * len(SURFACES) >= 200


@pytest.mark.slow
@pytest.mark.parametrize("surface", SURFACES)
def test_only_what_is_meant_reaches_the_terminal(surface: str, tmp_path: Path) -> None:
    written = written_by(surface, tmp_path)
    assert not any(colours in written for colours in HOSTILE_COLOURS)
    for found in ALLOWED.finditer(written):
        if found[0].startswith("\x1b]2;"):
            assert found[0].endswith("specchat\x07")
    left = ALLOWED.sub("", written)
    for place, character in enumerate(left):
        harmful = unicodedata.category(character) == "Cc" or ord(character) in BIDI_NAMES
        assert not harmful or character in "\r\n", (
            hex(ord(character)),
            left[place - 40 : place + 40],
        )


def test_the_judge_finds_what_does_not_belong() -> None:
    for text in TEXTS[:27]:
        left = ALLOWED.sub("", text)
        harmful = any(colours in text for colours in HOSTILE_COLOURS) or any(
            unicodedata.category(c) == "Cc" or ord(c) in (*BIDI_NAMES, 0x2028, 0x2029) for c in left
        )
        assert harmful, text

"""The program in a real terminal: what tmux shows after what tmux sends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.store.store import Store
from tests.e2e.terminal import LICENCE, MARKS, ROOT, Terminal

FAKE = [sys.executable, "tests/e2e/demo_screen.py"]
TINY = [sys.executable, "tests/e2e/tiny_screen.py"]
PASTE_BYTES = 100 * 1024
HOSTILE = "one \x1b[31m two \x1b\r three \x11 four \x03\x03 \x1b[A\x1b\r\n\x00\x0c five "

pytestmark = [*MARKS, pytest.mark.slow]


def document() -> str:
    """100 KB of ordinary text: the licence, over and over, cut to the byte."""
    text = LICENCE.read_text(encoding="utf-8")
    return (text * (PASTE_BYTES // len(text) + 1))[:PASTE_BYTES]


@pytest.fixture
def fake() -> Iterator[Terminal]:
    with Terminal(FAKE, folder=ROOT) as terminal:
        terminal.wait_for("ready", "next: AUTO")
        yield terminal


def test_a_paste_is_asked_about_and_read_live(fake: Terminal) -> None:
    fake.paste(document())
    fake.wait_for("Paste 1 · 102 KB")
    fake.type("What is the Corresponding Source?")
    fake.press("Enter")
    fake.wait_for("Scoring the text", "scored")
    fake.wait_for("selected · 6 passages", "Reading 2")
    fake.wait_for("▸ Read 2", "in 1.9 s", "general-purpose tools")


def test_a_hostile_paste_is_text_and_presses_no_key(fake: Terminal) -> None:
    """Enter would ask, Ctrl+Q and Ctrl+C twice would quit."""
    fake.paste(HOSTILE * 200)
    screen = fake.wait_for("Paste 1 · ")
    assert f"{len((HOSTILE * 200).encode()) / 1000:.0f} KB" in screen
    fake.type("Still here?")
    fake.press("Enter")
    fake.wait_for("▸ Read")


def test_a_short_hostile_paste_is_shown_and_not_obeyed(fake: Terminal) -> None:
    fake.paste(HOSTILE)
    fake.wait_for("one ␛[31m two ␛", "three ␑ four ␃␃ ␛[A␛", "␀␌ five")


def test_escape_stops_and_what_was_written_stays(fake: Terminal) -> None:
    fake.type("What?")
    fake.press("Enter")
    fake.wait_for("Answering")
    fake.press("Escape")
    fake.wait_for("▸ Read")


def test_keys_that_terminals_send_for_control_letters(fake: Terminal) -> None:
    fake.press("C-t")
    fake.wait_for("next: FULL  (^T auto)")
    fake.press("C-t", "C-g", "PPage", "Enter")
    fake.wait_for("next: SPARSE 25%  (^T in full)")
    fake.type("one")
    fake.press("C-j")
    fake.type("two")
    fake.wait_until(lambda screen: "❯ one\n    two" in screen)


def test_quitting_restores_the_terminal(fake: Terminal) -> None:
    fake.press("C-q")
    fake.wait_for("exited with 0")


def kept_answer(folder: Path) -> str:
    with Store(folder) as beside:
        return beside.branch(1)[1].text


def test_conversations_are_kept_over_a_crash_and_a_proper_end(tmp_path: Path) -> None:
    command = [*FAKE, str(tmp_path)]
    with Terminal(command, folder=ROOT) as terminal:
        terminal.wait_for("ready", "next: AUTO")
        terminal.type("What is the Corresponding Source?")
        terminal.press("Enter")
        terminal.wait_for("Answering")
        terminal.wait_until(lambda _: "needed to generate" in kept_answer(tmp_path))
        psutil.Process(terminal.pid).children()[0].kill()
    with Terminal(command, folder=ROOT) as terminal:
        terminal.wait_for("was cut off when specchat ended", "needed to generate", "■ stopped")
        terminal.press("C-n")
        terminal.wait_until(lambda screen: "stopped" not in screen)
        terminal.type("Something else")
        terminal.press("C-q")
        terminal.wait_for("exited with 0")
    with Terminal(command, folder=ROOT) as terminal:
        terminal.wait_for("ready", "❯ Something else")
        terminal.press("C-o")
        terminal.wait_for("1 conversation", "What is the Corresponding Source?", "1 question")
        terminal.press("C-d")
        terminal.wait_for("to the trash")
        terminal.press("C-z")
        terminal.wait_for("Restored")
        terminal.press("Enter")
        terminal.wait_for("needed to generate", "specchat  What is")
        terminal.press("C-q")
        terminal.wait_for("exited with 0")


def test_a_narrow_terminal_shows_all_that_matters() -> None:
    with Terminal(FAKE, size=(60, 24), folder=ROOT) as terminal:
        terminal.wait_for("ready", "next: AUTO")
        terminal.paste(document())
        terminal.wait_for("Paste 1 · 102 KB")
        terminal.type("What?")
        terminal.press("Enter")
        terminal.wait_for("▸ Read 2", "in 1.9 s")


def test_the_real_engine_on_tiny_random_models(tmp_path: Path) -> None:
    """Reading, noise for an answer, trying another keep, stopping a full reading, leaving."""
    with Terminal([*TINY, str(tmp_path)], folder=ROOT) as terminal:
        terminal.wait_for("ready", "next: AUTO", seconds=60)
        terminal.paste(document()[:6_000])
        terminal.wait_for("Paste 1 · ")
        terminal.press("C-g", "Enter")
        terminal.type("What is it?")
        terminal.press("Enter")
        terminal.wait_for("next: SPARSE 20%", "▸ Read", "^R read in full", seconds=60)
        terminal.press("C-g", "5", "0")
        terminal.wait_for("would read 50%", " passages")
        terminal.press("Enter")
        terminal.wait_for("next: SPARSE 50%")
        terminal.press("C-r")
        terminal.wait_for("Reading all of", seconds=60)
        terminal.press("Escape")
        terminal.wait_for("■ stopped", seconds=60)
        terminal.press("C-q")
        terminal.wait_for("exited with 0")

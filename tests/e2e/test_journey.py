"""What a new user does on the first day, from the first screen to the second start: the real
program on the demo pair, in a real terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.terminal import own_folders
from tests import patience
from tests.e2e.terminal import LICENCE, MARKS, PROGRAM, ROOT, Terminal

ANSWER = "patent against the party"
PATIENCE = 300.0 * patience.PATIENCE
"""Seconds for a reading on a machine that does other things too."""

pytestmark = [*MARKS, pytest.mark.slow]


@pytest.mark.parametrize("size", [60_000, 300_000], ids=["60 KB", "300 KB"])
def test_the_first_day(tmp_path: Path, size: int) -> None:
    with _started(tmp_path) as terminal:
        _reads_stops_and_reads_again(terminal, size)
        _pins_what_was_not_read(terminal)
        _looks_after_conversations(terminal)
        theme = _changes_the_theme(terminal)
        terminal.press("C-q")
        terminal.wait_for("exited with 0", seconds=PATIENCE)
    with _started(tmp_path) as terminal:
        terminal.wait_for("specchat  The licence", ANSWER, "❯ and then?")
        terminal.press("F2")
        terminal.type("theme")
        terminal.wait_for(f"‹ {theme} ›")


def _started(root: Path) -> Terminal:
    return Terminal(PROGRAM, size=(100, 32), folder=ROOT, environment=own_folders(root))


def _reads_stops_and_reads_again(terminal: Terminal, size: int) -> None:
    terminal.wait_for("ready in", "next: AUTO", seconds=PATIENCE)
    terminal.wait_for("specchat answers questions", "▣ gpl-3.0.txt", "Press ⏎ to ask")
    licence = LICENCE.read_text(encoding="utf-8")
    terminal.paste((licence * (size // len(licence) + 1))[:size])
    terminal.wait_for("Paste 1 · ", " tok · ")
    terminal.wait_until(lambda screen: "▣ gpl-3.0.txt" not in screen)
    terminal.type('What is a "patent license"?')
    terminal.press("Enter")
    terminal.wait_for("Scoring the text", "scored", f"{size // 1000} KB")
    terminal.press("Escape")
    terminal.wait_for("■ stopped before the first word", seconds=PATIENCE)
    terminal.press("C-r")
    terminal.wait_for("Reading all of", seconds=PATIENCE)
    terminal.press("Escape")
    terminal.wait_for("■ stopped", "‹ 2/2 ›", seconds=PATIENCE)
    terminal.press("Tab")
    terminal.wait_for("^G other keep")
    terminal.press("C-g")
    terminal.wait_for("0-9 type")
    terminal.press("2", "0", "Enter")
    terminal.wait_for("▸ Read ", "^R read in full", ANSWER, "‹ 3/3 ›", "⏎ send", seconds=PATIENCE)


def _pins_what_was_not_read(terminal: Terminal) -> None:
    terminal.press("C-g", "3", "5")
    terminal.wait_for("would read ")
    terminal.press("Escape", "C-s")
    terminal.wait_for("What was read", "% in ", "importan")  # the row may be read, or not
    terminal.type("/")
    terminal.type("terminal interaction")
    terminal.wait_for("hit ", "not read (Space")
    terminal.press("Escape")
    terminal.wait_for("p prev")
    terminal.press("Space")
    terminal.wait_for("Pinned: always read from now on.")
    terminal.press("Enter")
    terminal.wait_for("^R read in full", ANSWER, "‹ 4/4 ›", "⏎ send", seconds=PATIENCE)


def _looks_after_conversations(terminal: Terminal) -> None:
    terminal.press("C-n")
    terminal.wait_until(lambda screen: ANSWER not in screen)
    terminal.press("C-o")
    terminal.wait_for("1 conversation", "Type to find")
    terminal.type("denominated")
    terminal.wait_for("1 of 1 conversation", "denominated")
    terminal.press("C-r")
    terminal.wait_for("Title: What is a")
    terminal.press("C-u")
    terminal.type("The licence")
    terminal.wait_for("Title: The licence")
    terminal.press("Enter")
    terminal.wait_until(lambda screen: "Title:" not in screen and "The licence" in screen)
    terminal.press("C-d")
    terminal.wait_for("to the trash")
    terminal.press("C-z")
    terminal.wait_for("Restored", "The licence")
    terminal.press("Enter")
    terminal.wait_for("specchat  The licence", ANSWER, "^G other keep")  # at the message found
    terminal.type("and then?")
    terminal.wait_for("❯ and then?")


def _changes_the_theme(terminal: Terminal) -> str:
    terminal.press("F2")
    terminal.wait_for("How documents are read")
    terminal.type("theme")
    terminal.wait_for("‹ auto ›")
    terminal.press("Enter")
    terminal.wait_for("❯  Theme")
    terminal.press("Right")
    screen = terminal.wait_until(lambda screen: "‹ auto ›" not in screen)
    (theme,) = re.findall(r"Theme +‹ (.*) ›", screen)
    terminal.press("F2")
    terminal.wait_for("next: ")
    return str(theme)


def test_the_line_of_the_worker_works_and_its_end_loses_nothing(tmp_path: Path) -> None:
    """The demo pair over two processes: the worker is killed in the middle of an answer."""
    theirs, ours = own_folders(tmp_path / "worker"), own_folders(tmp_path / "first")
    run = [*PROGRAM, "worker", "127.0.0.1", "--port", "0"]
    with Terminal(run, size=(160, 10), folder=ROOT, environment=theirs) as worker:
        shown = worker.wait_for("type: SPECCHAT_HOSTS=", seconds=PATIENCE)
        line = shown.partition("SPECCHAT_HOSTS=")[2].split()[0]
        command = PROGRAM
        ours |= {"SPECCHAT_HOSTS": line}
        with Terminal(command, size=(120, 40), folder=ROOT, environment=ours) as terminal:
            terminal.wait_for("ready in", "on 2 machines", seconds=PATIENCE)
            worker.wait_for("uses this machine for a shard of demo model")
            terminal.paste(LICENCE.read_text(encoding="utf-8"))
            terminal.wait_for("Paste 1 · ", " tok · ", seconds=PATIENCE)
            terminal.press("C-t")
            terminal.type('What is a "patent license"?')
            terminal.press("Enter")
            terminal.wait_for("Reading all of", seconds=PATIENCE)
            worker.press("C-c")
            terminal.wait_for("on this machine alone", seconds=PATIENCE)
            shown = terminal.wait_for("▸ Read all of", "⏎ send", seconds=2 * PATIENCE)
            assert "patent license" in shown
            assert "on 2 machines" not in shown.splitlines()[0]
            terminal.press("C-q")
            terminal.wait_for("exited with 0", seconds=PATIENCE)

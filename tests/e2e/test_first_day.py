"""Six journeys of the first day, in seconds: the real program on the demo pair. Those in the app
share its first start."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.terminal import own_folders
from tests.e2e.terminal import LICENCE, MARKS, PROGRAM, ROOT, Terminal

READY = ("ready in", "next: AUTO")
NO_QUESTION = "Ask, paste a document, or type @ for a file"
FACTS = "The tenant pays the rent on the first of each month.\n\nThe flat has two balconies."
PART = LICENCE.read_text(encoding="utf-8")[:9_000]
LONG = f"{PART[:4_500]}\n\n{FACTS}\n\n{PART[4_500:]}"
"""About 2,500 tokens: enough to be seen, and read in full within seconds."""
QUESTION, ANSWER = "When does the tenant pay the rent?", "pays the rent on the first of each month"

pytestmark = MARKS


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return own_folders(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def app(home: dict[str, str]) -> Iterator[Terminal]:
    with _started(home) as terminal:
        terminal.wait_for(*READY)
        yield terminal


def _started(home: dict[str, str]) -> Terminal:
    return Terminal(PROGRAM, size=(100, 32), folder=ROOT, environment=home)


@pytest.fixture
def asking(app: Terminal) -> Terminal:
    """A new conversation, and a long text pasted into it."""
    app.press("C-n")
    app.wait_until(lambda screen: "Demo model" not in screen)
    app.paste(LONG)  # takes the place of the sample of the first start
    app.wait_until(lambda screen: "▣ Paste 1 · " in screen and "▣ gpl-3.0.txt" not in screen)
    app.type(QUESTION)
    app.wait_for(f"❯ {QUESTION}")
    return app


def test_the_first_start_answers_about_the_attached_file_with_a_source(app: Terminal) -> None:
    app.wait_for("specchat answers questions", "▣ gpl-3.0.txt", '❯ What is a "patent license"?')
    app.press("Enter")
    screen = app.wait_for("▸ Read ", "patent against the party.¹", "▸ 1 citation", NO_QUESTION)
    (percent,) = re.findall(r"▸ Read (\d+)% of gpl-3.0.txt", screen)
    assert int(percent) < 50
    app.press("Tab")
    app.wait_for("^G other keep")


def test_a_long_pasted_text_is_asked_about(asking: Terminal) -> None:
    asking.press("Enter")
    screen = asking.wait_for("▸ Read ", ANSWER, "▸ 1 citation", "^R read in full", NO_QUESTION)
    assert "▣ paste-1.txt" in screen


def test_escape_stops_and_the_question_is_asked_again(asking: Terminal) -> None:
    asking.press("Enter", "Escape")
    asking.wait_for("■ stopped", "^A again", NO_QUESTION)
    asking.press("C-a")
    asking.wait_for("‹ 2/2 ›", "▸ Read ", ANSWER, NO_QUESTION)


def test_control_t_reads_in_full(asking: Terminal) -> None:
    asking.press("C-t")
    asking.wait_for("next: FULL  (^T auto)")
    asking.press("Enter")
    asking.wait_for("▸ Read all of", ANSWER, "next: AUTO  (^T in full)")


def test_after_a_restart_the_conversation_is_there_and_goes_on(
    asking: Terminal, home: dict[str, str]
) -> None:
    asking.press("Enter")
    asking.wait_for("▸ Read ", ANSWER, NO_QUESTION)
    asking.press("C-q")
    asking.wait_for("exited with 0")
    with _started(home) as again:
        again.wait_for("▣ paste-1.txt", f"specchat  {QUESTION}", ANSWER, "next: AUTO")
        again.type("How many balconies has the flat?")
        again.press("Enter")
        again.wait_for("▸ Read ", "has two balconies", "How many balconies has", NO_QUESTION)
        again.press("C-q")
        again.wait_for("exited with 0")


def test_a_question_in_a_shell_is_answered_with_its_source_and_in_full(
    home: dict[str, str], tmp_path: Path
) -> None:
    contract = tmp_path / "contract.txt"
    contract.write_text(LONG)

    def ask(*options: str) -> tuple[str, str]:
        command = [*PROGRAM, "ask", QUESTION, "-f", str(contract), *options]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | home, capture_output=True, text=True, check=True
        )
        return done.stdout, done.stderr

    for options, read in ((("--keep", "0.2"), r"Read \d+%"), (("--full",), "Read all of")):
        answer, told = ask(*options)
        assert ANSWER in answer
        assert re.search(r"\[1\] contract\.txt, line \d+: \"The tenant pays the rent", told)
        assert re.search(f"^{read}.* in ", told, re.M)

"""The program with a real model in a real terminal: it reads sparsely, recalls, and goes on after
it was quit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.terminal import own_folders
from tests.e2e.terminal import LICENCE, PROGRAM, ROOT, Terminal
from tests.e2e.test_journey import PATIENCE
from tests.real.packages import CACHE, SMOLLM2

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
PAIR = ("--target", SMOLLM2.repository, "--draft", SMOLLM2.repository)


def started(root: Path) -> Terminal:
    environment = own_folders(root) | {"HF_HUB_CACHE": str(CACHE.folder)}
    return Terminal([*PROGRAM, *PAIR], size=(100, 40), folder=ROOT, environment=environment)


def test_a_document_is_asked_about_twice_and_after_a_restart(smollm2: Path, tmp_path: Path) -> None:
    settings = tmp_path / "XDG_CONFIG_HOME" / "specchat" / "settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("[answers]\nmax_tokens = 16\n")
    with started(tmp_path) as terminal:
        terminal.wait_for("ready in", "smollm2-135m-instruct · 135M", seconds=PATIENCE)
        terminal.paste(LICENCE.read_text(encoding="utf-8")[:9000])
        terminal.wait_for("Paste 1 · ", " tok · ")
        terminal.press("C-g")
        terminal.wait_for("0-9 type")
        terminal.press("2", "0", "Enter")
        terminal.wait_for("next: SPARSE 20%")
        terminal.type("What is the GPL?")
        terminal.press("Enter")
        terminal.wait_for("Scoring the text", "scored", seconds=PATIENCE)
        terminal.wait_for("▸ Read 2", "free software", "⏎ send", seconds=PATIENCE)
        terminal.type("What does it say about source code?")
        terminal.press("Enter")
        terminal.wait_for("▸ Read 3", "source code?", "⏎ send", seconds=PATIENCE)
        terminal.press("C-q")
        terminal.wait_for("exited with 0", seconds=PATIENCE)
    with started(tmp_path) as terminal:
        terminal.wait_for("What is the GPL?", "about source code?", "⏎ send", seconds=PATIENCE)
        terminal.type("And about patents?")
        terminal.press("Enter")
        terminal.wait_until(lambda screen: screen.count("▸ Read ") == 3, seconds=PATIENCE)
        terminal.press("C-q")
        terminal.wait_for("exited with 0", seconds=PATIENCE)

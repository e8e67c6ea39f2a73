"""SmolLM2 over two processes, in the app in a real terminal: its 3 heads of keys are filled up to
4."""

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


def test_smollm2_answers_from_two_machines(smollm2: Path, tmp_path: Path) -> None:
    settings = tmp_path / "XDG_CONFIG_HOME" / "specchat" / "settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("[answers]\nmax_tokens = 16\n")
    models = {"HF_HUB_CACHE": str(CACHE.folder)}
    theirs, ours = own_folders(tmp_path / "worker") | models, own_folders(tmp_path) | models
    lend = [*PROGRAM, "worker", "127.0.0.1", "--port", "0"]
    with Terminal(lend, size=(160, 10), folder=ROOT, environment=theirs) as worker:
        shown = worker.wait_for("type: SPECCHAT_HOSTS=", seconds=PATIENCE)
        line = shown.partition("SPECCHAT_HOSTS=")[2].split()[0]
        command = [*PROGRAM, "--target", SMOLLM2.repository]
        ours |= {"SPECCHAT_HOSTS": line}
        with Terminal(command, size=(120, 40), folder=ROOT, environment=ours) as terminal:
            terminal.wait_for("ready in", "on 2 machines", seconds=2 * PATIENCE)
            terminal.paste(LICENCE.read_text(encoding="utf-8")[:9000])
            terminal.wait_for("Paste 1 · ", " tok · ")
            terminal.press("C-g")
            terminal.wait_for("0-9 type")
            terminal.press("2", "0", "Enter")
            terminal.wait_for("next: SPARSE 20%")
            terminal.type("What is the GPL?")
            terminal.press("Enter")
            terminal.wait_for("▸ Read 2", "free software", "⏎ send", seconds=4 * PATIENCE)
            terminal.press("C-q")
            terminal.wait_for("exited with 0", seconds=PATIENCE)

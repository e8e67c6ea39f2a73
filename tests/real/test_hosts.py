"""SmolLM2 over two processes, in the app in a real terminal: its 3 heads of keys are filled up to
4."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.terminal import Terminal
from tests.e2e.test_journey import LICENCE, PATIENCE, PROGRAM, ROOT, folders
from tests.hosts.machines import KEY, LOOPBACK, workers
from tests.real.packages import CACHE, SMOLLM2

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]


def test_smollm2_answers_from_two_machines(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "XDG_CONFIG_HOME" / "specchat" / "settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("[answers]\nmax_tokens = 16\n")
    environment = folders(tmp_path) | {"HF_HUB_CACHE": str(CACHE.folder)}
    monkeypatch.setenv("HF_HUB_CACHE", str(CACHE.folder))
    with workers() as hosts:
        address = f"{KEY}@{LOOPBACK}:{hosts.others[0].port}"
        command = [*PROGRAM, "--target", SMOLLM2.repository, "--hosts", address]
        with Terminal(command, size=(120, 40), folder=ROOT, environment=environment) as terminal:
            terminal.wait_for("ready in", "on 2 machines", seconds=PATIENCE)
            terminal.paste(LICENCE.read_text(encoding="utf-8")[:9000])
            terminal.wait_for("Paste 1 · ", " tok · ")
            terminal.press("C-g")
            terminal.wait_for("0-9 type")
            terminal.press("2", "0", "Enter")
            terminal.type("What is the GPL?")
            terminal.press("Enter")
            terminal.wait_for("▸ read 2", "free software", "⏎ send", seconds=PATIENCE)
            terminal.type("What does it say about source code?")
            terminal.press("Enter")
            terminal.wait_for("▸ read 3", "source code", "⏎ send", seconds=PATIENCE)
            terminal.press("C-q")
            terminal.wait_for("exited with 0", seconds=PATIENCE)

"""The embedded pair over two processes in a real terminal: the worker is killed in the middle of an
answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.terminal import Terminal
from tests.e2e.test_journey import LICENCE, PATIENCE, PROGRAM, ROOT, folders

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]


def test_the_line_of_the_worker_works_and_its_end_loses_nothing(tmp_path: Path) -> None:
    theirs, ours = folders(tmp_path / "worker"), folders(tmp_path / "first")
    run = [*PROGRAM, "worker", "127.0.0.1", "--port", "0"]
    with Terminal(run, size=(160, 10), folder=ROOT, environment=theirs) as worker:
        shown = worker.wait_for("type: SPECCHAT_HOSTS=", seconds=PATIENCE)
        line = shown.partition("SPECCHAT_HOSTS=")[2].split()[0]
        command = PROGRAM
        ours |= {"SPECCHAT_HOSTS": line}
        with Terminal(command, size=(120, 40), folder=ROOT, environment=ours) as terminal:
            terminal.wait_for("ready in", "on 2 machines", seconds=PATIENCE)
            worker.wait_for("uses this machine for a part of embedded")
            terminal.paste(LICENCE.read_text(encoding="utf-8"))
            terminal.wait_for("Paste 1 · ", " tok · ", seconds=PATIENCE)
            terminal.press("C-t")
            terminal.type('What does it say of "patent license"?')
            terminal.press("Enter")
            terminal.wait_for("Reading everything", seconds=PATIENCE)
            worker.press("C-c")
            terminal.wait_for("on this machine alone", seconds=PATIENCE)
            shown = terminal.wait_for("▸ Read everything", "⏎ send", seconds=2 * PATIENCE)
            assert "patent license" in shown
            assert "on 2 machines" not in shown.splitlines()[0]
            terminal.press("C-q")
            terminal.wait_for("exited with 0", seconds=PATIENCE)

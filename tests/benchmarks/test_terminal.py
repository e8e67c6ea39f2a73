"""The pseudo-terminal used by the `ui` benchmark."""

from __future__ import annotations

import os
import sys
import time

import pytest

from benchmarks.terminal import ENTER, Terminal

pytestmark = pytest.mark.benchmarks

ECHO = """
import sys, tty
tty.setraw(0)
print("ready", end="", flush=True)
while True:
    key = sys.stdin.buffer.read1()
    sys.stdout.buffer.write(b"got " + key)
    sys.stdout.flush()
"""


def test_written_text_is_drawn_and_timed() -> None:
    with Terminal([sys.executable, "-c", ECHO], os.environ) as terminal:
        assert terminal.wait_for("ready") > terminal.started
        started = time.perf_counter()
        terminal.write("ж".encode() + ENTER)
        assert terminal.wait_for("got ж") > started


def test_a_megabyte_is_written_while_the_program_answers() -> None:
    with Terminal([sys.executable, "-c", ECHO], os.environ) as terminal:
        terminal.wait_for("ready")
        terminal.write(b"x" * 1_000_000 + b"end")
        terminal.wait_for("xend")


def test_a_timeout_is_reported_and_the_program_ends() -> None:
    with Terminal([sys.executable, "-c", ECHO], os.environ) as terminal:
        terminal.wait_for("ready")
        with pytest.raises(TimeoutError, match="'never' was not drawn"):
            terminal.wait_for("never", seconds=0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(terminal.pid, 0)

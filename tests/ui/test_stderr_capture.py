"""Descriptor 2 leads into a file while the app draws."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import os, signal, sys
from app.ui.terminal import capture_stderr

log = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
with capture_stderr(log):
    os.write(2, b"from a library\\n")
    print("drawn", file=sys.__stderr__)
    print("said", file=sys.stderr)
    if sys.argv[2] == "abort":
        os.abort()
os.write(2, b"afterwards\\n")
print("the end", file=sys.stderr)
"""


def run(how: str) -> tuple[str, str, int]:
    """What came on standard error, what is in the log, and the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(log), how], capture_output=True, text=True
        )
        return ran.stderr, log.read_text(), ran.returncode


def test_libraries_write_into_the_log_and_the_app_on_the_terminal() -> None:
    terminal, log, status = run("end")
    assert terminal.splitlines() == ["drawn", "said", "afterwards", "the end"]
    assert log == "from a library\n"
    assert status == 0


def test_after_an_abort_the_log_tells_where_python_was() -> None:
    terminal, log, status = run("abort")
    assert terminal.splitlines() == ["drawn", "said"]
    assert log.startswith("from a library\nFatal Python error: Aborted")
    assert status == -6

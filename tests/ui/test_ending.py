"""Signals end the app, also while its event loop does not run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.tables import table

BUSY = """
import sys, threading
from app.ui import ending

ending.GRACE_SECONDS = 0.2
saving = threading.Event()

def save():
    open(sys.argv[1], "w").write("saved")

def quit(status):
    if sys.argv[2] == "quits":
        saving.set()

signals = ending.EndingSignals(quit, save, saving)
signals.start()
print("started", flush=True)
while not saving.is_set():
    pass
signals.stop()
"""


@table(
    "number, how, status, is_saved",
    [
        (signal.SIGTERM, "hangs", 143, True), (signal.SIGHUP, "hangs", 129, True),
        (signal.SIGQUIT, "hangs", 131, True), (signal.SIGTERM, "quits", 0, False),
    ],
)  # fmt: skip
def test_a_busy_app_saves_and_ends(
    tmp_path: Path, number: signal.Signals, how: str, status: int, is_saved: bool
) -> None:
    saved = tmp_path / f"{number}-{how}"
    command = [sys.executable, "-c", BUSY, str(saved), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sent = time.monotonic()
        process.send_signal(number)
        assert process.wait(20) == status
        assert time.monotonic() - sent < 15
    assert saved.exists() == is_saved

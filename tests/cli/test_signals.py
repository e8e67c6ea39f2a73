"""Whatever ends `specchat ask`, the processes that it started end, too."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.terminal import own_folders
from tests.e2e.terminal import LICENCE, PROGRAM, ROOT
from tests.ingest.test_pdf import pdf_of
from tests.patience import PATIENCE
from tests.tables import slow

SECONDS = 60 * PATIENCE


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("doing", "number"),
    [
        ("reading", signal.SIGTERM), slow("reading", signal.SIGHUP),
        slow("reading", signal.SIGKILL), slow("answering", signal.SIGTERM),
        slow("answering", signal.SIGKILL),
    ],
)  # fmt: skip
def test_no_process_of_ask_lives_on(tmp_path: Path, doing: str, number: signal.Signals) -> None:
    document = tmp_path / "long.pdf"
    if doing == "reading":
        document.write_bytes(
            pdf_of(*[f"Page {n}. " + "The rent is due. " * 300 for n in range(800)])
        )
    else:
        document = LICENCE
    command = [*PROGRAM, "ask", "-f", str(document), "--full", "When is the rent due?"]
    environment = {**os.environ, **own_folders(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        ask = psutil.Process(process.pid)
        named = "document_worker" if doing == "reading" else "sandbox"
        wait_until(lambda: any(named in " ".join(each.cmdline()) for each in ask.children()))
        children = ask.children(recursive=True)
        process.send_signal(number)
        assert process.wait(SECONDS) == -number
        wait_until(lambda: not any(map(is_alive, children)))

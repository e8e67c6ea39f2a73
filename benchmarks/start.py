"""How much work a start is: processor seconds until the first frame and until the demo model is
ready, as multiples of `import textual.app`, and the memory that all processes then hold.

    python -m benchmarks.start [--runs 5] [--compare OTHER-CHECKOUT]

The runs of both checkouts alternate. `first`: the first start ever, with fresh folders, which also
measures the machine. `again`: a later start.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from app.util.tables import TextTable
from benchmarks.terminal import IMPORT_TEXTUAL, Terminal, own_folders

PAINTED, READY = "Then ask.", "ready"
PAINTED_AGAIN = "Ask, paste"
SETTLE_SECONDS = 2.0
"""After the model is ready, until what was started beside it has ended."""


class Start(NamedTuple):
    """Processor seconds, and bytes that no other process shares."""

    imported: float
    painted: float
    ready: float
    held: float


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--compare", type=Path, action="append", default=[])
    chosen = options.parse_args()
    checkouts = [Path.cwd(), *(each.resolve() for each in chosen.compare)]
    starts: dict[tuple[Path, str], list[Start]] = {}
    for run in range(chosen.runs + 1):
        for checkout in checkouts:
            with tempfile.TemporaryDirectory() as folder:
                environment = {**os.environ, "TERM": "xterm-256color", **own_folders(Path(folder))}
                environment.pop("PYTHONDONTWRITEBYTECODE", None)
                for which in ("first", "again"):
                    measured = start(checkout, environment)
                    if run:  # the one before it compiles the modules
                        starts.setdefault((checkout, which), []).append(measured)
    rows = [
        [which, name_of(checkout), *_shown(found)] for (checkout, which), found in starts.items()
    ]
    titles = ["start", "checkout", "import textual.app", "first frame", "ready", "memory held"]
    print(TextTable(titles, rows).plain())
    return 0


def start(checkout: Path, environment: Mapping[str, str]) -> Start:
    """One start of the app in `checkout`, and one of an interpreter that only imports Textual."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(IMPORT_TEXTUAL, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    imported = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    program = ["env", "-C", str(checkout), sys.executable, "-m", "app"]
    with Terminal(program, environment) as terminal:
        terminal.wait_for(PAINTED, PAINTED_AGAIN)
        painted = _processor_seconds(terminal.pid)
        terminal.wait_for(READY)
        ready = _processor_seconds(terminal.pid)
        time.sleep(SETTLE_SECONDS)
        held = 0
        for each in _processes(terminal.pid):
            with suppress(psutil.Error):
                held += each.memory_full_info().uss
    return Start(imported, painted, ready, held)


def _processes(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _processor_seconds(pid: int) -> float:
    seconds = 0.0
    for each in _processes(pid):
        with suppress(psutil.Error):
            times = each.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _shown(starts: list[Start]) -> list[str]:
    return [
        f"{median(each.imported for each in starts):.2f} s",
        f"{median(each.painted / each.imported for each in starts):.2f} times",
        f"{median(each.ready / each.imported for each in starts):.1f} times",
        f"{median(each.held for each in starts) / 1e6:.0f} MB",
    ]


def name_of(checkout: Path) -> str:
    """The commit that is checked out."""
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%h"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

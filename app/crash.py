"""What is told of an end that nobody asked for: at once, and at the next start."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

NOTE, LOG = "crash.json", "crash.log"
LONGEST = 200
"""Characters of what a library said that are repeated."""
PYTHON = "Fatal Python error"
"""How faulthandler begins, which writes after the library that failed."""


@dataclass(frozen=True)
class Crash:
    """`signal` by its name; `said` is a line of the library that failed, or empty."""

    signal: str
    stderr_line: str = ""

    @property
    def sentence(self) -> str:
        if self.signal == "SIGKILL":
            return "specchat was killed, perhaps since memory ran out. Nothing you wrote is lost."
        why = f"{self.signal}: {self.stderr_line}" if self.stderr_line else self.signal
        return f"specchat was ended by a fault ({why}). Nothing you wrote is lost."

    def record(self, folder: Path, log: str) -> Path | None:
        """For the next start; returns the file with all that was said, if there is any. A folder
        that can't be written is no reason to fail a second time."""
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / NOTE).write_text(json.dumps(asdict(self)), encoding="utf-8")
            if log:
                (folder / LOG).write_text(log, encoding="utf-8")
                return folder / LOG
        return None


def last_stderr_line(log: str) -> str:
    """The last line that a library wrote before Python told where it was."""
    lines = [line.strip() for line in log.partition(PYTHON)[0].splitlines() if line.strip()]
    return lines[-1][:LONGEST] if lines else ""


def pop(folder: Path) -> Crash | None:
    """How specchat ended the last time, told once; None after a proper end."""
    note = folder / NOTE
    try:
        told = json.loads(note.read_text(encoding="utf-8"))
        crash = Crash(str(told["signal"]), str(told["said"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    finally:
        with suppress(OSError):
            note.unlink()
    return crash

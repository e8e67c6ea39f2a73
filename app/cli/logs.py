"""Log files: the app's warnings, and a note about a crash, which is shown at the next start."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from app.util.regular_files import NotRegular, make_private

CRASH_NOTE, CRASH_LOG = "crash.json", "crash.log"
MAX_LINE = 200
"""Maximum characters of a library's last line to show."""
FAULTHANDLER = "Fatal Python error"
"""First words of faulthandler, which writes after the library that failed."""


@dataclass(frozen=True)
class Crash:
    """`signal` is a signal's name, `stderr_line` the last line of the library that failed, if
    any."""

    signal: str
    stderr_line: str = ""

    @property
    def sentence(self) -> str:
        if self.signal == "SIGKILL":
            return "specchat was killed, perhaps because memory ran out. Nothing you wrote is lost."
        why = f"{self.signal}: {self.stderr_line}" if self.stderr_line else self.signal
        return f"specchat crashed ({why}). Nothing you wrote is lost."

    def record(self, folder: Path, log: str) -> Path | None:
        """Write the note for the next start, and `log` next to it. Return the log's path, or None
        if there is no log or `folder` cannot be written."""
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CRASH_NOTE).write_text(json.dumps(asdict(self)), encoding="utf-8")
            if log:
                (folder / CRASH_LOG).write_text(log, encoding="utf-8")
                return folder / CRASH_LOG
        return None


def last_stderr_line(log: str) -> str:
    """The last line in `log` before faulthandler's traceback."""
    lines = [line.strip() for line in log.partition(FAULTHANDLER)[0].splitlines() if line.strip()]
    return lines[-1][:MAX_LINE] if lines else ""


def pop_crash(folder: Path) -> Crash | None:
    """Delete and return the note about the last crash; None if there is none."""
    note = folder / CRASH_NOTE
    try:
        if not note.is_file():  # reading a pipe would block
            return None
        content = json.loads(note.read_text(encoding="utf-8"))
        crash = Crash(str(content["signal"]), str(content["stderr_line"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    finally:
        with suppress(OSError):
            note.unlink()
    return crash


LOG = "specchat.log"
MAX_LOG_BYTES = 500_000
"""Size limit of the log file. One older file is kept."""


def log_to(folder: Path) -> None:
    """Write the app's warnings to a file in `folder`, which is created with the first one."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private(folder)
        handler = _QuietHandler(
            folder / LOG, maxBytes=MAX_LOG_BYTES, backupCount=1, encoding="utf-8", delay=True
        )
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger("app").addHandler(handler)


class _QuietHandler(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        if path.exists() and not path.is_file():  # opening a pipe would block
            raise NotRegular(str(path))
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:
        """Print nothing when the log cannot be written: standard error is the screen."""

"""What fails in the background is said on the screen, and written down with where it happened."""

from __future__ import annotations

import logging
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

LOG = "specchat.log"
LARGEST = 500_000
"""Bytes; the one before is kept beside it."""


class _Quiet(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A log that cannot be written must not run over the screen."""


def log_to(folder: Path) -> None:
    """Write warnings of the app's own parts to a file there, once there is one."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handler = _Quiet(
            folder / LOG, maxBytes=LARGEST, backupCount=1, encoding="utf-8", delay=True
        )
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger("app").addHandler(handler)

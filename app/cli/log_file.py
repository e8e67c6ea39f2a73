"""The file of the app's own warnings."""

from __future__ import annotations

import logging
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from app.util.regular_files import NotRegular, make_private

LOG = "specchat.log"
MAX_LOG_BYTES = 500_000
"""The limit of one file; there is one older file."""


def log_to(folder: Path) -> None:
    """Write the app's own warnings to a file in `folder`, which is created with the first one."""
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
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise NotRegular(str(path))
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:
        """Print nothing when the log cannot be written: standard error is the screen."""

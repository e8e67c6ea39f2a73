"""Bringing what was written to the disk, so that it survives a power cut."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path


def sync(descriptor: int) -> None:
    """Return when what was written is on the disk, with everything that the disk got before it."""
    if sys.platform == "darwin":
        # There, fsync stops at the disk's own cache; but not every file system knows better.
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_path(path: Path) -> None:
    """The same for a file that is closed, or for the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)

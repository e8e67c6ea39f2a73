"""Syncs files to the disk, so that they survive a power cut."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path


def sync(descriptor: int) -> None:
    """Return when everything written so far is on the disk."""
    if sys.platform == "darwin":
        # On macOS, fsync stops at the disk's cache; not every file system supports F_FULLFSYNC.
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_path(path: Path) -> None:
    """Sync a closed file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)

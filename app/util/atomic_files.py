"""Durable writes that survive a power cut, and a lock between processes."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


def sync(descriptor: int) -> None:
    """Wait until everything written so far is on disk."""
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


def make_folder(folder: Path) -> None:
    """Create a folder that only this user can read, and its parents, durably."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_path(folder.parent)


@contextmanager
def temp_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file. It is synced at the end of the block, and deleted if the block fails."""
    try:
        with path.open("xb") as file:
            yield file
            file.flush()
            sync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def replace_durably(temporary: Path, path: Path) -> None:
    """Rename a synced file durably. The file is deleted if that fails."""
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def write_durably(path: Path, data: bytes, temp_folder: Path | None = None) -> None:
    """Replace the whole file in one step. The temporary file is in `temp_folder`, or in the
    same folder."""
    aside = (temp_folder or path.parent) / f"{uuid4().hex}.part"
    with temp_file(aside) as file:
        file.write(data)
    replace_durably(aside, path)


_RETRY_SECONDS = 0.02


class Lock:
    """A lock that one process at a time can hold. The kernel releases it however the process
    ends."""

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        """Raises BlockingIOError if another process still holds the lock after `timeout` seconds,
        and OSError if the lock file cannot be opened."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._acquire(time.monotonic() + timeout)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _acquire(self, deadline: float) -> None:
        while True:
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_RETRY_SECONDS)

    def release(self) -> None:
        os.close(self._descriptor)

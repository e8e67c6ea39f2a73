"""Opens untrusted files without following unexpected links and without blocking.

Everything inside a folder is opened relative to a descriptor of that folder, so that renaming or
replacing a parent folder cannot redirect it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from app.ingest.limits import ReadBudget
from app.ingest.records import Rejected, SkipReason
from app.util.formatting import size as format_size
from app.util.regular_files import NotRegular, open_descriptor

PIECE = 1 << 20
"""Bytes read at a time."""
HEAD = 1 << 16
"""Bytes at the start of a file that are checked before the rest is read."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_folder(name: str, parent: int | None = None) -> int:
    """Open a folder, given by its path or by its name in the open folder `parent`, where links are
    not followed. Returns a descriptor. Raises Rejected."""
    try:
        if parent is None:
            return os.open(name, _FOLDER)
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        raise rejection_for(error) from None


def stat_entry(name: str, parent: int) -> os.stat_result:
    """Status of `name` in `parent`, without following links. Raises Rejected."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        raise rejection_for(error) from None


def modification_time(name: str, parent: int | None) -> int:
    """When a path, or `name` in the open folder `parent`, was last modified, in nanoseconds. Raises
    Rejected."""
    try:
        return max(0, os.stat(name, dir_fd=parent).st_mtime_ns)
    except OSError as error:
        raise rejection_for(error) from None


def read_file(
    name: str, parent: int | None, size_limit: Callable[[bytes], int], budget: ReadBudget
) -> bytes:
    """Read a regular file, up to the size that it has when it is opened, because a log may grow.
    Links in `parent` are not followed.

    `size_limit` gets the first HEAD bytes and returns the maximum size of the file, or raises
    Rejected. Raises Rejected, and what `budget.check` raises.
    """
    try:
        descriptor = open_descriptor(name, parent)
        with open(descriptor, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            data = bytearray(os.read(descriptor, HEAD))
            limit = size_limit(bytes(data))
            if max(size, len(data)) > limit:
                raise too_large(limit)
            wanted = size or limit + 1  # kernel files report a size of 0
            while len(data) < wanted and (
                piece := os.read(descriptor, min(PIECE, wanted - len(data)))
            ):
                budget.check()
                data += piece
    except OSError as error:
        raise rejection_for(error) from None
    if len(data) > limit:
        raise too_large(limit)
    return bytes(data)


def too_large(limit: int) -> Rejected:
    return Rejected(SkipReason.TOO_LARGE, f"is larger than {format_size(limit)}")


def rejection_for(error: OSError) -> Rejected:
    """The Rejected error for an OSError from opening or reading."""
    if isinstance(error, NotRegular):
        return Rejected(SkipReason.SPECIAL)
    if error.errno == errno.ELOOP:
        return Rejected(SkipReason.LINK)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return Rejected(SkipReason.CHANGED)
    return Rejected(SkipReason.UNREADABLE, f"cannot be read ({error.strerror})")

"""Opening what may be hostile: nothing here follows a link it was not told to, or waits.

Everything inside a folder is opened by its name in a folder that is open already, so that renaming
or replacing what lies above cannot lead anywhere else.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from app.ingest.budget import ReadBudget
from app.ingest.records import Reason, Rejected, size_in_words

PIECE = 1 << 20
"""Bytes read at a time."""
HEAD = 1 << 16
"""Bytes that are looked at before the rest is read."""
_ATTEMPTS = 3
# Without O_NONBLOCK, a FIFO that takes a file's place would be waited for.
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_folder(name: str, parent: int | None = None) -> int:
    """A descriptor of a folder. Inside `parent`, a descriptor too, a link is not followed.
    Raises Refusal."""
    try:
        if parent is None:
            return os.open(name, _FOLDER)
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        raise rejection_for(error) from None


def stat_entry(name: str, parent: int) -> os.stat_result:
    """What `name` in `parent` is, links not followed. Raises Refusal."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        raise rejection_for(error) from None


def read_file(
    name: str, parent: int | None, most: Callable[[bytes], int], watch: ReadBudget
) -> bytes:
    """All of a regular file, the same before and after. Inside `parent` a link is not followed.

    `most` is given its first HEAD bytes, says how many bytes it may have, and raises Refusal when
    it is of no use. Raises Refusal, and what `watch.check` raises.
    """
    for _ in range(_ATTEMPTS):
        try:
            data = _read_once(name, parent, most, watch)
        except OSError as error:
            raise rejection_for(error) from None
        if data is not None:
            return data
    raise Rejected(Reason.CHANGED)


def _read_once(
    name: str, parent: int | None, most: Callable[[bytes], int], watch: ReadBudget
) -> bytes | None:
    """None when it was changed meanwhile."""
    flags = _FILE if parent is None else _FILE | os.O_NOFOLLOW
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise Rejected(Reason.SPECIAL)
        head = os.read(descriptor, HEAD)
        limit = most(head)
        size = max(before.st_size, len(head))
        if size > limit:
            raise too_large(limit)
        data = _rest(descriptor, head, before.st_size or limit + 1, watch)
        if len(data) > limit:
            raise too_large(limit)
        after = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return bytes(data) if _mark(before) == _mark(after) else None


def _rest(descriptor: int, head: bytes, size: int, watch: ReadBudget) -> bytearray:
    """Up to `size` bytes and no more: a file may grow as fast as it is read. Files of the kernel
    say that they are empty and are not; of them the caller asks for as much as it takes."""
    data = bytearray(head)
    while len(data) < size and (piece := os.read(descriptor, min(PIECE, size - len(data)))):
        watch.check()
        data += piece
    return data


def _mark(info: os.stat_result) -> tuple[int, int]:
    return info.st_size, info.st_mtime_ns


def too_large(limit: int) -> Rejected:
    return Rejected(Reason.TOO_LARGE, f"is larger than {size_in_words(limit)}")


def rejection_for(error: OSError) -> Rejected:
    """What an error says of the thing that was to be opened or read."""
    if error.errno == errno.ELOOP:
        return Rejected(Reason.LINK)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return Rejected(Reason.CHANGED, "went away while it was read")
    return Rejected(Reason.UNREADABLE, f"cannot be read ({error.strerror})")

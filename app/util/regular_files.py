"""Opens regular files only, without ever blocking, and creates files that only this user can read.

Reading a pipe, socket or device in place of a file might never end. Every file that another program
may have written is opened here.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

PIECE = 1 << 20
MAX_BYTES = 256 << 20
"""Size limit of a file that is read whole. The largest such files are tokenizers."""
# Without O_NONBLOCK, opening a pipe waits for a writer.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NotRegular(OSError):
    """The path leads to a folder, pipe, socket or device instead of a file."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file", path)


def open_descriptor(path: str | os.PathLike[str], parent: int | None = None) -> int:
    """Open a path for reading, or a name in the open folder `parent`, where links are not followed.
    Returns a descriptor. Raises OSError, and NotRegular, a kind of OSError."""
    flags = _FLAGS if parent is None else _FLAGS | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that does not exist
            raise NotRegular(os.fspath(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegular(os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError."""
    return open(open_descriptor(path), "rb")


def read_file(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read a whole file. Raises OSError, also if the file has more than `limit` bytes."""
    data = bytearray()
    with open_file(path) as file:  # in pieces, because a single `read` allocates its size first
        while len(data) <= limit and (piece := file.read(PIECE)):
            data += piece
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    return bytes(data)


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Read a whole UTF-8 file. Raises OSError or UnicodeDecodeError."""
    return read_file(path, limit).decode("utf-8").replace("\r\n", "\n")


# ------------------------------------------------------------- files that only this user can read

_MAX_SECRET_BYTES = 4096


def read_secret(path: Path) -> str:
    """Read a secret; an empty string if there is no file. Raises OSError, or UnicodeDecodeError if
    the file is not a secret."""
    try:
        return read_file(path, _MAX_SECRET_BYTES).decode("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def make_secret(path: Path) -> str:
    """Create a secret and write it to a file. Raises OSError."""
    secret = f"specchat-{secrets.token_urlsafe(24)}"
    write_private(path, secret + "\n")
    return secret


def make_private(folder: Path, *files: Path) -> None:
    """Restrict a folder and those of the files that exist to this user. Raises OSError."""
    for path, mode in ((folder, 0o700), *((file, 0o600) for file in files)):
        with suppress(FileNotFoundError):
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                path.chmod(mode)


def create_private(path: Path) -> BinaryIO:
    """Create a file that only this user can read. Raises OSError."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b")


def write_private(path: Path, text: str) -> None:
    """Write a text file that only this user can read. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(opened, "w", encoding="utf-8") as file:
        os.fchmod(opened, 0o600)
        file.write(text)

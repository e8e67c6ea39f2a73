"""Is this file our database, whole, and of a schema that is known? And where a broken one goes."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from app.sessions import schema
from app.sessions.database import for_reading
from app.sessions.files import make_folder, sync_folder

_MAGIC = b"SQLite format 3\0"
_BESIDE = ("", "-wal", "-shm")
"""The parts of a database in WAL mode."""


_NOT_THE_FILE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
)
"""Errors that come from the folder, the disk or another program."""


class Condition(Enum):
    NEW = auto()
    """There is no file, or nothing in it."""
    GOOD = auto()
    NEWER = auto()
    """Good, but kept by a later version of the program."""
    BROKEN = auto()


@dataclass(frozen=True, slots=True)
class Finding:
    """`pending`: migrations are to be applied. `fault` says what is broken, after "is"."""

    condition: Condition
    pending: bool = False
    fault: str = ""


_NEW = Finding(Condition.NEW, pending=True)


def examine(path: Path) -> Finding:
    """Look at a database without changing it. Raises OSError or sqlite3.OperationalError when it
    cannot be looked at: that says nothing about the file."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except FileNotFoundError:
        head = b""
    if not head:
        # A journal without its database holds changes that a new database would overwrite.
        lost = any(_size(part) for part in _parts(path))
        return Finding(Condition.BROKEN, fault="only a journal") if lost else _NEW
    if not head.startswith(_MAGIC):
        return Finding(Condition.BROKEN, fault="not a database")
    if not {*head[18:]} <= {1, 2}:  # other file formats are read-only for SQLite
        return Finding(Condition.BROKEN, fault="damaged")
    try:
        with closing(for_reading(path)) as connection:
            return _finding(connection)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in _NOT_THE_FILE:
            raise
        return Finding(Condition.BROKEN, fault="damaged")
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return Finding(Condition.BROKEN, fault="damaged")


def _finding(connection: sqlite3.Connection) -> Finding:
    connection.execute("PRAGMA cell_size_check = 1")
    connection.execute("PRAGMA foreign_keys = 1")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        return Finding(Condition.BROKEN, fault="damaged")
    steps = schema.applied(connection)
    if steps is None:
        return Finding(Condition.BROKEN, fault="another program's")
    if not steps:
        return _NEW
    pending = bool(schema.pending(steps))
    if schema.unknown(steps):
        return Finding(Condition.BROKEN, fault="damaged") if pending else Finding(Condition.NEWER)
    if not pending and not schema.is_whole(connection):
        return Finding(Condition.BROKEN, fault="damaged")
    return Finding(Condition.GOOD, pending)


def is_journal_readable(database: Path) -> bool:
    """Whether SQLite will look at the journal (WAL) at all: it ignores, and then overwrites, one
    whose header is damaged. What is damaged behind the header looks like a write cut off."""
    try:
        with _parts(database)[1].open("rb") as file:
            header = file.read(32)
    except FileNotFoundError:
        return True
    if not header:
        return True
    if len(header) < 32:
        return False
    magic, version = struct.unpack(">II", header[:8])
    if magic & ~1 != 0x377F0682 or version != 3007000:
        return False
    # The format's own checksum; the last bit of the magic number is its byte order.
    first = second = 0
    words = struct.unpack(">6I" if magic & 1 else "<6I", header[:24])
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return header[24:] == struct.pack(">II", first, second)


def move_aside(database: Path, folder: Path, journal_only: bool = False) -> Path:
    """Move a broken database with its journal, or only that, into `folder` under names that are
    free; what is empty stays. Returns the new path of the first part. Raises OSError."""
    make_folder(folder)
    parts = [part for part in _parts(database) if _size(part)]
    if journal_only:
        parts = [part for part in parts if part != database]
    number = 1
    while any((folder / f"{number}-{part.name}").exists() for part in _parts(database)):
        number += 1
    # The journal first: were we cut off, the next start must not find it beside another database.
    for part in reversed(parts):
        part.rename(folder / f"{number}-{part.name}")
    sync_folder(folder)
    sync_folder(database.parent)
    return folder / f"{number}-{parts[0].name}"


def lie_aside(folder: Path) -> bool:
    """Whether there are broken files that were moved aside."""
    return folder.is_dir() and any(folder.iterdir())


def _parts(database: Path) -> list[Path]:
    return [database.with_name(database.name + suffix) for suffix in _BESIDE]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

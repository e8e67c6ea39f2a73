"""Is this file our database, whole, and of a schema that is known?"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from app.sessions import schema
from app.sessions.database import for_reading

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
        lost = any(size(part) for part in parts(path))
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


def parts(database: Path) -> list[Path]:
    """The database, its journal and the journal's index, there or not."""
    return [database.with_name(database.name + suffix) for suffix in _BESIDE]


def size(path: Path) -> int:
    """Bytes; 0 where there is nothing."""
    return path.stat().st_size if path.exists() else 0

"""Checks whether a file is a specchat database, intact, and of a known schema."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from app.store import schema
from app.store.database import connect_for_reading
from app.store.schema import Version
from app.util.regular_files import open_file

_MAGIC = b"SQLite format 3\0"
_SUFFIXES = ("", "-wal", "-shm")
"""The parts of a database in WAL mode."""


_ENVIRONMENT_ERRORS = (
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
    """The file is missing or empty."""
    GOOD = auto()
    NEWER = auto()
    """Good, but saved by a later version of specchat."""
    BROKEN = auto()


@dataclass(frozen=True, slots=True)
class HealthReport:
    """`fault` completes the sentence "the file is"."""

    condition: Condition
    fault: str = ""


def examine(path: Path) -> HealthReport:
    """Check a database without changing it. Raises OSError or sqlite3.OperationalError if it cannot
    be opened, which says nothing about its content."""
    try:
        with open_file(path) as file:
            head = file.read(20)
    except FileNotFoundError:
        head = b""
    if not head:
        # A WAL without its database has changes that a new database would overwrite.
        lost = any(file_size(part) for part in database_files(path))
        return (
            HealthReport(Condition.BROKEN, fault="only a journal")
            if lost
            else HealthReport(Condition.NEW)
        )
    if not head.startswith(_MAGIC):
        return HealthReport(Condition.BROKEN, fault="not a database")
    if not {*head[18:]} <= {1, 2}:  # other file formats are read-only for SQLite
        return HealthReport(Condition.BROKEN, fault="damaged")
    try:
        with closing(connect_for_reading(path)) as connection:
            return _report(connection)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in _ENVIRONMENT_ERRORS:
            raise
        return HealthReport(Condition.BROKEN, fault="damaged")
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return HealthReport(Condition.BROKEN, fault="damaged")


def _report(connection: sqlite3.Connection) -> HealthReport:
    connection.execute("PRAGMA cell_size_check = 1")
    connection.execute("PRAGMA foreign_keys = 1")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        return HealthReport(Condition.BROKEN, fault="damaged")
    match schema.version(connection):
        case Version.NONE:
            return HealthReport(Condition.NEW)
        case Version.LATER:
            return HealthReport(Condition.NEWER)
        case Version.FOREIGN:
            return HealthReport(Condition.BROKEN, fault="another program's")
        case Version.CURRENT if schema.is_whole(connection):
            return HealthReport(Condition.GOOD)
        case _:
            return HealthReport(Condition.BROKEN, fault="damaged")


def database_files(database: Path) -> list[Path]:
    """The database, its WAL and the WAL index, whether they exist or not."""
    return [database.with_name(database.name + suffix) for suffix in _SUFFIXES]


def file_size(path: Path) -> int:
    """In bytes; 0 if there is no file."""
    return path.stat().st_size if path.exists() else 0

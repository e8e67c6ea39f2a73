"""Backs up the database with SQLite's backup API: one copy a day, of which seven are kept.

Copies are numbered, because a clock may be changed. The date in the name is for users, and limits
backups to one a day. Attachments are not copied, because their files never change
(`attachments.py`). The document index is not copied either, because it can be rebuilt
(`document_index.py`).
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

from app.store.database import connect_for_reading
from app.util.atomic_files import make_folder, replace_durably, sync_path, write_durably
from app.util.regular_files import create_private

MAX_BACKUPS = 7
_NAME = re.compile(r"(\d{6,})-(\d{4}-\d\d-\d\d)\.db")
_OUTDATED = "outdated"
"""A file that exists while backups contain permanently deleted data."""


def list_backups(folder: Path) -> list[Path]:
    """All backups, oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_number)


def is_outdated(folder: Path) -> bool:
    """Whether backups may contain permanently deleted data."""
    return (folder / _OUTDATED).exists()


def mark_outdated(folder: Path) -> None:
    """Record that backups contain data that is about to be deleted permanently. Raises OSError."""
    if list_backups(folder):
        write_durably(folder / _OUTDATED, b"")


def is_due(folder: Path, now: datetime) -> bool:
    """Whether there is no backup of this day, or backups contain permanently deleted data."""
    newest = list_backups(folder)[-1:]
    return is_outdated(folder) or not any(date(path) == f"{now:%Y-%m-%d}" for path in newest)


def back_up(database: Path, folder: Path, now: datetime) -> None:
    """Copy the committed state; other connections may be in use. After the copy was verified and
    synced, delete the oldest backup, or all others if they contain permanently deleted data. Raises
    OSError or sqlite3.Error."""
    make_folder(folder)
    older = list_backups(folder)
    number = _number(older[-1]) + 1 if older else 1
    aside = folder / "unfinished"
    aside.unlink(missing_ok=True)
    try:
        create_private(aside).close()
        with (
            closing(connect_for_reading(database)) as source,
            closing(sqlite3.connect(aside, isolation_level=None)) as copy,
        ):
            source.backup(copy)
            copy.execute("DELETE FROM document_words")  # larger than all messages
            copy.execute("VACUUM")
            # No WAL, so that reading a backup creates no other files.
            copy.execute("PRAGMA journal_mode = DELETE")
            if copy.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("the copy is damaged")
        sync_path(aside)
        replace_durably(aside, folder / f"{number:06}-{now:%Y-%m-%d}.db")
    finally:
        aside.unlink(missing_ok=True)
    for path in older if is_outdated(folder) else older[: 1 - MAX_BACKUPS]:
        path.unlink()
    (folder / _OUTDATED).unlink(missing_ok=True)
    sync_path(folder)


def date(path: Path) -> str:
    return path.stem.partition("-")[2]


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[0])

"""Copies of the database through SQLite's own backup: one a day, the newest seven.

They are numbered, since a clock may be moved; the date in the name is for people, and keeps it to
one copy a day. Attachments are not copied: their files never change (see `attachments.py`). Nor are
their words, which are found again (see `document_index.py`).
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
"""A file that exists while backups have what was permanently deleted."""


def list_backups(folder: Path) -> list[Path]:
    """Oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_number)


def is_outdated(folder: Path) -> bool:
    """Whether backups may have what was permanently deleted."""
    return (folder / _OUTDATED).exists()


def mark_outdated(folder: Path) -> None:
    """Remember, before the database forgets something, that the backups still have it. Raises
    OSError."""
    if list_backups(folder):
        write_durably(folder / _OUTDATED, b"")


def is_due(folder: Path, now: datetime) -> bool:
    """Whether there is no backup of this day yet, or one has what was permanently deleted."""
    newest = list_backups(folder)[-1:]
    return is_outdated(folder) or not any(date(path) == f"{now:%Y-%m-%d}" for path in newest)


def back_up(database: Path, folder: Path, now: datetime) -> None:
    """Copy the committed state; other connections may be in use. The oldest backup is deleted only
    after the copy was verified and synced; all others are if they have what was permanently
    deleted. Raises OSError or sqlite3.Error."""
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
            copy.execute("DELETE FROM document_words")  # they are more than all messages
            copy.execute("VACUUM")
            # Without a WAL, so that reading a backup creates no other files.
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

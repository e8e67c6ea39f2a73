"""Backs up the database once a day with SQLite's backup API. The backup of a day replaces the one
before.

Attachments are not copied, because their files never change (`attachments.py`). The document index
is not copied either, because it can be rebuilt (`document_index.py`).
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path

from app.store.database import connect_for_reading
from app.util.atomic_files import replace_durably, sync_path, write_durably
from app.util.regular_files import create_private


def day(backup: Path) -> date | None:
    """The day of a backup, which is its modification time; None if there is no backup."""
    if not backup.is_file():
        return None
    return datetime.fromtimestamp(backup.stat().st_mtime, UTC).date()


def is_outdated(backup: Path) -> bool:
    """Whether the backup may contain permanently deleted data."""
    return _outdated_mark(backup).exists()


def mark_outdated(backup: Path) -> None:
    """Record that the backup contains data that is about to be deleted permanently. Raises
    OSError."""
    if backup.exists():
        write_durably(_outdated_mark(backup), b"")


def is_due(backup: Path, now: datetime) -> bool:
    """Whether there is no backup of this day, or it contains permanently deleted data."""
    return is_outdated(backup) or day(backup) != now.date()


def back_up(database: Path, backup: Path, now: datetime) -> None:
    """Copy the committed state; other connections may be in use. The copy replaces the backup once
    it was verified and synced. Raises OSError or sqlite3.Error."""
    aside = backup.with_suffix(".unfinished")
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
        os.utime(aside, (now.timestamp(), now.timestamp()))
        sync_path(aside)
        replace_durably(aside, backup)
    finally:
        aside.unlink(missing_ok=True)
    _outdated_mark(backup).unlink(missing_ok=True)
    sync_path(backup.parent)


def _outdated_mark(backup: Path) -> Path:
    """A file that exists while the backup contains permanently deleted data."""
    return backup.with_suffix(".outdated")

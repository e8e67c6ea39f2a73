"""Copies of the database through SQLite's own backup: the newest seven, and how they are restored.

They are numbered, since a clock may be moved; the date in the name is for people, and keeps it to
one copy a day. Attachments are not copied: their files never change (see `attachments.py`). Nor are
their words, which are found again (see `document_index.py`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from app.store import conversations, integrity
from app.store.conversations import Expired
from app.store.database import (
    ERRORS,
    connect_for_reading,
    connect_for_writing,
    transaction,
)
from app.store.errors import DamagedError, StoreError
from app.util.atomic_files import make_folder, replace_durably, temp_file, write_durably
from app.util.durable import sync, sync_path
from app.util.private_file import create_private
from app.util.regular_files import open_file, read_file

MAX_BACKUPS = 7
_NOTE = "forget.json"
_NAME = re.compile(r"(\d{6,})-(\d{4}-\d\d-\d\d)\.db")


def list_backups(folder: Path) -> list[Path]:
    """Oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_number)


def is_due(folder: Path, now: datetime) -> bool:
    """Whether there is no backup of this day yet."""
    newest = list_backups(folder)[-1:]
    return not any(path.name.endswith(f"-{now:%Y-%m-%d}.db") for path in newest)


def back_up(database: Path, folder: Path, now: datetime) -> None:
    """Copy the committed state; other connections may be in use. The oldest backup is deleted only
    after the copy was verified and synced. Raises OSError or sqlite3.Error."""
    make_folder(folder)
    existing = list_backups(folder)
    path = folder / f"{_number(existing[-1]) + 1 if existing else 1:06}-{now:%Y-%m-%d}.db"
    aside = folder / "unfinished"
    aside.unlink(missing_ok=True)
    try:
        create_private(aside).close()
        with (
            closing(connect_for_reading(database)) as source,
            closing(sqlite3.connect(aside, isolation_level=None)) as copy,
        ):
            source.backup(copy)
            _drop_words(copy)
            # Without a WAL, so that reading a backup creates no other files.
            copy.execute("PRAGMA journal_mode = DELETE")
        if integrity.examine(aside).condition is not integrity.Condition.GOOD:
            raise sqlite3.DatabaseError("the copy is damaged")
        with aside.open("rb") as file:
            sync(file.fileno())
        replace_durably(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    for old in list_backups(folder)[:-MAX_BACKUPS]:
        old.unlink()
    sync_path(folder)


def note_purge(folder: Path, gone: Expired) -> None:
    """Remember what the backups have to forget, before the database does. Raises OSError."""
    if list_backups(folder):
        noted = _noted(folder)
        both = Expired(noted.conversations + gone.conversations, noted.messages + gone.messages)
        write_durably(folder / _NOTE, json.dumps(asdict(both)).encode())


def purge(folder: Path) -> None:
    """Delete from all backups what was noted. The note stays until that is possible. Raises
    OSError, sqlite3.Error or StoreError."""
    gone = _noted(folder)
    failed: Exception | None = None
    for path in list_backups(folder) if gone else ():
        try:
            _purge(path, gone)
        except DamagedError:  # it is never restored
            continue
        except (StoreError, sqlite3.OperationalError) as error:  # such as a full disk
            failed = error
        except sqlite3.Error:  # damaged, too
            continue
    if failed is not None:
        raise failed
    (folder / _NOTE).unlink(missing_ok=True)


def _purge(path: Path, gone: Expired) -> None:
    aside = path.with_name("unfinished")
    aside.unlink(missing_ok=True)
    try:
        with open_file(path) as source, create_private(aside) as copied:
            shutil.copyfileobj(source, copied)
        with closing(connect_for_writing(aside, journal="DELETE")) as copy:
            with transaction(copy):
                conversations.purge(copy, gone)
            copy.execute("VACUUM")
        if integrity.examine(aside).condition is integrity.Condition.GOOD:
            sync_path(aside)
            replace_durably(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _noted(folder: Path) -> Expired:
    try:
        noted = json.loads(read_file(folder / _NOTE))
        return Expired(*(tuple(map(tuple, noted[each])) for each in ("conversations", "messages")))
    except (OSError, ValueError, KeyError, TypeError):
        return Expired()


def _drop_words(copy: sqlite3.Connection) -> None:
    """Delete the words of documents, which are more than all messages."""
    copy.execute("DELETE FROM document_words")
    copy.execute("VACUUM")


def restore(folder: Path, database: Path) -> Path | None:
    """Copy the newest good backup to the place of the database. None if there is none."""
    usable = (integrity.Condition.GOOD, integrity.Condition.NEWER)
    for path in reversed(list_backups(folder)):
        if integrity.examine(path).condition in usable:
            aside = database.with_suffix(".restored")
            aside.unlink(missing_ok=True)
            with open_file(path) as source, temp_file(aside) as copy:
                os.fchmod(copy.fileno(), 0o600)
                shutil.copyfileobj(source, copy)
            replace_durably(aside, database)
            return path
    return None


def rebuild(broken: Path, database: Path) -> bool:
    """Rebuild a database with damaged indexes from its tables; False if more is damaged.
    Raises OSError."""
    aside = database.with_suffix(".rebuilt")
    aside.unlink(missing_ok=True)
    try:
        create_private(aside).close()
        with closing(connect_for_reading(broken)) as source:
            source.execute("VACUUM INTO ?", (str(aside),))
        with closing(sqlite3.connect(aside, isolation_level=None)) as copy:
            copy.execute("INSERT INTO message_text(message_text) VALUES ('rebuild')")
            faults = copy.execute("PRAGMA integrity_check(1)").fetchall()
            whole = faults == [("ok",)] and not copy.execute("PRAGMA foreign_key_check").fetchall()
    except ERRORS:
        whole = False
    if whole:
        with aside.open("rb") as file:
            sync(file.fileno())
        replace_durably(aside, database)
    aside.unlink(missing_ok=True)
    return whole


def date(path: Path) -> str:
    return path.stem.partition("-")[2]


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[0])

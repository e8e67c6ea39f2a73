"""Opens the database: takes the lock, checks the file, and repairs damage.

A database that passes SQLite's quick check is used. Otherwise the backup replaces it, or a new
database if there is no intact backup. Nothing that may contain the user's text is overwritten:
damaged files are first moved to broken/, where they are kept for MAX_AGE_DAYS. SQLite itself reads
a damaged journal (WAL) up to the damage.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app.store import backup, schema
from app.store.database import (
    ERRORS,
    connect_for_reading,
    connect_for_writing,
    folder_error,
    store_error,
    transaction,
)
from app.store.records import DamagedError, StoreError
from app.store.schema import Condition
from app.util.atomic_files import Lock, make_folder, replace_durably, sync_path
from app.util.regular_files import create_private, make_private, open_file

MAX_AGE_DAYS = 180
"""Days after which damaged files are deleted."""

_MAGIC = b"SQLite format 3\0"
_ENVIRONMENT_ERRORS = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
)
"""Errors that come from the folder, the disk or another program."""


class Paths:
    """The files of a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "conversations.db"
        self.wal = folder / "conversations.db-wal"
        self.wal_index = folder / "conversations.db-shm"
        self.attachments = folder / "attachments"
        self.backup = folder / "backup.db"
        self.broken = folder / "broken"
        self.needs_check = folder / "suspect"
        """A file that exists if SQLite reported damage that the check at the start cannot find."""


@dataclass(slots=True)
class OpenedDatabase:
    """An opened database. Without a `connection` it can only be read, for the reason `read_only`.
    `notices` are other sentences for the user."""

    connection: sqlite3.Connection | None = None
    lock: Lock | None = None
    read_only: StoreError | None = None
    secondary: bool = False
    """Whether another process is the writer, so that only single transactions are possible."""
    notices: list[str] = field(default_factory=list)


def open_database(paths: Paths, now: datetime, lock_timeout: float) -> OpenedDatabase:
    """Open the database; wait `lock_timeout` seconds for another process to release it. Raises
    StoreError if it can be neither read nor written."""
    try:
        make_folder(paths.folder)
        with suppress(OSError):  # an earlier umask or a copy may have let others read it
            make_private(paths.folder, paths.database, paths.wal, paths.wal_index, paths.backup)
            for folder in (paths.attachments, paths.broken):
                make_private(folder)
        lock = Lock(paths.folder / "lock", lock_timeout)
    except BlockingIOError:
        return _open_secondary(paths)
    except OSError as error:
        raise folder_error(paths.folder, error) from error
    try:
        return _open_exclusive(paths, lock, now)
    except BaseException as error:
        lock.release()
        if isinstance(error, OSError):
            raise folder_error(paths.folder, error) from error
        if isinstance(error, ERRORS):
            raise store_error(error) from error
        raise


def _open_secondary(paths: Paths) -> OpenedDatabase:
    condition = None
    with suppress(*ERRORS), closing(connect_for_reading(paths.database)) as connection:
        condition = schema.condition(connection)
    if condition is not Condition.GOOD:
        raise StoreError(
            "Another specchat is preparing the conversations", "wait until it is ready, or close it"
        )
    return OpenedDatabase(
        read_only=StoreError(
            "Another specchat has the conversations open, so new questions are not saved",
            "close it and start again to save them",
        ),
        secondary=True,
    )


def _open_exclusive(paths: Paths, lock: Lock, now: datetime) -> OpenedDatabase:
    opened = OpenedDatabase(lock=lock)
    condition = _check(paths, now, opened.notices)
    if condition is Condition.NEWER:
        lock.release()  # so that the newer version can acquire it
        opened.lock = None
        opened.read_only = StoreError(
            "A newer version of specchat saved these conversations, so they can only be read",
            "update specchat to continue them",
        )
        return opened
    try:
        try:
            opened.connection = _open_writable(paths, condition, opened.notices)
        except DamagedError:
            condition = _replace(paths, Condition.GOOD, now, opened.notices)
            opened.connection = _open_writable(paths, condition, opened.notices)
    except StoreError as error:
        if condition is Condition.NEW:
            raise
        opened.read_only = error  # such as a full disk: the database can still be read
    return opened


def _open_writable(paths: Paths, condition: Condition, notices: list[str]) -> sqlite3.Connection:
    try:
        with suppress(OSError):  # the file exists, or SQLite reports what is wrong
            create_private(paths.database).close()  # SQLite's other files get the same permissions
        connection = connect_for_writing(paths.database)
    except ERRORS as error:
        raise store_error(error) from error
    try:
        if condition is Condition.NEW:
            schema.create(connection)
        _mark_stopped(connection, notices)
    except BaseException:
        connection.close()
        raise
    return connection


def _mark_stopped(connection: sqlite3.Connection, notices: list[str]) -> None:
    """Mark answers that were cut off as stopped. They are not continued automatically."""
    with transaction(connection):
        cut_off = connection.execute(
            "UPDATE messages SET state = 'stopped' WHERE state = 'partial'"
        ).rowcount
    if cut_off:
        answers = "An answer was" if cut_off == 1 else f"{cut_off} answers were"
        notices.append(f"{answers} cut off when specchat ended. What was written is saved.")


# ------------------------------------------------------------------------------------ the check


def _check(paths: Paths, now: datetime, notices: list[str]) -> Condition:
    """The condition of the database. A damaged one is replaced first."""
    condition = examine(paths.database)
    suspect = condition is Condition.GOOD and paths.needs_check.exists()
    missing = condition is Condition.NEW and paths.backup.is_file()
    usable = (Condition.NEW, Condition.GOOD, Condition.NEWER)
    if suspect or missing or condition not in usable:
        return _replace(paths, condition, now, notices)
    return condition


def examine(database: Path) -> Condition:
    """Check a database without changing it. Raises OSError or sqlite3.OperationalError if it
    cannot be opened; its content is then unknown."""
    header = _header_condition(database)
    if header is not Condition.GOOD:
        return header
    try:
        with closing(connect_for_reading(database)) as connection:
            connection.execute("PRAGMA cell_size_check = 1")
            connection.execute("PRAGMA foreign_keys = 1")
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            return schema.condition(connection) if verdict == "ok" else Condition.DAMAGED
    except ERRORS as error:
        return _damaged(error)


def _header_condition(database: Path) -> Condition:
    """The condition according to the first bytes. They are checked before SQLite opens the file,
    because it deletes the WAL of a file of one byte."""
    head = b""
    with suppress(FileNotFoundError), open_file(database) as file:
        head = file.read(20)
    if not head:
        # A WAL without its database has changes that a new database would overwrite.
        has_wal = _size(database.with_name(database.name + "-wal"))
        return Condition.JOURNAL_ONLY if has_wal else Condition.NEW
    if not head.startswith(_MAGIC):
        return Condition.NO_DATABASE
    # SQLite can only read files with other format numbers.
    return Condition.GOOD if {*head[18:]} <= {1, 2} else Condition.DAMAGED


def _damaged(error: Exception) -> Condition:
    """Return DAMAGED for an error about a file's content; raise other errors again."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF in _ENVIRONMENT_ERRORS or code == sqlite3.SQLITE_IOERR_WRITE:
        raise error
    return Condition.DAMAGED


def _replace(paths: Paths, condition: Condition, now: datetime, notices: list[str]) -> Condition:
    """Move a damaged database to broken/, and replace it with the backup if that is intact. If
    only its indexes may be damaged, because it passes the quick check, replace it with a copy that
    has new indexes."""
    make_folder(paths.broken)
    sources = [paths.backup] if paths.backup.is_file() else []
    if condition is Condition.GOOD:
        sources = [paths.database, *sources]
    aside = paths.database.with_suffix(".restored")
    used = next((source for source in sources if _copy_whole(source, aside)), None)
    damaged = [paths.backup] if used is None else []
    if condition is Condition.NEW:
        what = "is missing"
        if moved := _set_aside(paths, damaged, now):
            what += f", and its backup is damaged and was moved to '{moved[0]}'"
    else:
        fault = Condition.DAMAGED if condition is Condition.GOOD else condition
        moved = _set_aside(paths, [paths.database, paths.wal, paths.wal_index, *damaged], now)
        what = f"is {fault} and was moved to '{moved[0]}'"
    if used is not None:
        replace_durably(aside, paths.database)
    paths.needs_check.unlink(missing_ok=True)
    if used is None:
        how = "a new one was created"
    elif used == paths.database:
        how = "everything was recovered"
    else:
        how = f"the backup of {backup.day(used)} was restored"
    notices.append(f"The conversations file {what}: {how}.")
    return examine(paths.database)


def _copy_whole(source: Path, copy: Path) -> bool:
    """Copy a database and rebuild its indexes; False if it is damaged. Raises OSError or
    sqlite3.OperationalError, for example if the disk is full."""
    copy.unlink(missing_ok=True)
    try:
        create_private(copy).close()
        with closing(connect_for_reading(source)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            connection.execute("INSERT INTO message_text(message_text) VALUES ('rebuild')")
            faults = connection.execute("PRAGMA integrity_check(1)").fetchall()
            faults += connection.execute("PRAGMA foreign_key_check").fetchall()
        condition = examine(copy) if faults == [("ok",)] else Condition.DAMAGED
    except ERRORS as error:
        condition = _damaged(error)
    if condition in (Condition.GOOD, Condition.NEWER):
        sync_path(copy)
        return True
    copy.unlink(missing_ok=True)
    return False


# --------------------------------------------------------------------------------- damaged files


def _set_aside(paths: Paths, files: Sequence[Path], now: datetime) -> list[Path]:
    """Move those of the files that are not empty to broken/, where they get the same number.
    Returns their new paths. Raises OSError."""
    make_folder(paths.broken)
    number = max(_broken_files(paths), default=0) + 1
    moved: list[Path] = []
    # The WAL before the database: after a crash here, the next start must not find it with another.
    for file in reversed([file for file in files if _size(file)]):
        moved.insert(0, file.rename(paths.broken / f"{number}-{file.name}"))
        os.utime(moved[0], (now.timestamp(), now.timestamp()))
    sync_path(paths.broken)
    sync_path(paths.folder)
    return moved


def purge_broken(paths: Paths, now: datetime) -> list[str]:
    """Delete damaged files older than MAX_AGE_DAYS. Returns a sentence for each. Raises OSError."""
    sentences = []
    for _, files in sorted(_broken_files(paths).items()):
        since = datetime.fromtimestamp(max(path.stat().st_mtime for path in files), UTC)
        if now - since <= timedelta(days=MAX_AGE_DAYS):
            continue
        for path in files:
            path.unlink()
        sentences.append(
            f"The damaged conversations file that was set aside on {since:%Y-%m-%d} was deleted"
            f" after {MAX_AGE_DAYS} days."
        )
    return sentences


def has_broken(paths: Paths) -> bool:
    """Whether broken/ has damaged files."""
    return bool(_broken_files(paths))


def _broken_files(paths: Paths) -> dict[int, list[Path]]:
    """The files in broken/, by number."""
    found = defaultdict(list)
    for path in paths.broken.iterdir() if paths.broken.is_dir() else ():
        if match := re.fullmatch(r"(\d+)-(conversations\.db(-wal|-shm)?|backup\.db)", path.name):
            found[int(match[1])].append(path)
    return found


def _size(path: Path) -> int:
    """Bytes of a file; 0 if it does not exist."""
    return path.stat().st_size if path.is_file() else 0

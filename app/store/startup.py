"""Opening the store: the lock, the check, repairs, and answers that were cut off.

Nothing that may contain text of the user is overwritten: damaged files are moved to quarantine.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from app.store import backup, integrity, quarantine, schema, wal
from app.store.database import (
    ERRORS,
    connect_for_reading,
    connect_for_writing,
    folder_error,
    store_error,
    transaction,
)
from app.store.errors import DamagedError, StoreError
from app.store.integrity import Condition
from app.store.schema import Version
from app.store.wal import WalState
from app.util.atomic_files import Lock, make_folder
from app.util.private_file import create_private, make_private


@dataclass(frozen=True, slots=True)
class Paths:
    """The files of a store."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "conversations.db"

    @property
    def attachments(self) -> Path:
        return self.folder / "attachments"

    @property
    def backups(self) -> Path:
        return self.folder / "backups"

    @property
    def needs_check(self) -> Path:
        """Exists if SQLite reported damage that the check at the start does not find."""
        return self.folder / "suspect"

    @property
    def quarantine(self) -> Path:
        return self.folder / "broken"


@dataclass(slots=True)
class OpenedDatabase:
    """An opened database. Without a `connection` it can only be read, and `read_only` is the
    reason; `notices` are other sentences for the user."""

    connection: sqlite3.Connection | None = None
    lock: Lock | None = None
    read_only: StoreError | None = None
    secondary: bool = False
    """Whether another process is the writer, so that only single transactions can be made."""
    notices: list[str] = field(default_factory=list)


def open_database(paths: Paths, now: datetime, lock_timeout: float) -> OpenedDatabase:
    """Waits `lock_timeout` seconds for another process. Raises StoreError if the database can be
    neither read nor written."""
    try:
        make_folder(paths.folder)
        _make_private(paths)
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


def _make_private(paths: Paths) -> None:
    """At each start: an earlier umask, or a copy from elsewhere, may have let others in."""
    with suppress(OSError):  # such as a disk that can only be read
        make_private(paths.folder, *integrity.database_files(paths.database))
        for folder in (paths.attachments, paths.backups, paths.quarantine):
            make_private(folder)


def _open_exclusive(paths: Paths, lock: Lock, now: datetime) -> OpenedDatabase:
    opened = OpenedDatabase(lock=lock)
    finding = _check(paths, now, opened.notices)
    if finding.condition is Condition.NEWER:
        lock.release()  # so that the newer version can take it
        opened.lock = None
        opened.read_only = StoreError(
            "A newer version of specchat saved these conversations, so they can only be read",
            "update specchat to continue them",
        )
        return opened
    try:
        try:
            opened.connection = _open_writable(paths, finding, opened.notices)
        except DamagedError:
            finding = _repair(paths, now, opened.notices)
            opened.connection = _open_writable(paths, finding, opened.notices)
    except StoreError as error:
        if finding.condition is Condition.NEW:
            raise
        opened.read_only = error  # such as a full disk: it can still be read
    return opened


def _open_writable(
    paths: Paths, finding: integrity.HealthReport, notices: list[str]
) -> sqlite3.Connection:
    try:
        with suppress(OSError):  # it exists, or SQLite says what is wrong
            create_private(paths.database).close()  # SQLite's other files get the same permissions
        connection = connect_for_writing(paths.database)
    except ERRORS as error:
        raise store_error(error) from error
    try:
        if finding.condition is Condition.NEW:
            schema.create(connection)
        _mark_stopped(connection, notices)
    except BaseException:
        connection.close()
        raise
    return connection


def _check(paths: Paths, now: datetime, notices: list[str]) -> integrity.HealthReport:
    """The state of the database, after a damaged one was quarantined and replaced if possible."""
    if integrity.file_size(paths.database):
        _check_wal(paths, now, notices)
    finding = integrity.examine(paths.database)
    if finding.condition is Condition.GOOD and paths.needs_check.exists():
        return _repair(paths, now, notices)
    if finding.condition is Condition.BROKEN:
        moved = quarantine.move(paths.database, paths.quarantine, now)
        return _restore_backup(paths, f"is {finding.fault} and was moved to '{moved}'", notices)
    if finding.condition is Condition.NEW and backup.list_backups(paths.backups):
        return _restore_backup(paths, "is missing", notices)
    return finding


def _check_wal(paths: Paths, now: datetime, notices: list[str]) -> None:
    """Save the parts of the WAL that SQLite would overwrite unread."""
    lost = "last changes before specchat ended"
    match wal.examine(paths.database):
        case WalState.UNUSABLE:
            saved = quarantine.move(paths.database, paths.quarantine, now, wal_only=True)
            notices.append(f"The {lost} cannot be read: see '{saved}'.")
        case WalState.PARTIAL if integrity.file_size(integrity.database_files(paths.database)[1]):
            saved = quarantine.copy_wal(paths.database, paths.quarantine, now)
            notices.append(f"Some of the {lost} cannot be read: see '{saved}'.")
        case WalState.PARTIAL:
            notices.append(f"The {lost} are lost with their journal: check what is missing.")


def _repair(paths: Paths, now: datetime, notices: list[str]) -> integrity.HealthReport:
    """Repair damage that SQLite's quick check does not find, in indexes."""
    moved = quarantine.move(paths.database, paths.quarantine, now)
    what = f"is damaged and was moved to '{moved}'"
    if backup.rebuild(moved, paths.database):
        paths.needs_check.unlink(missing_ok=True)
        notices.append(f"The conversations file {what}: everything was recovered.")
        return integrity.examine(paths.database)
    return _restore_backup(paths, what, notices)


def _restore_backup(paths: Paths, what: str, notices: list[str]) -> integrity.HealthReport:
    """Restore the newest good backup, if there is one."""
    used = backup.restore(paths.backups, paths.database)
    paths.needs_check.unlink(missing_ok=True)
    how = f"the backup of {backup.date(used)} was restored" if used else "a new one was created"
    notices.append(f"The conversations file {what}: {how}.")
    return integrity.examine(paths.database)


def _mark_stopped(connection: sqlite3.Connection, notices: list[str]) -> None:
    """Mark the answers that were cut off as stopped. They are not asked again automatically."""
    with transaction(connection):
        cut_off = connection.execute(
            "UPDATE messages SET state = 'stopped' WHERE state = 'partial'"
        ).rowcount
    if cut_off:
        answers = "An answer was" if cut_off == 1 else f"{cut_off} answers were"
        notices.append(f"{answers} cut off when specchat ended: what was written is saved.")


def _open_secondary(paths: Paths) -> OpenedDatabase:
    try:
        with closing(connect_for_reading(paths.database)) as connection:
            version = schema.version(connection)
    except ERRORS:
        version = Version.NONE
    if version is not Version.CURRENT:
        raise StoreError(
            "Another specchat is preparing the conversations", "wait until it is ready, or close it"
        )
    return OpenedDatabase(
        read_only=StoreError(
            "Another specchat has the conversations open, so new questions are not saved",
            "close the other one and start again to save them",
        ),
        secondary=True,
    )

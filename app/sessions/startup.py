"""What happens before the first conversation is seen: the lock, the check, and what was cut off.

Nothing that might hold a word of the user is ever overwritten: what is broken is moved aside.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from app.sessions import backup, integrity, quarantine, schema, wal
from app.sessions.database import ERRORS, explained, for_reading, for_writing, transaction, unusable
from app.sessions.errors import DamagedError, StoreError
from app.sessions.integrity import Condition
from app.sessions.wal import Journal
from app.util.atomic_files import Lock, make_folder


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything lies below one folder."""

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
    def suspect(self) -> Path:
        """Is there when SQLite has found damage that its check at the start does not see."""
        return self.folder / "suspect"

    @property
    def broken(self) -> Path:
        return self.folder / "broken"


@dataclass(slots=True)
class Opened:
    """The database, ready. Without `connection` it can only be read, and `read_only` says why;
    `notices` say what else the user should know."""

    connection: sqlite3.Connection | None = None
    lock: Lock | None = None
    read_only: StoreError | None = None
    beside: bool = False
    """Whether another program has it open, so that only single changes can be made."""
    notices: list[str] = field(default_factory=list)


def open_database(places: Places, now: datetime, patience: float) -> Opened:
    """Another program is given `patience` seconds to end. Raises StoreError when there is nothing
    to be read or written."""
    try:
        make_folder(places.folder)
        lock = Lock(places.folder / "lock", patience)
    except BlockingIOError:
        return _open_beside_another(places)
    except OSError as error:
        raise unusable(places.folder, error) from error
    try:
        return _open_alone(places, lock, now)
    except BaseException as error:
        lock.release()
        if isinstance(error, OSError):
            raise unusable(places.folder, error) from error
        if isinstance(error, ERRORS):
            raise explained(error) from error
        raise


def _open_alone(places: Places, lock: Lock, now: datetime) -> Opened:
    opened = Opened(lock=lock)
    finding = _checked(places, now, opened.notices)
    if finding.condition is Condition.NEWER:
        lock.release()  # for the newer program
        opened.lock = None
        opened.read_only = StoreError(
            "A newer version of specchat has kept these conversations, so this one only reads them",
            "update specchat to go on with them",
        )
        return opened
    if finding.condition is Condition.GOOD and finding.pending:
        backup.back_up(places.database, places.backups, now)
    try:
        try:
            opened.connection = _writable(places, finding.pending, opened.notices)
        except DamagedError:
            finding = _mended(places, now, opened.notices)
            opened.connection = _writable(places, finding.pending, opened.notices)
    except StoreError as error:
        if finding.pending:
            raise
        opened.read_only = error  # a full disk, say: what is there can be read
    return opened


def _writable(places: Places, pending: bool, notices: list[str]) -> sqlite3.Connection:
    try:
        connection = for_writing(places.database)
    except ERRORS as error:
        raise explained(error) from error
    try:
        if pending:
            schema.migrate(connection)
        _mark_stopped(connection, notices)
    except BaseException:
        connection.close()
        raise
    return connection


def _checked(places: Places, now: datetime, notices: list[str]) -> integrity.Finding:
    """The state of the database after what is broken was moved aside, and replaced if possible."""
    if integrity.size(places.database):
        _check_journal(places, now, notices)
    finding = integrity.examine(places.database)
    if finding.condition is Condition.GOOD and places.suspect.exists():
        return _mended(places, now, notices)
    if finding.condition is Condition.BROKEN:
        moved = quarantine.move(places.database, places.broken, now)
        return _restored(places, f"is {finding.fault} and lies now in '{moved}'", notices)
    if finding.condition is Condition.NEW and backup.backups(places.backups):
        return _restored(places, "has gone", notices)
    return finding


def _check_journal(places: Places, now: datetime, notices: list[str]) -> None:
    """Keep what SQLite would overwrite unread, and say so."""
    lost = "last changes before specchat ended"
    match wal.examine(places.database):
        case Journal.NOT_AT_ALL:
            kept = quarantine.move(places.database, places.broken, now, journal_only=True)
            notices.append(f"The {lost} cannot be read: see '{kept}'.")
        case Journal.PARTLY if integrity.size(integrity.parts(places.database)[1]):
            kept = quarantine.copy_journal(places.database, places.broken, now)
            notices.append(f"Some of the {lost} cannot be read: see '{kept}'.")
        case Journal.PARTLY:
            notices.append(f"The {lost} have gone with their journal: look what is missing.")


def _mended(places: Places, now: datetime, notices: list[str]) -> integrity.Finding:
    """The state after damage was found where SQLite's quick check does not look: in indexes."""
    moved = quarantine.move(places.database, places.broken, now)
    what = f"is damaged and lies now in '{moved}'"
    if backup.rebuild(moved, places.database):
        places.suspect.unlink(missing_ok=True)
        notices.append(f"The file of conversations {what}: all of it could be mended.")
        return integrity.examine(places.database)
    return _restored(places, what, notices)


def _restored(places: Places, what: str, notices: list[str]) -> integrity.Finding:
    """The state after the newest good backup was put in place, or nothing where there is none."""
    used = backup.restore(places.backups, places.database)
    places.suspect.unlink(missing_ok=True)
    how = f"the backup of {backup.date(used)} is used" if used else "a new one is begun"
    notices.append(f"The file of conversations {what}: {how}.")
    return integrity.examine(places.database)


def _mark_stopped(connection: sqlite3.Connection, notices: list[str]) -> None:
    """What the end of the program cut off. Nothing is asked again by itself."""
    with transaction(connection):
        cut_off = connection.execute(
            "UPDATE messages SET state = 'stopped' WHERE state = 'partial'"
        ).rowcount
    if cut_off:
        answers = "An answer was" if cut_off == 1 else f"{cut_off} answers were"
        notices.append(f"{answers} cut off when specchat ended: what was written is kept.")


def _open_beside_another(places: Places) -> Opened:
    try:
        with closing(for_reading(places.database)) as connection:
            steps = schema.applied(connection)
    except ERRORS:
        steps = None
    if not steps or schema.pending(steps):
        raise StoreError(
            "Another specchat is preparing the conversations", "wait until it is ready, or close it"
        )
    return Opened(
        read_only=StoreError(
            "Another specchat has the conversations open, so what is asked here is not kept",
            "close the other one and start again to keep it",
        ),
        beside=True,
    )

"""Database connections, the writer thread, and sentences for SQLite's errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from app.paths import display_path
from app.store.records import DamagedError, StoreError

T = TypeVar("T")
Task = Callable[[sqlite3.Connection], T]

BUSY_SECONDS = 5.0

_FOR_WRITING = (
    "synchronous = FULL",
    "fullfsync = 1",
    "checkpoint_fullfsync = 1",
    "foreign_keys = 1",
    "secure_delete = 1",
    "cell_size_check = 1",
)


ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Errors that sqlite3 raises. (An error message that quotes damaged text is not valid UTF-8.)"""


def connect_for_writing(path: Path, journal: str = "WAL") -> sqlite3.Connection:
    """Open the only connection that writes. Transactions must be opened explicitly."""
    connection = _connect(str(path), uri=False)
    try:
        for pragma in (f"journal_mode = {journal}", *_FOR_WRITING):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_for_reading(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot change the database, not even when it is closed."""
    return _connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _connect(name: str, uri: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri
    )
    # Show a damaged character instead of failing to load the whole conversation.
    connection.text_factory = lambda data: data.decode(errors="replace")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit the block as a whole or not at all. Raises StoreError."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except ERRORS as error:
        raise store_error(error) from error
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def single_transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection for one transaction while another process is the writer. Raises
    StoreError."""
    try:
        connection = connect_for_writing(path)
    except ERRORS as error:
        raise store_error(error) from error
    with closing(connection), transaction(connection):
        yield connection


class Readers:
    """A pool of read-only connections: opening one takes longer than most reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection whose reads all see the same state. Raises StoreError."""
        connection: sqlite3.Connection | None = None
        try:
            with suppress(IndexError):
                connection = self._idle.pop()
            connection = connection or connect_for_reading(self._path)
            connection.execute("BEGIN")
            yield connection
        except ERRORS as error:
            raise store_error(error) from error
        finally:
            if connection is not None:
                self._release(connection)

    def _release(self, connection: sqlite3.Connection) -> None:
        connection.rollback()
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class Writer:
    """The only thread that changes the database; each task is a transaction. Every method may be
    called from any thread."""

    def __init__(self, connection: sqlite3.Connection, on_damage: Callable[[], None]) -> None:
        """Takes over the connection and closes it. `on_damage` is called if SQLite reports that the
        file is damaged."""
        self._connection = connection
        self._on_damage = on_damage
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store writer")

    def run(self, task: Task[T]) -> T:
        """Run a task in a transaction and wait until it is on disk. Raises StoreError, and what the
        task raises; the transaction is then rolled back."""
        return self.submit(task).result()

    def submit(self, task: Task[T]) -> Future[T]:
        """Run a task as `run` does, without waiting. Raises StoreError after `close`."""
        try:
            return self._thread.submit(self._execute, task)
        except RuntimeError:  # the executor was shut down
            raise StoreError("The conversations are closed", "start specchat again") from None

    def close(self) -> None:
        """Finish the submitted tasks, and end the thread. May be called again."""
        self._thread.shutdown()
        self._connection.close()

    def _execute(self, task: Task[T]) -> T:
        try:
            with transaction(self._connection):
                return task(self._connection)
        except DamagedError:
            self._on_damage()
            raise


_ERROR_TEXTS = {
    sqlite3.SQLITE_FULL: (
        "The disk is full, so nothing more can be saved",
        "free some space; what was saved before is safe",
    ),
    sqlite3.SQLITE_READONLY: (
        "The conversations can only be read, not changed",
        "make their folder writable",
    ),
    sqlite3.SQLITE_BUSY: (
        "Another program has locked the conversations",
        "close it and try again",
    ),
    sqlite3.SQLITE_TOOBIG: ("The text is too long to be saved", "attach it as a file"),
}
_ERROR_TEXTS[sqlite3.SQLITE_LOCKED] = _ERROR_TEXTS[sqlite3.SQLITE_BUSY]


def store_error(error: Exception) -> StoreError:
    """Convert a SQLite error to a sentence for the user."""
    # Errors raised by the sqlite3 module itself have no code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    damaged = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    if damaged or isinstance(error, UnicodeDecodeError):
        return DamagedError()
    return StoreError(
        *_ERROR_TEXTS.get(
            code,
            (
                f"The conversations cannot be read or changed ({error})",
                "check their disk and start specchat again",
            ),
        )
    )


def folder_error(folder: Path, error: OSError) -> StoreError:
    shown = display_path(folder)
    if isinstance(error, FileExistsError | NotADirectoryError):
        file = display_path(Path(error.filename or folder))
        return StoreError(
            f"Conversations cannot be saved, because '{file}' is a file, not a folder",
            "rename or remove it",
        )
    return StoreError(
        f"Conversations cannot be saved in '{shown}' ({error.strerror})",
        "check that it is a writable folder with free space",
    )

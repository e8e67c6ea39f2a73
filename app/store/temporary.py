"""Conversations that are not saved."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from app.store import conversations
from app.store.database import folder_error
from app.store.records import Conversation
from app.store.store import Store
from app.store.writer import Writer
from app.util.atomic_files import Lock

PREFIX = "specchat-unsaved-"


class TemporaryStore(Store):
    """A store in a temporary folder that only this user can read. It has no backups, and it is
    deleted when it is closed, at exit or, after a crash, when the next one is opened."""

    def __init__(self, first_id: int = 1) -> None:
        """The first conversation and the first message have the id `first_id`. Raises
        StoreError."""
        _delete_abandoned()
        try:  # mode 700
            self._directory = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        except OSError as error:
            raise folder_error(Path(tempfile.gettempdir()), error) from error
        super().__init__(Path(self._directory.name), attachment_limit=sys.maxsize)
        self._write(lambda connection: _start_ids(connection, first_id))

    def close(self) -> None:
        super().close()
        self._directory.cleanup()

    def copy_from(self, store: Store, id: int) -> Conversation:
        """Copy a conversation of another store, with its ids and documents; it may be here
        already. Raises StoreError."""
        if any(each.id == id for each in self.conversations()):
            return self.conversation(id)
        tree = store.tree(id)
        for message in tree.messages:
            for attachment in message.attachments:
                with suppress(OSError):  # a missing document is reported when it is read
                    self._attachments.copy_from(store._attachments, attachment.sha256)
        self._write(lambda c: conversations.add_tree(c, tree, keep_ids=True))
        return self.conversation(id)

    def _back_up_daily(self, _: sqlite3.Connection) -> None:
        """Nothing of it is to be found elsewhere."""

    def _start_indexer(self, writer: Writer) -> None:
        """Nor is it searched."""


def _start_ids(connection: sqlite3.Connection, first_id: int) -> None:
    connection.executemany(
        "INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)",
        [(table, first_id - 1) for table in ("conversations", "messages")],
    )


def _delete_abandoned() -> None:
    """The folders of processes that were killed: those whose lock nobody holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if (folder / "lock").exists():
                Lock(folder / "lock").release()
                shutil.rmtree(folder)

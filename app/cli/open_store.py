"""Opens the store of conversations for a command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from app.cli.settings import user_settings
from app.errors import UserError
from app.paths import data_path
from app.settings.definitions import Settings
from app.store.records import Conversation
from app.store.store import Store
from app.util.sanitize import sanitize

LAST = "last"
LOCK_SECONDS = 2.0
"""How long a command that writes waits for another one to end."""


@contextmanager
def open_store(timeout: float = 0.0, settings: Settings | None = None) -> Iterator[Store]:
    """Open the user's conversations, and print notices about it to standard error. Waits `timeout`
    seconds for another process to release them. Raises StoreError."""
    settings = settings or user_settings()
    limit, days = settings.attachment_bytes, settings.storage.trash_days
    with Store(data_path(), attachment_limit=limit, trash_days=days, lock_timeout=timeout) as store:
        for notice in store.notices:
            # Read-only does not matter for reading; a command that writes gets an error.
            if notice != str(store.read_only):
                sys.stderr.write(f"{sanitize(notice)}\n")
        yield store


def find_conversation(store: Store, name: str) -> Conversation:
    """The conversation with a number (which may be in the trash), or the `last` one (which is not).
    Raises UserError."""
    if name == LAST:
        last = store.last_used()
        if last is None:
            raise no_conversations()
        return last
    every = (*store.conversations(), *store.conversations(trashed=True))
    found = next((each for each in every if str(each.id) == name), None)
    if found is None:
        raise UserError(
            f"There is no conversation {name!r}", "`specchat conversations` lists their numbers"
        )
    return found


def no_conversations() -> UserError:
    return UserError(
        "There are no conversations yet", "start one with `specchat ask --conversation new`"
    )

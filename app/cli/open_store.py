"""The store of conversations, for a shell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from app.cli.settings import user_settings
from app.errors import UserError
from app.paths import data_path
from app.sessions.records import Conversation
from app.sessions.store import Store
from app.settings.values import Settings
from app.util.sanitize import sanitize

LAST = "last"
LOCK_SECONDS = 2.0
"""Seconds that whoever writes waits for another command to end."""


@contextmanager
def open_store(patience: float = 0.0, settings: Settings | None = None) -> Iterator[Store]:
    """The user's conversations; what is to be known of how they were opened goes to standard error.
    Another program that holds them is given `patience` seconds to end. Raises StoreError."""
    settings = settings or user_settings()
    limit, days = settings.attachment_bytes, settings.storage.trash_days
    with Store(
        data_path(), attachment_limit=limit, trash_days=days, lock_timeout=patience
    ) as store:
        for notice in store.notices:
            # That one can only read does not matter to who only reads; who writes is told then.
            if notice != str(store.read_only):
                sys.stderr.write(f"{sanitize(notice)}\n")
        yield store


def find_conversation(store: Store, name: str) -> Conversation:
    """The conversation of a number, perhaps in the trash, or the `last` one, which is not. Raises
    UserError."""
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
        "There are no conversations yet", "begin one with `specchat ask --conversation new`"
    )

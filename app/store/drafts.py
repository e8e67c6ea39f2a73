"""Unsent drafts: one for each conversation, and one for a new one."""

from __future__ import annotations

import json
import sqlite3

from app.store.errors import DamagedError
from app.store.messages import check_text
from app.store.records import Attachment, Draft

_COLUMNS = "conversation, text, attachments, mode, keep, notes"
_NEXT = "(SELECT coalesce(max(sequence), 0) + 1 FROM drafts)"


def draft(connection: sqlite3.Connection, conversation: int | None) -> Draft:
    """Empty if none was saved."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM drafts WHERE conversation IS ?", (conversation,)
    ).fetchone()
    return Draft(conversation) if row is None else _record(row)


def last(connection: sqlite3.Connection) -> Draft | None:
    """The draft that was saved last, unless its conversation is in the trash."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM drafts ORDER BY sequence DESC LIMIT 1"
    ).fetchone()
    if row is None:
        return None
    trashed = connection.execute(
        "SELECT trashed_at IS NOT NULL FROM conversations WHERE id = ?", (row[0],)
    ).fetchone()
    return None if trashed == (1,) else _record(row)


def save(connection: sqlite3.Connection, draft: Draft) -> None:
    check_text(draft.text)
    check_text(draft.notes)
    attachments = json.dumps([[a.sha256, a.name, a.size] for a in draft.attachments])
    connection.execute("DELETE FROM drafts WHERE conversation IS ?", (draft.conversation,))
    connection.execute(
        f"INSERT INTO drafts ({_COLUMNS}, sequence) VALUES (?, ?, ?, ?, ?, ?, {_NEXT})",
        (draft.conversation, draft.text, attachments, draft.mode, draft.keep, draft.notes),
    )


def attachment_digests(connection: sqlite3.Connection) -> set[str]:
    """The SHA-256 of every document that a draft refers to."""
    rows = connection.execute("SELECT attachments FROM drafts").fetchall()
    return {attachment.sha256 for (packed,) in rows for attachment in _unpacked(packed)}


def _record(row: tuple) -> Draft:  # type: ignore[type-arg]
    conversation, text, attachments, mode, keep, notes = row
    return Draft(conversation, text, _unpacked(attachments), mode, keep, notes)


def _unpacked(packed: str) -> tuple[Attachment, ...]:
    try:
        return tuple(Attachment(*each) for each in json.loads(packed))
    except (ValueError, TypeError) as error:
        raise DamagedError from error

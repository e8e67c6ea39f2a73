"""Queries for conversations, unsent drafts and whole message trees."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import astuple, replace
from datetime import datetime

from app.protocol.prompt import Origin
from app.store import document_index, messages
from app.store.records import (
    AttachmentRecord,
    ConversationRecord,
    ConversationSize,
    DamagedError,
    DeletedMessages,
    DraftRecord,
    KnownDocument,
    MessageRecord,
    Overrides,
    ReadMap,
    State,
    StoreError,
    Tree,
)
from app.store.serialization import (
    ERRORS,
    decode,
    overrides_to_dict,
    pack_time,
    unpack,
    unpack_time,
)

TITLE_LENGTH = 60
"""Maximum characters of an automatic title."""

_COLUMNS = "id, title, pinned, created_at, updated_at, trashed_at, current, choices"
_NEXT = "(SELECT coalesce(max(sequence), 0) + 1 FROM conversations)"
"""Orders conversations by last use, independently of the clock."""


def list_all(
    connection: sqlite3.Connection, trashed: bool = False
) -> tuple[ConversationRecord, ...]:
    """All conversations outside the trash (or in it): pinned ones first, then by last use."""
    where = "IS NOT NULL" if trashed else "IS NULL"
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM conversations WHERE trashed_at {where}"
        " ORDER BY pinned DESC, sequence DESC"
    )
    return tuple(_record(row) for row in rows)


def list_ids(connection: sqlite3.Connection) -> tuple[int, ...]:
    """Ids of conversations outside the trash. Much faster than `list_all`."""
    rows = connection.execute("SELECT id FROM conversations WHERE trashed_at IS NULL")
    return tuple(int(id) for (id,) in rows)


def last_used(connection: sqlite3.Connection) -> ConversationRecord | None:
    """The last used conversation outside the trash."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM conversations WHERE trashed_at IS NULL"
        " ORDER BY sequence DESC LIMIT 1"
    ).fetchone()
    return None if row is None else _record(row)


def conversation(connection: sqlite3.Connection, id: int) -> ConversationRecord:
    row = connection.execute(f"SELECT {_COLUMNS} FROM conversations WHERE id = ?", (id,)).fetchone()
    if row is None:
        raise _not_found()
    return _record(row)


def sizes(connection: sqlite3.Connection) -> dict[int, ConversationSize]:
    """Sizes of all conversations that have a question, by id."""
    questions = connection.execute(
        "SELECT conversation, count(*) FROM messages"
        " WHERE role = 'user' AND trashed_at IS NULL GROUP BY conversation"
    ).fetchall()
    documents = dict(
        connection.execute(
            "SELECT m.conversation, sum(a.size) FROM attachments a JOIN messages m"
            " ON m.id = a.message WHERE m.role = 'user' AND m.trashed_at IS NULL"
            " GROUP BY m.conversation"
        ).fetchall()
    )
    return {id: ConversationSize(count, documents.get(id, 0)) for id, count in questions}


_ATTACHED = """
SELECT a.message, a.position, a.name, a.sha256, a.origin, a.replaces, m.conversation, c.updated_at
FROM attachments a
JOIN messages m ON m.id = a.message
JOIN conversations c ON c.id = m.conversation
WHERE m.role = 'user' AND m.trashed_at IS NULL AND c.trashed_at IS NULL
ORDER BY a.message, a.position
"""


def documents(connection: sqlite3.Connection) -> tuple[KnownDocument, ...]:
    """The documents of all questions outside the trash, last used first: each file, part of a file
    and folder once."""
    found: dict[tuple[str, ...], KnownDocument] = {}
    key: tuple[str, ...] = ()
    folder = ""
    before = 0
    for row in connection.execute(_ATTACHED):
        message, at, name, sha256, packed, replaces, conversation, updated = row
        folder = folder if message == before else ""
        before = message
        known = found.get(key)
        if folder and name.startswith(folder):
            if known is not None and (known.message, known.end) == (message, at):
                found[key] = replace(known, end=at + 1)
            continue
        folder = name if name.endswith("/") else ""
        origin = unpack(Origin, packed, None) if packed else None
        key = (sha256,) if origin is None else (origin.path, origin.part)
        known, used_at = found.get(key), unpack_time(updated)
        if known is None:
            known = KnownDocument(name, origin, message, at, at + 1, frozenset(), used_at)
        elif (known.message, known.end) == (message, at):
            known = replace(known, end=at + 1)  # another range of lines of a file
        elif not (folder and replaces):  # which has only the files that have changed
            known = replace(known, name=name, origin=origin, message=message, start=at, end=at + 1)
        used_at, conversations = max(known.used_at, used_at), known.conversations | {conversation}
        found[key] = replace(known, used_at=used_at, conversations=conversations)
    return tuple(sorted(found.values(), key=lambda each: each.used_at, reverse=True))


def create(
    connection: sqlite3.Connection,
    title: str,
    now: datetime,
    overrides: Overrides,
    id: int | None = None,
) -> int:
    messages.check_text(title)
    new = connection.execute(
        "INSERT INTO conversations (id, title, created_at, updated_at, sequence)"
        f" VALUES (?, ?, ?, ?, {_NEXT})",
        (id, title, pack_time(now), pack_time(now)),
    ).lastrowid
    assert new is not None
    set_overrides(connection, new, overrides)
    return new


def set_overrides(connection: sqlite3.Connection, id: int, overrides: Overrides) -> None:
    """Replace all overrides of a conversation."""
    messages.check_text(overrides.system or "")
    _update(connection, id, "choices = ?", json.dumps(overrides_to_dict(overrides)))


def rename(connection: sqlite3.Connection, id: int, title: str) -> None:
    messages.check_text(title)
    _update(connection, id, "title = ?", title)


def pin(connection: sqlite3.Connection, id: int, pinned: bool = True) -> None:
    _update(connection, id, "pinned = ?", pinned)


def trash(connection: sqlite3.Connection, id: int, now: datetime | None) -> None:
    """Move a conversation to the trash, or out of it if `now` is None."""
    _update(connection, id, "trashed_at = ?", None if now is None else pack_time(now))


def branch(
    connection: sqlite3.Connection, id: int, limit: int | None = None
) -> tuple[MessageRecord, ...]:
    """The current branch, oldest first, or only its last `limit` messages."""
    last = conversation(connection, id).current
    return () if last is None else messages.branch(connection, last, limit)


def set_branch(connection: sqlite3.Connection, id: int) -> None:
    """Make the newest branch through message `id` the current one."""
    last = messages.newest_leaf(connection, id)
    set_current(connection, messages.message(connection, id).conversation, last)


def advance(connection: sqlite3.Connection, id: int, last: int, now: datetime) -> None:
    """Make the branch that ends with message `last` the current one, and mark the conversation as
    last used. If another process has moved it to the trash, it is restored."""
    values = f"current = ?, updated_at = ?, trashed_at = NULL, sequence = {_NEXT}"
    _update(connection, id, values, last, pack_time(now))


def set_current(connection: sqlite3.Connection, id: int, last: int | None) -> None:
    _update(connection, id, "current = ?", last)


def delete_message(connection: sqlite3.Connection, id: int, now: datetime) -> DeletedMessages:
    """Delete message `id` and everything after it."""
    message = messages.message(connection, id)
    ids = messages.trash(connection, id, now)
    current = conversation(connection, message.conversation).current
    if current in ids:
        others = messages.children(connection, message.conversation, message.parent)
        nearest = min(others, key=lambda other: abs(other - id), default=None)
        last = message.parent if nearest is None else messages.newest_leaf(connection, nearest)
        set_current(connection, message.conversation, last)
    _clear_default_title(connection, message.conversation)
    return DeletedMessages(message.conversation, ids, current)


def restore_messages(connection: sqlite3.Connection, removed: DeletedMessages) -> None:
    messages.restore(connection, removed.messages)
    set_current(connection, removed.conversation, removed.current)
    for question in _questions(connection, removed.conversation, trashed=False)[:1]:
        set_default_title(connection, removed.conversation, question)


def set_default_title(connection: sqlite3.Connection, id: int, question: str) -> None:
    """Title an untitled conversation after its first question."""
    title = _default_title(question)
    connection.execute(
        "UPDATE conversations SET title = ? WHERE id = ? AND title = ''", (title, id)
    )


def _default_title(question: str) -> str:
    line = " ".join(question.split())
    if len(line) <= TITLE_LENGTH:
        return line
    cut = line[:TITLE_LENGTH]
    return (cut.rpartition(" ")[0] or cut[:-1]) + "…"


def _clear_default_title(connection: sqlite3.Connection, id: int) -> None:
    """Remove an automatic title once the question that it came from, and all others, are
    deleted."""
    if _questions(connection, id, trashed=False):
        return
    titles = map(_default_title, _questions(connection, id, trashed=True))
    if conversation(connection, id).title in titles:
        rename(connection, id, "")


def _questions(connection: sqlite3.Connection, id: int, trashed: bool) -> list[str]:
    rows = connection.execute(
        "SELECT text FROM messages WHERE conversation = ? AND role = 'user'"
        f" AND trashed_at IS {'NOT ' if trashed else ''}NULL ORDER BY id",
        (id,),
    )
    return [text for (text,) in rows]


def purge(connection: sqlite3.Connection, before: datetime) -> bool:
    """Permanently delete what was moved to the trash before `before`, with its answers, also from
    the search index. Call this in a transaction. Returns whether anything was deleted."""
    connection.execute("PRAGMA defer_foreign_keys = 1")
    gone = [connection.execute(sql, (pack_time(before),)).rowcount for sql in _PURGES]
    if not any(gone):
        return False
    connection.execute(  # another process may have added an answer to a deleted question
        "UPDATE conversations SET current = (SELECT max(id) FROM messages m"
        " WHERE m.conversation = conversations.id AND m.trashed_at IS NULL)"
        " WHERE current NOT IN (SELECT id FROM messages)"
    )
    # Deleting from an FTS5 index only marks its words as deleted, in the file.
    connection.execute("INSERT INTO message_text(message_text) VALUES ('optimize')")
    document_index.delete_unused(connection)
    return True


_PURGES = (
    "DELETE FROM conversations WHERE trashed_at < ?",
    "DELETE FROM messages WHERE id IN (WITH RECURSIVE gone(id) AS ("
    " SELECT id FROM messages WHERE trashed_at < ?"
    " UNION SELECT m.id FROM messages m JOIN gone ON m.parent = gone.id) SELECT id FROM gone)",
)


def tree(connection: sqlite3.Connection, id: int) -> Tree:
    """Read a whole conversation, without the content of its attachments."""
    found, own = messages.list_all(connection, id), conversation(connection, id)
    if not {own.current, *(each.parent for each in found)} <= {None, *(each.id for each in found)}:
        raise DamagedError
    maps = ((message.id, messages.read_map(connection, message.id)) for message in found)
    return Tree(own, found, {id: read_map for id, read_map in maps if read_map is not None})


def add_tree(connection: sqlite3.Connection, tree: Tree, keep_ids: bool = False) -> int:
    """Add a conversation with these messages, under new ids unless `keep_ids`. A reply that was
    being written becomes a stopped one. Returns the conversation's id."""
    old = tree.conversation
    new = create(connection, old.title, old.created_at, old.overrides, old.id if keep_ids else None)
    ids: dict[int, int] = {}
    for message in tree.messages:
        copied = replace(
            message,
            id=message.id if keep_ids else 0,
            conversation=new,
            parent=None if message.parent is None else ids[message.parent],
            state=State.STOPPED if message.state is State.PARTIAL else message.state,
            citations=message.citations and message.citations.renumbered(ids),
        )
        ids[message.id] = messages.add(connection, copied)
    for id, read_map in tree.maps.items():
        messages.add_read_map(connection, ids[id], _renumbered(read_map, ids))
    times = (pack_time(old.created_at), pack_time(old.updated_at))
    current = None if old.current is None else ids[old.current]
    _update(
        connection, new, "created_at = ?, updated_at = ?, pinned = ?, current = ?",
        *times, old.pinned, current,
    )  # fmt: skip
    return new


def duplicate(connection: sqlite3.Connection, id: int, now: datetime) -> ConversationRecord:
    """Copy a conversation with all its branches."""
    found = tree(connection, id)
    title = f"{found.conversation.title} (copy)".lstrip()
    copied = replace(found.conversation, title=title, pinned=False, created_at=now, updated_at=now)
    return conversation(connection, add_tree(connection, replace(found, conversation=copied)))


def _renumbered(read_map: ReadMap, ids: dict[int, int]) -> ReadMap:
    texts = tuple(replace(text, message=ids[text.message]) for text in read_map.texts)
    return replace(read_map, texts=texts)


def _update(connection: sqlite3.Connection, id: int, setting: str, *values: object) -> None:
    updated = connection.execute(f"UPDATE conversations SET {setting} WHERE id = ?", (*values, id))
    if not updated.rowcount:
        raise _not_found()


def _record(row: tuple) -> ConversationRecord:  # type: ignore[type-arg]
    id, title, pinned, created_at, updated_at, trashed_at, current, choices = row
    try:
        return ConversationRecord(
            id=id,
            title=title,
            pinned=bool(pinned),
            created_at=unpack_time(created_at),
            updated_at=unpack_time(updated_at),
            trashed_at=None if trashed_at is None else unpack_time(trashed_at),
            current=current,
            overrides=unpack(Overrides, choices, Overrides()),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedError from error


def _not_found() -> StoreError:
    return StoreError("This conversation no longer exists", "choose another one")


# ------------------------------------------------------------------------------------- drafts

_DRAFT_COLUMNS = "conversation, text, attachments, mode, keep, notes"


def draft(connection: sqlite3.Connection, conversation: int | None) -> DraftRecord:
    """The draft of a conversation (None: of a new one); an empty draft if none was saved."""
    row = connection.execute(
        f"SELECT {_DRAFT_COLUMNS} FROM drafts WHERE conversation IS ?", (conversation,)
    ).fetchone()
    return DraftRecord(conversation) if row is None else _draft(row)


def last_draft(connection: sqlite3.Connection) -> DraftRecord | None:
    """The last saved draft; None if its conversation is in the trash."""
    row = connection.execute(
        f"SELECT {_DRAFT_COLUMNS} FROM drafts ORDER BY sequence DESC LIMIT 1"
    ).fetchone()
    if row is None:
        return None
    trashed = connection.execute(
        "SELECT trashed_at IS NOT NULL FROM conversations WHERE id = ?", (row[0],)
    ).fetchone()
    return None if trashed == (1,) else _draft(row)


def save_draft(connection: sqlite3.Connection, draft: DraftRecord) -> None:
    messages.check_text(draft.text)
    messages.check_text(draft.notes)
    attachments = json.dumps(
        [
            [a.sha256, a.name, a.size, a.line, None if a.origin is None else astuple(a.origin)]
            for a in draft.attachments
        ]
    )
    connection.execute("DELETE FROM drafts WHERE conversation IS ?", (draft.conversation,))
    connection.execute(
        f"INSERT INTO drafts ({_DRAFT_COLUMNS}, sequence) VALUES (?, ?, ?, ?, ?, ?,"
        " (SELECT coalesce(max(sequence), 0) + 1 FROM drafts))",
        (draft.conversation, draft.text, attachments, draft.mode, draft.keep, draft.notes),
    )


def draft_digests(connection: sqlite3.Connection) -> set[str]:
    """The SHA-256 of every document that a draft refers to."""
    rows = connection.execute("SELECT attachments FROM drafts").fetchall()
    return {attachment.sha256 for (packed,) in rows for attachment in _draft_attachments(packed)}


def _draft(row: tuple) -> DraftRecord:  # type: ignore[type-arg]
    conversation, text, attachments, mode, keep, notes = row
    return DraftRecord(conversation, text, _draft_attachments(attachments), mode, keep, notes)


def _draft_attachments(packed: str) -> tuple[AttachmentRecord, ...]:
    try:
        listed = decode(tuple[tuple[str, str, int, int, Origin | None], ...], json.loads(packed))
    except ERRORS as error:
        raise DamagedError from error
    return tuple(
        AttachmentRecord(sha256, name, size, line=line, origin=origin)
        for sha256, name, size, line, origin in listed
    )

"""Queries for messages, and for their attachments, statistics and read maps."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime

from app.protocol.citations import Citations
from app.protocol.options import Mode
from app.protocol.prompt import Origin, Role
from app.store.records import (
    AnswerStats,
    AttachmentRecord,
    DamagedError,
    EarlierVersion,
    MessageRecord,
    ReadMap,
    ReplyEnd,
    RetrievalRecord,
    State,
    StoreError,
)
from app.store.serialization import (
    STATS_COLUMNS,
    pack,
    pack_failure,
    pack_ids,
    pack_map,
    pack_stats,
    pack_time,
    unpack,
    unpack_failure,
    unpack_ids,
    unpack_map,
    unpack_stats,
    unpack_time,
)

_COLUMNS = (
    "m.id, m.conversation, m.parent, m.role, m.state, m.created_at, m.text, m.thinking,"
    " m.token_ids, m.failure, m.cut, m.mode, m.keep, m.citations, m.retrieved,"
    + ", ".join(f"r.{name}" for name in STATS_COLUMNS)
)
_BRANCH = f"""
WITH RECURSIVE branch(id, depth) AS (
  SELECT :last, 0
  UNION ALL
  SELECT parent, depth + 1 FROM branch JOIN messages USING (id) WHERE parent IS NOT NULL
  LIMIT :limit
)
SELECT {_COLUMNS} FROM branch JOIN messages m USING (id) LEFT JOIN runs r ON r.message = m.id
ORDER BY branch.depth DESC
"""
_SUBTREE = """
WITH RECURSIVE below(id) AS (
  SELECT id FROM messages WHERE id = ? AND trashed_at IS NULL
  UNION ALL
  SELECT m.id FROM below JOIN messages m ON m.parent = below.id WHERE m.trashed_at IS NULL
)
SELECT id FROM below ORDER BY id
"""


def branch(
    connection: sqlite3.Connection, last: int, limit: int | None
) -> tuple[MessageRecord, ...]:
    """The messages from the root to `last`, oldest first, or only the last `limit` of them."""
    rows = connection.execute(_BRANCH, {"last": last, "limit": -1 if limit is None else limit})
    return _records(connection, rows)


def message(connection: sqlite3.Connection, id: int) -> MessageRecord:
    found = _records(connection, _select(connection, "m.id = ?", id))
    if not found:
        raise _not_found()
    return found[0]


def list_all(connection: sqlite3.Connection, conversation: int) -> tuple[MessageRecord, ...]:
    """Messages of all branches, in the order in which they were written, without deleted ones."""
    where = "m.trashed_at IS NULL AND m.conversation = ?"
    return _records(connection, _select(connection, where, conversation))


def forks(connection: sqlite3.Connection, conversation: int) -> dict[int, tuple[int, ...]]:
    """For each message with several versions: the ids of all its versions, in the order in which
    they were written."""
    places: dict[int | None, list[int]] = {}
    for id, parent in connection.execute(
        "SELECT id, parent FROM messages WHERE conversation = ? AND trashed_at IS NULL ORDER BY id",
        (conversation,),
    ):
        places.setdefault(parent, []).append(id)
    return {id: tuple(ids) for ids in places.values() if len(ids) > 1 for id in ids}


def children(
    connection: sqlite3.Connection, conversation: int, parent: int | None
) -> tuple[int, ...]:
    """Ids of the messages that follow `parent`, or that start the conversation if it is None."""
    rows = connection.execute(
        "SELECT id FROM messages WHERE conversation = ? AND parent IS ? AND trashed_at IS NULL"
        " ORDER BY id",
        (conversation, parent),
    )
    return tuple(id for (id,) in rows)


def newest_leaf(connection: sqlite3.Connection, id: int) -> int:
    """The last message below message `id`, following the newest version at each fork."""
    newest: int | None = id
    while newest is not None:
        id = newest
        (newest,) = connection.execute(
            "SELECT max(id) FROM messages WHERE parent = ? AND trashed_at IS NULL", (id,)
        ).fetchone()
    return id


def add(connection: sqlite3.Connection, message: MessageRecord) -> int:
    """Insert a message, under a new id if its id is 0, and return the id. Raises StoreError if the
    text is not valid Unicode."""
    check_text(message.text + message.thinking)
    id = connection.execute(
        "INSERT INTO messages (id, conversation, parent, role, state, created_at,"
        " text, thinking, token_ids, failure, cut, mode, keep, citations, retrieved)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(message.id or None, message.conversation, message.parent, message.role),
            *(message.state, pack_time(message.created_at), message.text, message.thinking),
            *(pack_ids(message.token_ids), pack_failure(message.failure), message.truncated),
            *(message.mode, message.keep, _pack_citations(message.citations)),
            message.retrieved,
        ),
    ).lastrowid
    assert id is not None
    add_attachments(connection, id, message.attachments)
    if message.stats is not None:
        add_stats(connection, id, message.stats)
    return id


def add_attachments(
    connection: sqlite3.Connection, message: int, attachments: Iterable[AttachmentRecord]
) -> None:
    """Replace the attachments of a message."""
    connection.execute("DELETE FROM attachments WHERE message = ?", (message,))
    connection.executemany(
        "INSERT INTO attachments (message, position, sha256, name, size, pinned, line, retrieval,"
        " origin, replaces) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                *(message, index, a.sha256, a.name, a.size),
                *(json.dumps(a.pinned), a.line, pack(a.retrieval)),
                *(pack(a.origin), pack(a.replaces)),
            )
            for index, a in enumerate(attachments)
        ],
    )


def retrieve(
    connection: sqlite3.Connection, reply: int, attachments: Iterable[AttachmentRecord]
) -> None:
    """Save what was retrieved for a reply, which may be nothing."""
    connection.execute("UPDATE messages SET retrieved = 1 WHERE id = ?", (reply,))
    add_attachments(connection, reply, attachments)


def pin(
    connection: sqlite3.Connection, id: int, pins: Mapping[int, tuple[tuple[int, int], ...]]
) -> None:
    """Set the pinned characters (start, end) of a message's attachments, by index."""
    connection.executemany(
        "UPDATE attachments SET pinned = ? WHERE message = ? AND position = ?",
        [(json.dumps(pinned), id, position) for position, pinned in pins.items()],
    )


def trash(connection: sqlite3.Connection, id: int, now: datetime) -> tuple[int, ...]:
    """Delete a message and everything after it. Returns the ids of newly deleted messages."""
    rows = connection.execute(_SUBTREE, (id,)).fetchall()
    ids = tuple(id for (id,) in rows)
    _set_trashed_at(connection, ids, pack_time(now))
    return ids


def restore(connection: sqlite3.Connection, ids: tuple[int, ...]) -> None:
    """Restore messages that were deleted together."""
    if _set_trashed_at(connection, ids, None) != len(ids):
        raise _not_found()


def _set_trashed_at(
    connection: sqlite3.Connection, ids: tuple[int, ...], trashed_at: int | None
) -> int:
    updated = connection.execute(
        "UPDATE messages SET trashed_at = ? WHERE id IN (SELECT value FROM json_each(?))",
        (trashed_at, json.dumps(ids)),
    )
    return updated.rowcount


def check_text(text: str) -> None:
    """Raise StoreError for unpaired surrogates, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise StoreError("The text is not valid Unicode", "type or paste it again") from None


def write_reply(
    connection: sqlite3.Connection, id: int, text: str, thinking: str, token_ids: tuple[int, ...]
) -> None:
    """Update the text of a reply that is being written."""
    connection.execute(
        "UPDATE messages SET text = ?, thinking = ?, token_ids = ? WHERE id = ?",
        (text, thinking, pack_ids(token_ids), id),
    )


def resume_reply(connection: sqlite3.Connection, id: int) -> None:
    """Mark a reply as being written again, and remove it from the search index, which has finished
    replies only."""
    connection.execute(
        "INSERT INTO message_text(message_text, rowid, text) SELECT 'delete', id, text"
        " FROM searchable WHERE id = ?",
        (id,),
    )
    resumed = connection.execute(
        "UPDATE messages SET state = 'partial', cut = 0"
        " WHERE id = ? AND role = 'assistant' AND state IN ('done', 'stopped')",
        (id,),
    )
    if not resumed.rowcount:
        raise _not_found()


def end_reply(connection: sqlite3.Connection, id: int, end: ReplyEnd) -> None:
    ended = connection.execute(
        "UPDATE messages SET state = ?, failure = ?, cut = ?, citations = ?"
        " WHERE id = ? AND state = 'partial'",
        (end.state, pack_failure(end.failure), end.truncated, _pack_citations(end.citations), id),
    )
    if not ended.rowcount:
        raise _not_found()
    if end.stats is not None:
        add_stats(connection, id, end.stats)
    if end.read_map is not None:
        add_read_map(connection, id, end.read_map)


def add_stats(connection: sqlite3.Connection, message: int, stats: AnswerStats) -> None:
    names = ", ".join(("message", *STATS_COLUMNS))
    values = ", ".join(f":{name}" for name in ("message", *STATS_COLUMNS))
    connection.execute(
        f"INSERT OR REPLACE INTO runs ({names}) VALUES ({values})",
        {"message": message} | pack_stats(stats),
    )


def add_read_map(connection: sqlite3.Connection, message: int, read_map: ReadMap) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO read_maps (message, spans, importance) VALUES (?, ?, ?)",
        (message, *pack_map(read_map)),
    )


def read_map(connection: sqlite3.Connection, message: int) -> ReadMap | None:
    row = connection.execute(
        "SELECT spans, importance FROM read_maps WHERE message = ?", (message,)
    ).fetchone()
    return None if row is None else unpack_map(*row)


def attachment_digests(connection: sqlite3.Connection) -> set[str]:
    """The SHA-256 of every document that a message refers to."""
    return {sha256 for (sha256,) in connection.execute("SELECT DISTINCT sha256 FROM attachments")}


def answer_stats(connection: sqlite3.Connection, limit: int = 1000) -> tuple[AnswerStats, ...]:
    """Statistics of the last `limit` answers, newest first, without damaged ones."""
    rows = connection.execute(
        f"SELECT {', '.join(STATS_COLUMNS)} FROM runs ORDER BY message DESC LIMIT ?", (limit,)
    )
    return tuple(stats for stats in map(unpack_stats, rows) if stats is not None)


def _select(connection: sqlite3.Connection, where: str, value: int) -> sqlite3.Cursor:
    return connection.execute(
        f"SELECT {_COLUMNS} FROM messages m LEFT JOIN runs r ON r.message = m.id"
        f" WHERE {where} ORDER BY m.id",
        (value,),
    )


def _records(connection: sqlite3.Connection, cursor: sqlite3.Cursor) -> tuple[MessageRecord, ...]:
    rows = cursor.fetchall()
    attached: dict[int, list[AttachmentRecord]] = {row[0]: [] for row in rows}
    # Passed as one JSON value, because the number of parameters is limited.
    for id, sha256, name, size, packed, line, retrieval, origin, replaces in connection.execute(
        "SELECT message, sha256, name, size, pinned, line, retrieval, origin, replaces"
        " FROM attachments WHERE message IN (SELECT value FROM json_each(?))"
        " ORDER BY message, position",
        (json.dumps([*attached]),),
    ):
        pinned = unpack(tuple[tuple[int, int], ...], packed, ())
        why = unpack(RetrievalRecord, retrieval, None) if retrieval else None
        source = unpack(Origin, origin, None) if origin else None
        earlier = unpack(EarlierVersion, replaces, None) if replaces else None
        attached[id].append(
            AttachmentRecord(sha256, name, size, pinned, line, why, source, earlier)
        )
    try:
        return tuple(_record(row, tuple(attached[row[0]])) for row in rows)
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedError from error  # SQLite does not check constraints when reading


def _record(row: tuple, attachments: tuple[AttachmentRecord, ...]) -> MessageRecord:  # type: ignore[type-arg]
    id, conversation, parent, role, state, created_at, text, *more = row
    thinking, token_ids, failure, cut, mode, keep, citations, retrieved, *columns = more
    return MessageRecord(
        id=id,
        conversation=conversation,
        parent=parent,
        role=Role(role),
        state=State(state),
        created_at=unpack_time(created_at),
        text=text,
        thinking=thinking,
        token_ids=unpack_ids(token_ids),
        failure=unpack_failure(failure),
        attachments=attachments,
        stats=None if columns[0] is None else unpack_stats(tuple(columns)),
        truncated=bool(cut),
        mode=Mode(mode) if mode in tuple(Mode) else None,
        keep=keep if keep is not None and 0 <= keep <= 1 else None,
        citations=None if citations is None else unpack(Citations, citations, None),
        retrieved=bool(retrieved),
    )


def _pack_citations(citations: Citations | None) -> str | None:
    return None if citations is None else json.dumps(asdict(citations))


def _not_found() -> StoreError:
    return StoreError("This message no longer exists", "choose another one")

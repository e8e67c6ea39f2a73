"""Full-text search in questions and answers."""

from __future__ import annotations

import re
import sqlite3

from app.protocol.prompt import Role
from app.sessions.records import SearchHit

_OPEN, _CLOSE = "\x02", "\x03"
"""Around a match in a snippet."""
SNIPPET_WORDS = 24
"""The approximate length of a snippet."""

# The snippets are made in a second step, for the results only.
_SEARCH = f"""
WITH found(id, score) AS MATERIALIZED (
  SELECT message_text.rowid, {{score}}
  FROM message_text
  JOIN messages m ON m.id = message_text.rowid
  JOIN conversations c ON c.id = m.conversation
  WHERE message_text MATCH :query AND c.trashed_at IS NULL AND m.trashed_at IS NULL
  {{group}}
  ORDER BY 2, message_text.rowid DESC LIMIT :limit
)
SELECT c.id, c.title, m.id, m.role,
  snippet(message_text, 0, '{_OPEN}', '{_CLOSE}', '…', {SNIPPET_WORDS})
FROM found
JOIN message_text ON message_text.rowid = found.id
JOIN messages m ON m.id = found.id
JOIN conversations c ON c.id = m.conversation
WHERE message_text MATCH :query
ORDER BY found.score, found.id DESC
"""
_ALL = _SEARCH.format(score="message_text.rank", group="")
# With min(), SQLite takes the other columns from the row with the minimum.
_BEST = _SEARCH.format(score="min(message_text.rank)", group="GROUP BY m.conversation")


def search(
    connection: sqlite3.Connection, words: str, limit: int, best_only: bool = False
) -> tuple[SearchHit, ...]:
    """Messages with all these words, best first, or only the best one of each conversation. The
    last word may be a prefix of two letters or more: a single letter would match a tenth of all
    words. What is in the trash is not found."""
    query = _query(words)
    if not query:
        return ()
    rows = connection.execute(_BEST if best_only else _ALL, {"query": query, "limit": limit})
    return tuple(
        SearchHit(conversation, title, message, Role(role), *_snippet(marked))
        for conversation, title, message, role, marked in rows
    )


def _query(words: str) -> str:
    """Each word as a quoted string, so that FTS5 finds no operators in it."""
    quoted = [
        '"' + word.replace('"', '""') + '"'
        for word in words.replace("\0", " ").split()
        if any(character.isalnum() for character in word)
    ]
    if not quoted:
        return ""
    last = quoted[-1][1:-1]
    return " ".join(quoted) + ("*" if len(last) > 1 or not last.isascii() else "")


def _snippet(marked: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The text without its marks, and the ranges they marked."""
    text, matches, start = "", [], 0
    for piece in re.split(f"([{_OPEN}{_CLOSE}])", marked):
        if piece == _OPEN:
            start = len(text)
        elif piece == _CLOSE:
            matches.append((start, len(text)))
        else:
            text += piece
    return text, tuple(matches)

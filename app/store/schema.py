"""The tables of the database, and checks whether a database has them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from enum import StrEnum

from app.util.words import NO_SPACES

APPLICATION_ID, VERSION = 0x73706368, 1
"""SQLite stores both in a database's header. The first one is `spch` in ASCII."""

IRREGULAR = {0xAD: "", 0x200B: "", 0x2060: "", 0xFEFF: ""} | dict(
    enumerate(("ff", "fi", "fl", "ffi", "ffl", "st", "st"), 0xFB00)
)
"""For `str.translate`: characters inside words that nobody sees, and ligatures. They are replaced
before words are looked for."""
UNSPACED = f"text GLOB '*[{NO_SPACES.encode().decode('unicode_escape')}]*'"
"""Whether a message has text in a script that does not separate words."""


def _regular(column: str) -> str:
    """The text of a column without irregular characters, in SQL."""
    for code, replacement in IRREGULAR.items():
        column = f"replace({column}, char({code}), '{replacement}')"
    return column


SQL = f"""
CREATE TABLE conversations (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  title TEXT NOT NULL DEFAULT '',
  pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1)),
  created_at INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999),
  updated_at INTEGER NOT NULL CHECK (updated_at BETWEEN 0 AND 253402300799999),
  trashed_at INTEGER CHECK (trashed_at BETWEEN 0 AND 253402300799999),
  sequence INTEGER NOT NULL,
  current INTEGER REFERENCES messages(id),
  choices TEXT NOT NULL DEFAULT '{{}}'
) STRICT;
CREATE INDEX conversations_by_sequence ON conversations(sequence);
CREATE INDEX conversations_by_current ON conversations(current);

CREATE TABLE messages (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  conversation INTEGER NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
  parent INTEGER REFERENCES messages(id),
  role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
  state TEXT NOT NULL CHECK (state IN ('done', 'partial', 'stopped', 'failed')),
  created_at INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999),
  text TEXT NOT NULL,
  token_ids BLOB CHECK (length(token_ids) % 4 = 0),
  failure TEXT,
  thinking TEXT NOT NULL DEFAULT '',
  trashed_at INTEGER CHECK (trashed_at BETWEEN 0 AND 253402300799999),
  cut INTEGER NOT NULL DEFAULT 0 CHECK (cut IN (0, 1)),
  mode TEXT,
  keep REAL,
  citations TEXT,
  retrieved INTEGER NOT NULL DEFAULT 0 CHECK (retrieved IN (0, 1)),
  CHECK (parent < id)
) STRICT;
CREATE INDEX messages_by_conversation ON messages(conversation);
CREATE INDEX messages_by_parent ON messages(parent);
CREATE INDEX messages_partial ON messages(state) WHERE state = 'partial';
CREATE INDEX messages_trashed ON messages(trashed_at) WHERE trashed_at IS NOT NULL;
CREATE INDEX messages_unspaced ON messages(conversation) WHERE {UNSPACED};

CREATE TABLE attachments (
  message INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
  name TEXT NOT NULL,
  size INTEGER NOT NULL,
  pinned TEXT NOT NULL DEFAULT '[]',
  line INTEGER NOT NULL DEFAULT 1,
  retrieval TEXT NOT NULL DEFAULT '',
  origin TEXT NOT NULL DEFAULT '',
  replaces TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (message, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
  message INTEGER PRIMARY KEY REFERENCES messages(id) ON DELETE CASCADE,
  mode TEXT NOT NULL,
  reading TEXT NOT NULL,
  keep_ratio REAL NOT NULL,
  reasons TEXT NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  eligible_tokens INTEGER NOT NULL,
  read_tokens INTEGER NOT NULL,
  reused_tokens INTEGER NOT NULL,
  recalled_tokens INTEGER NOT NULL,
  generated_tokens INTEGER NOT NULL,
  seed TEXT NOT NULL,
  ttft REAL NOT NULL,
  phases TEXT NOT NULL,
  decode_seconds REAL NOT NULL,
  peak_bytes INTEGER NOT NULL,
  target TEXT NOT NULL,
  target_revision TEXT,
  draft TEXT,
  draft_revision TEXT,
  fallback TEXT,
  guard TEXT,
  proposed_tokens INTEGER NOT NULL DEFAULT 0,
  accepted_tokens INTEGER NOT NULL DEFAULT 0,
  verified_steps INTEGER NOT NULL DEFAULT 0,
  plain_rate REAL NOT NULL DEFAULT 0,
  confidence REAL,
  unsure INTEGER NOT NULL DEFAULT 0,
  documents TEXT
) STRICT;

CREATE TABLE read_maps (
  message INTEGER PRIMARY KEY REFERENCES messages(id) ON DELETE CASCADE,
  spans BLOB NOT NULL,
  importance BLOB NOT NULL
) STRICT;

CREATE TABLE drafts (
  conversation INTEGER UNIQUE REFERENCES conversations(id) ON DELETE CASCADE,
  sequence INTEGER NOT NULL,
  text TEXT NOT NULL,
  attachments TEXT NOT NULL,
  mode TEXT NOT NULL,
  keep REAL NOT NULL,
  notes TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE VIEW searchable AS
  SELECT id, {_regular("text")} AS text FROM messages WHERE state <> 'partial' AND role <> 'system';
CREATE VIRTUAL TABLE message_text USING fts5(
  text, content='searchable', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
);
CREATE TRIGGER text_of_new AFTER INSERT ON messages
WHEN new.state <> 'partial' AND new.role <> 'system' BEGIN
  INSERT INTO message_text(rowid, text) VALUES (new.id, {_regular("new.text")});
END;
CREATE TRIGGER text_of_ended AFTER UPDATE OF state ON messages
WHEN old.state = 'partial' AND new.state <> 'partial' AND new.role <> 'system' BEGIN
  INSERT INTO message_text(rowid, text) VALUES (new.id, {_regular("new.text")});
END;
CREATE TRIGGER text_of_deleted AFTER DELETE ON messages
WHEN old.state <> 'partial' AND old.role <> 'system' BEGIN
  INSERT INTO message_text(message_text, rowid, text)
  VALUES ('delete', old.id, {_regular("old.text")});
END;

CREATE TABLE document_words (sha256 TEXT PRIMARY KEY, words BLOB NOT NULL) STRICT;
"""
"""The columns `choices`, `attachments`, `citations`, `origin`, `pinned` and `replaces` are JSON. So
are `failure`, `reasons`, `fallback` and `guard`, which have codes and data. An answer's attachments
are the files or parts of files that were `retrieved` for it. `document_index.py` describes
`document_words`."""


class Condition(StrEnum):
    """Whether a database can be used. The values from DAMAGED on complete a sentence that begins
    with "it is"."""

    NEW = "new"
    """The database has no tables, or there is no file."""
    GOOD = "good"
    NEWER = "newer"
    """A later version of specchat saved it."""
    DAMAGED = "damaged"
    FOREIGN = "another program's"
    NO_DATABASE = "not a database"
    JOURNAL_ONLY = "only a journal"


def condition(connection: sqlite3.Connection) -> Condition:
    """The condition of the tables. Raises sqlite3.Error if one of them is invalid."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not tables:
        return Condition.NEW
    if application != APPLICATION_ID:
        return Condition.FOREIGN
    if version > VERSION:
        return Condition.NEWER
    return Condition.GOOD if version == VERSION and _is_whole(connection) else Condition.DAMAGED


def _is_whole(connection: sqlite3.Connection) -> bool:
    """Whether all tables, columns, indexes and triggers exist. SQLite's own check does not test
    this."""
    with closing(sqlite3.connect(":memory:")) as model:
        model.executescript(SQL)
        if not _names(model) <= _names(connection):
            return False
    # This also compiles the triggers.
    connection.execute("EXPLAIN INSERT INTO messages DEFAULT VALUES")
    connection.execute("EXPLAIN UPDATE messages SET state = 'done'")
    connection.execute("EXPLAIN DELETE FROM conversations")
    return True


def _names(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Kind, name and column of everything except FTS5's internal tables, which depend on SQLite's
    version."""
    rows = connection.execute(
        "SELECT s.type, s.name, coalesce(c.name, '')"
        " FROM sqlite_schema s LEFT JOIN pragma_table_info(s.name) c"
        " WHERE s.name NOT LIKE 'message\\_text\\_%' ESCAPE '\\'"
    )
    return set(rows)


def create(connection: sqlite3.Connection) -> None:
    """Create all tables of a new database, or none."""
    # Imported here, because it loads NumPy, which only the first start needs.
    from sqlite_utils import Database

    identity = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
    try:
        Database(connection, execute_plugins=False).executescript(
            f"BEGIN IMMEDIATE; {SQL} {identity} COMMIT;"
        )
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

"""The tables, as steps that lead from each released schema to the next.

A released step is never changed: add another one, and a database of the schema before it to the
tests. `_sqlite_migrations`, which sqlite-utils keeps, says which steps a database has seen.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

NAME = "specchat conversations"

STEPS: dict[str, str] = {
    "1 conversations": """
CREATE TABLE conversations (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  title TEXT NOT NULL DEFAULT '',
  pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1)),
  created_at INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999),
  updated_at INTEGER NOT NULL CHECK (updated_at BETWEEN 0 AND 253402300799999),
  trashed_at INTEGER CHECK (trashed_at BETWEEN 0 AND 253402300799999),
  sequence INTEGER NOT NULL,
  current INTEGER REFERENCES messages(id)
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
  CHECK (parent < id)
) STRICT;
CREATE INDEX messages_by_conversation ON messages(conversation);
CREATE INDEX messages_by_parent ON messages(parent);
CREATE INDEX messages_partial ON messages(state) WHERE state = 'partial';

CREATE TABLE attachments (
  message INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
  name TEXT NOT NULL,
  size INTEGER NOT NULL,
  PRIMARY KEY (message, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
  message INTEGER PRIMARY KEY REFERENCES messages(id) ON DELETE CASCADE,
  mode TEXT NOT NULL,
  reading TEXT NOT NULL,
  keep REAL NOT NULL,
  reason TEXT NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  eligible_tokens INTEGER NOT NULL,
  kept_tokens INTEGER NOT NULL,
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
  guard TEXT
) STRICT;

CREATE TABLE read_maps (
  message INTEGER PRIMARY KEY REFERENCES messages(id) ON DELETE CASCADE,
  spans BLOB NOT NULL,
  importance BLOB NOT NULL
) STRICT;

CREATE VIEW searchable AS
  SELECT id, text FROM messages WHERE state <> 'partial' AND role <> 'system';
CREATE VIRTUAL TABLE message_text USING fts5(
  text, content='searchable', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
);
CREATE TRIGGER text_of_new AFTER INSERT ON messages
WHEN new.state <> 'partial' AND new.role <> 'system' BEGIN
  INSERT INTO message_text(rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER text_of_ended AFTER UPDATE OF state ON messages
WHEN old.state = 'partial' AND new.state <> 'partial' AND new.role <> 'system' BEGIN
  INSERT INTO message_text(rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER text_of_deleted AFTER DELETE ON messages
WHEN old.state <> 'partial' AND old.role <> 'system' BEGIN
  INSERT INTO message_text(message_text, rowid, text) VALUES ('delete', old.id, old.text);
END;
""",
    "2 thinking": "ALTER TABLE messages ADD COLUMN thinking TEXT NOT NULL DEFAULT '';",
    "3 drafts": """
CREATE TABLE drafts (
  conversation INTEGER UNIQUE REFERENCES conversations(id) ON DELETE CASCADE,
  sequence INTEGER NOT NULL,
  text TEXT NOT NULL,
  attachments TEXT NOT NULL,
  mode TEXT NOT NULL,
  keep REAL NOT NULL
) STRICT;
""",
    "4 deleted messages, cut answers, pins": """
ALTER TABLE messages ADD COLUMN trashed_at INTEGER
  CHECK (trashed_at BETWEEN 0 AND 253402300799999);
CREATE INDEX messages_trashed ON messages(trashed_at) WHERE trashed_at IS NOT NULL;
ALTER TABLE messages ADD COLUMN cut INTEGER NOT NULL DEFAULT 0 CHECK (cut IN (0, 1));
ALTER TABLE attachments ADD COLUMN pinned TEXT NOT NULL DEFAULT '[]';
""",
    # As JSON, so that a new setting of a conversation needs no other step.
    "5 choices, notes": """
ALTER TABLE conversations ADD COLUMN choices TEXT NOT NULL DEFAULT '{}';
ALTER TABLE drafts ADD COLUMN notes TEXT NOT NULL DEFAULT '';
""",
    "6 proposed tokens": """
ALTER TABLE runs ADD COLUMN proposed_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN accepted_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN verified_steps INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN plain_rate REAL NOT NULL DEFAULT 0;
""",
    "7 confidence": "ALTER TABLE runs ADD COLUMN confidence REAL;",
    "8 unsure": "ALTER TABLE runs ADD COLUMN unsure INTEGER NOT NULL DEFAULT 0;",
    # An answer's attachments are the files, or parts of files, that were retrieved for it.
    "9 retrieved parts": """
ALTER TABLE attachments ADD COLUMN line INTEGER NOT NULL DEFAULT 1;
ALTER TABLE attachments ADD COLUMN retrieval TEXT NOT NULL DEFAULT '';
""",
    # See `document_index.py`. Filled when nothing else is to be done.
    "10 words of documents": """
CREATE TABLE document_words (sha256 TEXT PRIMARY KEY, words BLOB NOT NULL) STRICT;
""",
    "11 requests": """
ALTER TABLE messages ADD COLUMN mode TEXT;
ALTER TABLE messages ADD COLUMN keep REAL;
""",
}


def applied(connection: sqlite3.Connection) -> tuple[str, ...] | None:
    """The steps applied to this database, empty for a new one. None: it is not one of ours."""
    tables = {
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    }
    if not tables:
        return ()
    if "_sqlite_migrations" not in tables:
        return None
    rows = connection.execute(
        "SELECT name FROM _sqlite_migrations WHERE migration_set = ? ORDER BY id", (NAME,)
    ).fetchall()
    return tuple(name for (name,) in rows) or None


def unknown(steps: tuple[str, ...]) -> set[str]:
    """Steps of a later version of the program, or damaged names."""
    return set(steps) - STEPS.keys()


def pending(steps: tuple[str, ...]) -> set[str]:
    """Steps still to be applied."""
    return STEPS.keys() - set(steps)


def is_whole(connection: sqlite3.Connection) -> bool:
    """Whether all tables, columns, indexes and triggers of the current schema exist, which SQLite's
    own check does not test. Raises sqlite3.Error when one of them is invalid."""
    with closing(sqlite3.connect(":memory:")) as model:
        for sql in STEPS.values():
            model.executescript(sql)
        if not _names(model) <= _names(connection):
            return False
    # This also compiles the triggers.
    connection.execute("EXPLAIN INSERT INTO messages DEFAULT VALUES")
    connection.execute("EXPLAIN UPDATE messages SET state = 'done'")
    connection.execute("EXPLAIN DELETE FROM conversations")
    return True


def _names(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Kind, name and column of everything but FTS5's own tables, which change with SQLite."""
    rows = connection.execute(
        "SELECT s.type, s.name, coalesce(c.name, '')"
        " FROM sqlite_schema s LEFT JOIN pragma_table_info(s.name) c"
        " WHERE s.name NOT LIKE 'message\\_text\\_%' ESCAPE '\\'"
    )
    return set(rows)


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the steps that are missing, all or none."""
    # Imported here, because it loads numpy, which only the first start needs.
    from sqlite_utils import Database, Migrations

    migrations = Migrations(NAME)
    for name, sql in STEPS.items():

        def step(database: Database, sql: str = sql) -> None:
            database.executescript(sql)

        migrations(name=name)(step)
    database = Database(connection, execute_plugins=False)
    connection.execute("BEGIN IMMEDIATE")
    try:
        migrations.apply(database)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

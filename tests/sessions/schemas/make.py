"""Stores a small database of the present schema beside this file, for `test_schema.py`.

Run once per released schema, with the program that first writes it:
`python -m tests.sessions.schemas.make`.
"""

from __future__ import annotations

import gzip
import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from app.sessions.schema import STEPS
from app.sessions.store import Store
from tests.sessions.samples import CHOICES, answered


def make(folder: Path) -> None:
    with Store(folder, clock=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) as store:
        conversation = answered(store)
        question, answer = store.branch(conversation)
        store.edit(question.id, "Who may terminate?")
        store.set_branch(answer.id)
        store.begin_reply(question.id).fail("It broke: mend it.")
        store.delete_message(store.edit(question.id, "Deleted?").id)
        store.pin_passages(question.id, {0: ((4, 10),)})
        store.set_branch(answer.id)
        store.set_overrides(conversation, CHOICES)
        store.trash(answered(store, "In the trash", "Yes."))
        store.wait_for_index()
    with closing(sqlite3.connect(folder / "conversations.db")) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        make(Path(name))
        data = (Path(name) / "conversations.db").read_bytes()
    (Path(__file__).parent / f"{len(STEPS)}.db.gz").write_bytes(gzip.compress(data, mtime=0))

"""From every released schema to the present one."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.sessions import schema
from app.sessions.errors import StoreError
from app.sessions.records import Overrides, State
from app.sessions.store import Store
from tests.sessions.samples import BEFORE_6, BEFORE_7, BEFORE_8, CHOICES, answer_stats

STORED = Path(__file__).parent / "schemas"
NEXT = {**schema.STEPS, "next": "ALTER TABLE conversations ADD COLUMN colour TEXT;"}


def place(folder: Path, number: int) -> None:
    data = gzip.decompress((STORED / f"{number}.db.gz").read_bytes())
    (folder / "conversations.db").write_bytes(data)


def columns(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[1] for row in connection.execute("PRAGMA table_info(conversations)")]


@pytest.mark.parametrize("number", range(1, len(schema.STEPS) + 1))
def test_a_stored_database_opens_with_all_that_is_in_it(tmp_path: Path, number: int) -> None:
    place(tmp_path, number)
    with Store(tmp_path, trash_days=1e5) as store:
        assert store.notices == []
        (kept,), (trashed,) = store.conversations(), store.conversations(trashed=True)
        assert (kept.title, trashed.title) == ("Who pays?", "In the trash")
        assert kept.created_at.isoformat() == "2026-01-02T03:04:05+00:00"
        question, answer = store.branch(kept.id)
        assert (question.attachments[0].name, answer.text) == ("contract.txt", "The tenant.")
        lacking = {6: BEFORE_7, 7: BEFORE_8}.get(number, BEFORE_6 if number < 6 else {})
        stats = answer_stats(**lacking)
        assert (answer.token_ids, answer.stats) == ((1, 70_000, 2**32 - 1), stats)
        assert answer.thinking == ("Who signed it?" if number > 1 else "")
        assert len(store.versions(question.id)) == len(store.versions(answer.id)) == 2
        assert store.message(store.versions(answer.id)[1]).state is State.FAILED
        read_map = store.read_map(answer.id)
        assert read_map is not None
        assert (len(read_map.spans), read_map.importance) == (2, bytes([0, 128, 255]))
        assert len(store.search("terminate")) == 1
        assert store.search("Deleted") == ()
        assert question.attachments[0].pinned == (((4, 10),) if number > 3 else ())
        assert not answer.truncated
        assert (kept.overrides, trashed.overrides) == (
            CHOICES if number > 4 else Overrides(),
            Overrides(),
        )
    assert len(list((tmp_path / "backups").iterdir())) == 1


def test_a_step_is_applied_after_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tmp_path, len(schema.STEPS))
    monkeypatch.setattr(schema, "STEPS", NEXT)
    with Store(tmp_path, trash_days=1e5) as store:
        assert store.notices == []
        assert len(store.conversations()) == 1
    assert "colour" in columns(tmp_path / "conversations.db")
    (backup,) = (tmp_path / "backups").iterdir()
    assert "colour" not in columns(backup)


@pytest.mark.parametrize("fault", ["no such SQL;", "INSERT INTO messages(id) VALUES (1);"])
def test_a_step_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    place(tmp_path, len(schema.STEPS))
    with monkeypatch.context() as patched:
        patched.setattr(schema, "STEPS", NEXT | {"broken": fault})
        with pytest.raises(StoreError, match="check their disk"):
            Store(tmp_path)
    assert "colour" not in columns(tmp_path / "conversations.db")
    with Store(tmp_path, trash_days=1e5) as store:
        assert store.notices == []
        assert len(store.conversations()) == 1

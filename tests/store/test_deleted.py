"""What was deleted is nowhere any more, and what is kept only this user can read."""

from __future__ import annotations

import gzip
import os
import sqlite3
import stat
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from app.protocol.prompt import Role
from app.store import backup
from app.store.store import Store
from tests.store.faults import DAY
from tests.store.samples import attach


class Clock:
    now = DAY

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


SECRET, KEPT = "xylophonesecret", "marimbakept"


def everything(folder: Path) -> bytes:
    """All bytes below a folder, unpacked where they are packed."""
    data = b""
    for path in folder.rglob("*"):
        if path.is_file():
            data += (
                gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            )
    return data.lower()


def filled(folder: Path, clock: Clock) -> int:
    """A store with a backup, and what is to be deleted in both. Returns the conversation."""
    with Store(folder, clock=clock) as store:
        id = store.create(f"{SECRET} title").id
        store.add_message(id, Role.USER, f"A {SECRET} question")
        other = store.create("other").id
        store.add_message(other, Role.USER, f"The {KEPT} question")
        store.add_message(other, Role.ASSISTANT, f"The {KEPT} answer")
        later = store.add_message(other, Role.USER, f"Another {SECRET} question")
        document = attach(store, f"{SECRET} document", "name.txt")
        store.add_message(id, Role.USER, "Read it", [document])
        backup.back_up(folder / "conversations.db", folder / "backup.db", clock())
        store.delete_message(later.id)
        store.trash(id)
    assert SECRET.encode() in everything(folder)
    return other


@pytest.mark.parametrize("at_start", [True, False])
def test_deleted_words_are_in_no_file(tmp_path: Path, clock: Clock, at_start: bool) -> None:
    other = filled(tmp_path, clock)
    if at_start:
        clock.now += timedelta(days=31)
    with Store(tmp_path, clock=clock) as store:
        if not at_start:
            store.empty_trash()
    with Store(tmp_path, clock=clock) as store:  # documents go at a start
        assert [each.id for each in store.conversations()] == [other]
        assert len(store.search(KEPT)) == 2
    left = everything(tmp_path)
    assert SECRET.encode() not in left
    assert KEPT.encode() in left


def test_a_backup_keeps_what_was_not_deleted(tmp_path: Path, clock: Clock) -> None:
    other = filled(tmp_path, clock)
    clock.now += timedelta(days=31)
    Store(tmp_path, clock=clock).close()
    (tmp_path / "conversations.db").unlink()
    with Store(tmp_path, clock=clock) as store:
        assert [each.id for each in store.conversations()] == [other]
        texts = [message.text for message in store.branch(other)]
        assert texts == [f"The {KEPT} question", f"The {KEPT} answer"]


def test_a_purge_that_was_interrupted_is_finished_at_the_next_start(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, clock)
    clock.now += timedelta(days=31)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_back_up", lambda self, connection: None)
        Store(tmp_path, clock=clock).close()
    assert SECRET.encode() in (tmp_path / "backup.db").read_bytes().lower()
    Store(tmp_path, clock=clock).close()
    assert SECRET.encode() not in everything(tmp_path)


def test_a_purge_that_the_disk_refuses_is_told_and_repeated(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, clock)

    def refuse(path: Path) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with Store(tmp_path, clock=clock) as store, monkeypatch.context() as patch:
        patch.setattr(backup, "sync_path", refuse)
        store.empty_trash()
        store.add_message(store.create("later").id, Role.USER, "one more task")
        assert "Deleted conversations are still in the backup" in store.notices[-1]
        assert "disk is full" in store.notices[-1].lower()
    assert SECRET.encode() in (tmp_path / "backup.db").read_bytes().lower()
    Store(tmp_path, clock=clock).close()
    assert SECRET.encode() not in everything(tmp_path)


def test_a_damaged_backup_is_purged_too(tmp_path: Path, clock: Clock) -> None:
    filled(tmp_path, clock)
    path = tmp_path / "backup.db"
    pages = path.read_bytes()
    assert SECRET.encode() in pages.lower()
    with closing(sqlite3.connect(path)) as damaged:
        (page,) = damaged.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'messages'"
        ).fetchone()
    size = int.from_bytes(pages[16:18], "big")
    path.write_bytes(pages[: (page - 1) * size] + b"\xff" * size + pages[page * size :])
    with Store(tmp_path, clock=clock) as store:
        store.empty_trash()
        store.create("later")
    assert SECRET.encode() not in path.read_bytes().lower()


def test_a_copy_that_is_damaged_leaves_the_backup_there_was(tmp_path: Path, clock: Clock) -> None:
    filled(tmp_path, clock)
    database, path = tmp_path / "conversations.db", tmp_path / "backup.db"
    before = path.read_bytes()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        connection.execute("UPDATE messages SET role = 'usfr'")
    backup.mark_outdated(path)
    with pytest.raises(sqlite3.DatabaseError):
        backup.back_up(database, path, clock())
    assert path.read_bytes() == before
    assert backup.is_outdated(path)


def test_only_this_user_can_read_what_is_stored(tmp_path: Path, clock: Clock) -> None:
    folder, before = tmp_path / "store", os.umask(0)
    try:
        filled(folder, clock)
        for path in (folder, folder / "conversations.db"):
            path.chmod(0o777)
        with Store(folder, clock=clock):
            modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (folder, *folder.rglob("*"))}
    finally:
        os.umask(before)
    folders = {path for path in modes if path.is_dir()}
    assert {modes[path] for path in folders} == {0o700}
    assert folder / "conversations.db-wal" in modes
    assert {modes[path] for path in modes.keys() - folders} == {0o600}

"""Stores that cannot open or write, documents that are lost, clocks that are wrong: one clear
sentence, and nothing is lost."""

from __future__ import annotations

import errno
import gzip
import os
import random
import re
import shutil
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest

from app.errors import UserError
from app.protocol.prompt import Role
from app.store import backup, schema
from app.store.records import StoreError
from app.store.store import Store
from app.util import atomic_files
from tests.limits import files_end_early
from tests.store.faults import (
    BACKUP,
    DATABASE,
    DAY,
    INDEX,
    NEW,
    OLD,
    SENTENCE,
    Damage,
    both,
    flip,
    remove,
    sql,
    write,
)
from tests.store.samples import all_texts, answered, attach
from tests.tables import table

# -------------------------------------------------------------------------- where nothing can open


@dataclass(frozen=True)
class Refused:
    damage: Damage
    says: str


REFUSED = {
    "the database is a folder": Refused(
        both(remove(DATABASE), lambda folder: (folder / DATABASE).mkdir()),
        "not a regular file",
    ),
    "the lock is a folder": Refused(
        both(remove("lock"), lambda folder: (folder / "lock").mkdir()), "Is a directory"
    ),
    "broken is a file": Refused(
        both(write(DATABASE, b"x"), write("broken", b"x")), "is a file, not a folder: rename"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_nothing_can_open(images: dict[str, Path], tmp_path: Path, name: str) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    REFUSED[name].damage(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != INDEX}
    with pytest.raises(StoreError, match=REFUSED[name].says) as raised:
        Store(tmp_path)
    assert isinstance(raised.value, UserError)
    assert SENTENCE.fullmatch(str(raised.value))
    assert {p: p.read_bytes() for p in before} == before


def test_the_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"precious")
    for folder in (tmp_path / "x", tmp_path / "x" / "below"):
        with pytest.raises(
            StoreError, match=r"cannot be saved, because .* is a file, not a folder"
        ):
            Store(folder)
    assert (tmp_path / "x").read_bytes() == b"precious"


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.ENOLCK])
def test_a_folder_that_takes_no_lock(images: dict[str, Path], tmp_path: Path, code: int) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    target = "fcntl.flock" if code == errno.ENOLCK else "os.open"
    with (
        mock.patch(f"app.util.atomic_files.{target}", side_effect=OSError(code, os.strerror(code))),
        pytest.raises(StoreError, match=re.escape(os.strerror(code))),
    ):
        Store(tmp_path)
    assert all_texts(tmp_path) == OLD + NEW


# ---------------------------------------------------------------- where it can only be read


def assert_reads_only(store: Store, says: str) -> None:
    assert store.read_only is not None
    assert re.search(says, str(store.read_only))
    assert store.notices == [str(store.read_only)]
    conversation = store.conversations()[0].id
    assert [message.text for message in store.branch(conversation)] == OLD + NEW
    assert store.search("tenant")
    changes = [
        lambda: store.create(),
        lambda: store.add_message(conversation, Role.USER, "x"),
        lambda: store.begin_reply(store.branch(conversation)[0].id),
    ]
    if "Another" not in says:  # beside which single changes can be made
        changes += [lambda: store.trash(conversation), lambda: attach(store)]
    for change in changes:
        with pytest.raises(StoreError, match=says):
            change()


def test_a_second_instance_reads_only(images: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    with Store(tmp_path) as first:
        with Store(tmp_path) as second:
            assert_reads_only(second, "Another specchat has the conversations open")
            first.add_message(1, Role.USER, "seen by both")
            assert second.branch(1)[-1].text == "seen by both"
        first.add_message(1, Role.USER, "after the second has gone")
    with Store(tmp_path) as third:
        assert third.read_only is None


def test_who_waits_gets_the_lock_of_one_that_ends(tmp_path: Path) -> None:
    lock = atomic_files.Lock(tmp_path / "lock")
    ending = threading.Timer(0.2, lock.release)
    ending.start()
    with Store(tmp_path, lock_timeout=60) as store:
        assert store.read_only is None
    ending.join()


def test_a_second_instance_while_the_first_is_preparing(tmp_path: Path) -> None:
    lock = atomic_files.Lock(tmp_path / "lock")
    with pytest.raises(StoreError, match="Another specchat is preparing"):
        Store(tmp_path)
    lock.release()
    Store(tmp_path).close()


def test_a_newer_schema_is_read_only_and_left_alone(
    images: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    sql(f"PRAGMA user_version = {schema.VERSION + 1}")(tmp_path)
    before = (tmp_path / DATABASE).read_bytes()
    with Store(tmp_path) as store:
        assert_reads_only(store, "newer version of specchat .*: update specchat")
        with Store(tmp_path) as other:  # it holds no lock, so that the newer program can write
            assert_reads_only(other, "newer version of specchat")
    assert (tmp_path / DATABASE).read_bytes() == before


# ---------------------------------------------------------------------------- while it is running


@contextmanager
def no_more_pages(store: Store) -> Iterator[None]:
    def limit(pages: int) -> None:
        assert store._writer is not None
        store._writer.run(lambda c: c.execute(f"PRAGMA max_page_count = {pages}").fetchone())

    limit(1)
    yield
    limit(10**6)


@contextmanager
def query_only(store: Store) -> Iterator[None]:
    def set_to(value: int) -> None:
        assert store._writer is not None
        store._writer._connection.execute(f"PRAGMA query_only = {value}")

    set_to(1)
    yield
    set_to(0)


@contextmanager
def locked_by_another(store: Store) -> Iterator[None]:
    assert store._writer is not None
    store._writer.run(lambda c: c.execute("PRAGMA busy_timeout = 50").fetchone())
    path = store._paths.database
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def sync_fails(store: Store) -> Iterator[None]:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch.object(os, "fsync", side_effect=error):
        yield


@contextmanager
def rename_fails(store: Store) -> Iterator[None]:
    with mock.patch.object(os, "replace", side_effect=OSError(errno.EIO, os.strerror(errno.EIO))):
        yield


Trouble = Callable[[Store], "contextmanager[None]"]
LONG = "word " * 50_000


def add(store: Store) -> object:
    return store.add_message(1, Role.USER, LONG)


def attach_long(store: Store) -> object:
    return attach(store, "".join(map(str, range(10**5))))


TROUBLES = {
    "disk full, message": (no_more_pages, add, "disk is full.*: free some space"),
    "disk full, first question": (no_more_pages, lambda s: s.begin(LONG), "disk is full"),
    "disk full, edit": (no_more_pages, lambda s: s.edit(1, LONG), "disk is full"),
    "disk full, rename": (no_more_pages, lambda s: s.rename(1, LONG), "disk is full"),
    "disk full, duplicate": (no_more_pages, lambda s: [s.duplicate(1) for _ in range(50)], "full"),
    "disk full, document": (sync_fails, attach_long, "No space left on device"),
    "write fails, message": (files_end_early, add, "disk I/O error|disk is full"),
    "write fails, document": (files_end_early, attach_long, "File too large"),
    "rename fails, document": (rename_fails, attach_long, "Input/output error"),
    "read-only, message": (query_only, add, "can only be read, not changed"),
    "read-only, trash": (query_only, lambda s: s.trash(1), "can only be read, not changed"),
    "locked by another": (locked_by_another, add, "Another program has locked the conversations"),
}


@table("name", TROUBLES)
def test_trouble_while_running(images: dict[str, Path], tmp_path: Path, name: str) -> None:
    tmp_path = Path(tempfile.mkdtemp(dir=tmp_path))
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    trouble, attempt, says = TROUBLES[name]
    with Store(tmp_path, clock=lambda: DAY + timedelta(days=1)) as store:
        documents = list((tmp_path / "attachments").rglob("*.gz"))
        with trouble(store), pytest.raises(StoreError, match=says) as raised:
            attempt(store)
        assert SENTENCE.fullmatch(str(raised.value))
        assert [message.text for message in store.branch(1)] == OLD + NEW
        assert all(each.current is not None for each in store.conversations())
        assert [p for p in (tmp_path / "attachments").rglob("*") if p.is_file()] == documents
        attempt(store)  # once the trouble is over
    assert all_texts(tmp_path)[:3] == OLD + NEW


DOCUMENTS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_bytes(b"not gzip"),
    "cut": lambda path: os.truncate(path, 60),
    "cut by its sum": lambda path: os.truncate(path, path.stat().st_size - 8),
    "flipped": lambda path: path.write_bytes(
        bytes(b ^ (i == 50) for i, b in enumerate(path.read_bytes()))
    ),
    "another document": lambda path: path.write_bytes(gzip.compress(b"another")),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@table("name", DOCUMENTS)
def test_a_document_that_is_lost(images: dict[str, Path], tmp_path: Path, name: str) -> None:
    tmp_path = Path(tempfile.mkdtemp(dir=tmp_path))
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    with Store(tmp_path) as store:
        sha256 = store.branch(1)[0].attachments[0].sha256
    (path,) = (tmp_path / "attachments").rglob(f"{sha256}.gz")
    DOCUMENTS[name](path)
    with Store(tmp_path) as store:
        (attachment,) = store.branch(1)[0].attachments
        with pytest.raises(StoreError, match=r"'contract.txt' cannot be read .*: attach it again"):
            store.text(attachment)
        assert [message.text for message in store.branch(1)] == OLD + NEW


@pytest.mark.parametrize("years", [-60, -1, 1, 60])
def test_a_clock_that_is_wrong(images: dict[str, Path], tmp_path: Path, years: int) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    now = DAY + timedelta(days=365 * years)
    with Store(tmp_path, clock=lambda: now) as store:
        store.add_message(1, Role.USER, "now")
        assert [message.text for message in store.branch(1)] == [*OLD, *NEW, "now"]
        assert store.conversations()[0].id == 1
    assert backup.day(tmp_path / BACKUP) == now.date()
    flip(DATABASE, 100)(tmp_path)
    with Store(tmp_path, clock=lambda: now) as store:
        assert [message.text for message in store.branch(1)] == OLD + NEW  # of the backup


def test_one_backup_is_kept_of_each_day(tmp_path: Path) -> None:
    for day in range(3):
        made = []
        for _ in range(2):
            Store(tmp_path, clock=lambda day=day: DAY + timedelta(days=day)).close()
            made.append((tmp_path / BACKUP).stat().st_ino)
        assert made[0] == made[1]
        assert backup.day(tmp_path / BACKUP) == (DAY + timedelta(days=day)).date()
    assert sorted(path.name for path in tmp_path.iterdir()) == [BACKUP, DATABASE, "lock"]


def test_a_store_that_stays_open_is_backed_up_the_next_day(tmp_path: Path) -> None:
    now = DAY
    with Store(tmp_path, clock=lambda: now) as store:
        question = store.add_message(store.create().id, Role.USER, "x")
        for _ in range(2):
            now += timedelta(days=1)
            store.begin_reply(question.id).finish()
            store.begin_reply(question.id).finish()
            assert backup.day(tmp_path / BACKUP) == now.date()


def test_a_backup_that_fails_is_told_and_nothing_else_stops(
    images: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    (tmp_path / BACKUP).unlink()
    (tmp_path / BACKUP).mkdir()
    with Store(tmp_path) as store:
        store.add_message(1, Role.USER, "kept")
        assert [n for n in store.notices if n.startswith("The daily backup was not made")]
    assert all_texts(tmp_path) == [*OLD, *NEW, "kept"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounts a tmpfs")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with Store(disk) as store:
            conversation = store.create().id
            texts = [random.Random(number).randbytes(2000).hex() for number in range(1000)]

            def fill() -> None:
                for text in texts:
                    store.add_message(conversation, Role.USER, text)

            with pytest.raises(StoreError, match="disk is full"):
                fill()
            with pytest.raises(StoreError, match="No space left"):
                attach(store, random.Random(0).randbytes(2**20).hex())
            kept = [message.text for message in store.branch(conversation)]
            assert len(kept) > 10
            assert kept == texts[: len(kept)]
        with Store(disk) as store:
            assert [message.text for message in store.branch(conversation)] == kept
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("fault", ["no such SQL;", "INSERT INTO messages(id) VALUES (1);"])
def test_a_schema_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(schema, "SQL", schema.SQL + fault)
        with pytest.raises(StoreError, match="check their disk"):
            Store(tmp_path)
    with Store(tmp_path) as store:
        assert store.notices == []
        assert store.branch(answered(store))[0].text == "Who pays?"

"""Everything that goes wrong: one clear sentence, nothing lost, nothing overwritten."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import random
import re
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest

from app.errors import UserError
from app.sessions import files, schema
from app.sessions.database import DamagedError, StoreError
from app.sessions.records import Role
from app.sessions.store import Store
from tests.sessions.samples import all_texts, answered, attach

OLD = ["Who pays?", "The tenant."]
"""In the backup."""
NEW = ["Since the backup"]
DATABASE, JOURNAL, INDEX = "conversations.db", "conversations.db-wal", "conversations.db-shm"
DAY = datetime(2030, 1, 1, tzinfo=UTC)
SENTENCE = re.compile(r"[A-Z][^\n]*[^.\n]\.")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two folders: after a proper end, and as a crash leaves it, with the last message only in the
    journal."""
    work, ended, crashed = (tmp_path_factory.mktemp(name) for name in ("work", "ended", "crashed"))
    with Store(work, clock=lambda: DAY) as store:
        conversation = answered(store)
    with Store(work, clock=lambda: DAY + timedelta(days=1)) as store:
        store.add_message(conversation, Role.USER, NEW[0])
        shutil.copytree(work, crashed, dirs_exist_ok=True)
    shutil.copytree(work, ended, dirs_exist_ok=True)
    assert (crashed / JOURNAL).stat().st_size > 0
    assert not (ended / JOURNAL).exists()
    return {"ended": ended, "crashed": crashed}


# ---------------------------------------------------------------------- what is found at the start

Damage = Callable[[Path], None]


def write(name: str, data: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(data) and None


def cut(name: str, length: int) -> Damage:
    return lambda folder: os.truncate(folder / name, length)


def cut_by(name: str, length: int) -> Damage:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - length)


def remove(*names: str) -> Damage:
    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def flip(name: str, *offsets: int) -> Damage:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        for offset in offsets:
            data[offset] ^= 0x10
        (folder / name).write_bytes(data)

    return damage


def both(*damages: Damage) -> Damage:
    def damage(folder: Path) -> None:
        for each in damages:
            each(folder)

    return damage


def sql(*statements: str) -> Damage:
    def damage(folder: Path) -> None:
        with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    return damage


def foreign(folder: Path) -> None:
    (folder / DATABASE).unlink()
    sql("CREATE TABLE messages (x)", "INSERT INTO messages VALUES ('not ours')")(folder)


def spoil_backups(folder: Path) -> None:
    for path in (folder / "backups").iterdir():
        path.write_bytes(b"SQLite format 3\0 and no more")


def spoil_newest_backup(folder: Path) -> None:
    max((folder / "backups").iterdir()).write_bytes(b"")


def instead(name: str) -> Damage:
    """A file where a folder should be."""
    return both(lambda folder: shutil.rmtree(folder / name, ignore_errors=True), write(name, b"x"))


@dataclass(frozen=True)
class Found:
    """`says` is the one notice (None: no notice); `texts` what the store then holds; `aside`: the
    damaged files lie in broken/, byte by byte."""

    damage: Damage
    says: str | None
    texts: list[str]
    aside: bool = True
    image: str = "ended"


USED = r"is {} and lies now in '.*1-conversations.db(?:-wal)?': the backup of 2030-01-02 is used\.$"
DAMAGED, NO_DATABASE = USED.format("damaged"), USED.format("not a database")
JOURNAL_ONLY = USED.format("only a journal")
LAST_CHANGES = "The last changes .* cannot be read: see '.*1-conversations.db-wal'"

FOUND = {
    "nothing wrong": Found(lambda _: None, None, OLD + NEW, aside=False),
    "cut off": Found(lambda _: None, None, OLD + NEW, False, "crashed"),
    "text file": Found(write(DATABASE, b"Dear diary\n" * 999), NO_DATABASE, OLD),
    "zeros": Found(write(DATABASE, bytes(8192)), NO_DATABASE, OLD),
    "magic flipped": Found(flip(DATABASE, 3), NO_DATABASE, OLD),
    "page size flipped": Found(flip(DATABASE, 17), DAMAGED, OLD),
    "root page flipped": Found(flip(DATABASE, 100), DAMAGED, OLD),
    "page count flipped": Found(flip(DATABASE, 4096 * 3, 4096 * 5, 4096 * 7), DAMAGED, OLD),
    "an unknown step": Found(
        sql("UPDATE _sqlite_migrations SET name = '1 conversatmons'"), DAMAGED, OLD
    ),
    "a table gone": Found(sql("DROP TABLE runs"), DAMAGED, OLD),
    "a trigger gone": Found(sql("DROP TRIGGER text_of_ended"), DAMAGED, OLD),
    "a read-only file format": Found(flip(DATABASE, 18), DAMAGED, OLD),
    "another program's": Found(foreign, USED.format("another program's"), OLD),
    "emptied": Found(cut(DATABASE, 0), "has gone: the backup of 2030-01-02 is used", OLD, False),
    "removed": Found(remove(DATABASE), "has gone: the backup of 2030-01-02 is used", OLD, False),
    **{
        f"cut to {length}": Found(
            cut(DATABASE, length), DAMAGED if length > 15 else NO_DATABASE, OLD
        )
        for length in (1, 15, 16, 50, 100, 512, 4095, 4096, 4097, 8192, 40_000)
    },
    "cut by 1": Found(cut_by(DATABASE, 1), DAMAGED, OLD),
    "cut by a page": Found(cut_by(DATABASE, 4096), DAMAGED, OLD),
    "removed before its journal": Found(remove(DATABASE), JOURNAL_ONLY, OLD, True, "crashed"),
    "emptied before its journal": Found(cut(DATABASE, 0), JOURNAL_ONLY, OLD, True, "crashed"),
    "damaged, with its journal": Found(write(DATABASE, b"x"), NO_DATABASE, OLD, True, "crashed"),
    "no journal": Found(remove(JOURNAL), None, OLD, False, "crashed"),
    "no journal and no index": Found(remove(JOURNAL, INDEX), None, OLD, False, "crashed"),
    "an empty journal": Found(cut(JOURNAL, 0), None, OLD, False, "crashed"),
    "a garbled journal": Found(
        write(JOURNAL, random.Random(1).randbytes(9999)), LAST_CHANGES, OLD, True, "crashed"
    ),
    "a journal of text": Found(write(JOURNAL, b"Dear"), LAST_CHANGES, OLD, True, "crashed"),
    "a journal cut in its head": Found(cut(JOURNAL, 31), LAST_CHANGES, OLD, True, "crashed"),
    **{
        f"journal flipped at {offset}": Found(
            flip(JOURNAL, offset), LAST_CHANGES, OLD, True, "crashed"
        )
        for offset in (0, 5, 10, 17, 25, 31)
    },
    "a journal cut in its frames": Found(cut(JOURNAL, 5000), None, OLD, False, "crashed"),
    "a journal with a torn end": Found(
        lambda folder: (folder / JOURNAL).open("ab").write(b"torn" * 99) and None,
        None,
        OLD + NEW,
        False,
        "crashed",
    ),
    "an index of garbage": Found(write(INDEX, b"x" * 32768), None, OLD + NEW, False, "crashed"),
    "no index": Found(remove(INDEX), None, OLD + NEW, False, "crashed"),
    "the newest backup broken too": Found(
        both(write(DATABASE, b"x"), spoil_newest_backup), "the backup of 2030-01-01 is used", []
    ),
    "no good backup": Found(both(write(DATABASE, b"x"), spoil_backups), "a new one is begun", []),
    "no backup": Found(both(write(DATABASE, b"x"), remove("backups")), "a new one is begun", []),
    "lock left behind": Found(write("lock", b"4711"), None, OLD + NEW, False),
    "rubbish of a restore": Found(write("conversations.restored", b"x"), None, OLD + NEW, False),
    "rubbish of a backup": Found(write("backups/unfinished", b"x"), None, OLD + NEW, False),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_at_the_start(images: dict[str, Path], tmp_path: Path, name: str) -> None:
    found = FOUND[name]
    shutil.copytree(images[found.image], tmp_path, dirs_exist_ok=True)
    found.damage(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.glob(DATABASE + "*") if p.name != INDEX}
    before = {name: data for name, data in before.items() if data}
    backups = {p: p.read_bytes() for p in (tmp_path / "backups").glob("*.db")}
    with Store(tmp_path, clock=lambda: DAY + timedelta(days=1)) as store:
        assert store.read_only is None
        if found.says is None:
            assert store.notices == []
        else:
            (notice,) = store.notices
            assert re.search(found.says, notice)
            assert SENTENCE.fullmatch(notice)
        if found.texts:
            answered_in = store.conversations()[0].id
            assert store.text(store.branch(answered_in)[0].attachments[0])
            assert [hit.message for hit in store.search("tenant")]
        store.create("goes on")
    assert all_texts(tmp_path) == found.texts
    assert all(path.read_bytes() == data for path, data in backups.items())
    aside = {
        p.name: p.read_bytes() for p in (tmp_path / "broken").glob("*") if "-shm" not in p.name
    }
    if not found.aside:
        assert aside == {}
    for part, data in aside.items():
        assert data == before[part.removeprefix("1-")]
    if found.aside and found.says != LAST_CHANGES:
        assert len(aside) == len(before)


HIDDEN = {
    "an unknown role": (
        sql("PRAGMA ignore_check_constraints = 1", "UPDATE messages SET role = 'usfr'"),
        OLD,
    ),
    "a time beyond all years": (
        sql("PRAGMA ignore_check_constraints = 1", "UPDATE messages SET created_at = 1e18"),
        OLD,
    ),
    "the index of words": (
        sql("UPDATE message_text_data SET block = x'00ff' WHERE id > 10"),
        OLD + NEW,
    ),
}
"""Damage that SQLite's quick check does not see: told when it is met, and mended at the next start
where it lies in an index."""


@pytest.mark.parametrize("name", HIDDEN)
def test_damage_that_is_met_later(images: dict[str, Path], tmp_path: Path, name: str) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    damage, texts = HIDDEN[name]
    damage(tmp_path)
    before = (tmp_path / DATABASE).read_bytes()
    clock = lambda: DAY + timedelta(days=1)  # noqa: E731
    with Store(tmp_path, clock=clock) as store:
        assert store.notices == []
        with pytest.raises(DamagedError, match="start specchat again"):
            (store.branch(1), store.search("tenant"))
    with Store(tmp_path, clock=clock) as store:
        (notice,) = store.notices
        assert SENTENCE.fullmatch(notice)
        assert ("could be mended" in notice) == (texts == OLD + NEW)
        assert [message.text for message in store.branch(1)] == texts
        assert len(store.search("tenant")) == 1
    assert (tmp_path / "broken" / f"1-{DATABASE}").read_bytes() == before


def test_damaged_figures_do_not_hide_the_answer(images: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    sql("UPDATE runs SET phases = '['", "UPDATE read_maps SET spans = x'00'")(tmp_path)
    with Store(tmp_path) as store:
        _, answer, _ = store.branch(1)
        assert (answer.text, answer.run) == ("The tenant.", None)
        with pytest.raises(StoreError, match="map of what was read for this answer is damaged"):
            store.read_map(answer.id)


def test_a_second_start_after_damage_has_nothing_more_to_say(
    images: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    flip(DATABASE, 100)(tmp_path)
    Store(tmp_path).close()
    with Store(tmp_path) as store:
        assert store.notices == []
    flip(DATABASE, 100)(tmp_path)
    with Store(tmp_path) as store:
        assert "2-conversations.db" in store.notices[0]
        # What only the broken database refers to is not swept.
        assert len(list((tmp_path / "attachments").rglob("*.gz"))) == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_anywhere_is_survived(
    images: dict[str, Path], tmp_path: Path, seed: int
) -> None:
    """Bits in a text cannot be missed, but nothing else than a sentence may come of any."""
    random_ = random.Random(seed)
    for number in range(15):
        folder = tmp_path / str(number)
        shutil.copytree(images["ended" if number % 2 else "crashed"], folder)
        data = bytearray((folder / DATABASE).read_bytes())
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
        (folder / DATABASE).write_bytes(data)
        with Store(folder) as store:
            assert all(SENTENCE.fullmatch(notice) for notice in store.notices)
            if store.notices:
                assert (folder / "broken" / f"1-{DATABASE}").read_bytes() == data
            for attempt in (
                lambda: [store.tree(conversation.id) for conversation in store.conversations()],
                lambda: store.search("tenant"),
                lambda: store.add_message(store.create().id, Role.USER, "goes on"),
            ):
                with contextlib.suppress(StoreError):
                    attempt()


# -------------------------------------------------------------------------- where nothing can open


@dataclass(frozen=True)
class Refused:
    damage: Damage
    says: str


REFUSED = {
    "the database is a folder": Refused(
        both(remove(DATABASE), lambda folder: (folder / DATABASE).mkdir()), "Is a directory"
    ),
    "the lock is a folder": Refused(
        both(remove("lock"), lambda folder: (folder / "lock").mkdir()), "Is a directory"
    ),
    "broken is a file": Refused(
        both(write(DATABASE, b"x"), write("broken", b"x")), "File exists|Not a directory"
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
        with pytest.raises(StoreError, match=r"cannot be kept in .*: make that folder writable"):
            Store(folder)
    assert (tmp_path / "x").read_bytes() == b"precious"


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.ENOLCK])
def test_a_folder_that_takes_no_lock(images: dict[str, Path], tmp_path: Path, code: int) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    target = "fcntl.flock" if code == errno.ENOLCK else "os.open"
    with (
        mock.patch(f"app.sessions.files.{target}", side_effect=OSError(code, os.strerror(code))),
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
    for change in (
        lambda: store.create(),
        lambda: store.add_message(conversation, Role.USER, "x"),
        lambda: store.trash(conversation),
        lambda: attach(store),
    ):
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


def test_a_second_instance_while_the_first_is_preparing(tmp_path: Path) -> None:
    lock = files.Lock(tmp_path / "lock")
    with pytest.raises(StoreError, match="Another specchat is preparing"):
        Store(tmp_path)
    lock.release()
    Store(tmp_path).close()


def test_a_newer_schema_is_read_only_and_left_alone(
    images: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    sql(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at)"
        f" VALUES ('{schema.NAME}', 'from the future', '')"
    )(tmp_path)
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
def files_end_early(store: Store) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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
    path = store._places.database
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def sync_fails(store: Store) -> Iterator[None]:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch.object(files, "sync", side_effect=error):
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
    "disk full, edit": (no_more_pages, lambda s: s.edit(1, LONG), "disk is full"),
    "disk full, rename": (no_more_pages, lambda s: s.rename(1, LONG), "disk is full"),
    "disk full, duplicate": (no_more_pages, lambda s: [s.duplicate(1) for _ in range(50)], "full"),
    "disk full, document": (sync_fails, attach_long, "No space left on device"),
    "write fails, message": (files_end_early, add, "disk I/O error|disk is full"),
    "write fails, document": (files_end_early, attach_long, "File too large"),
    "rename fails, document": (rename_fails, attach_long, "Input/output error"),
    "read-only, message": (query_only, add, "cannot be changed, only read"),
    "read-only, trash": (query_only, lambda s: s.trash(1), "cannot be changed, only read"),
    "locked by another": (locked_by_another, add, "Another program keeps the conversations locked"),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_trouble_while_running(images: dict[str, Path], tmp_path: Path, name: str) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    trouble, attempt, says = TROUBLES[name]
    with Store(tmp_path, clock=lambda: DAY + timedelta(days=1)) as store:
        documents = list((tmp_path / "attachments").rglob("*.gz"))
        with trouble(store), pytest.raises(StoreError, match=says) as raised:
            attempt(store)
        assert SENTENCE.fullmatch(str(raised.value))
        assert [message.text for message in store.branch(1)] == OLD + NEW
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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_that_is_lost(images: dict[str, Path], tmp_path: Path, name: str) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    (path,) = (tmp_path / "attachments").rglob("*.gz")
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
    assert len(list((tmp_path / "backups").glob("*.db"))) == 3
    flip(DATABASE, 100)(tmp_path)
    with Store(tmp_path, clock=lambda: now) as store:
        assert [message.text for message in store.branch(1)] == OLD + NEW  # the newest backup


def test_seven_backups_are_kept(tmp_path: Path) -> None:
    for day in range(12):
        for _ in range(2):
            Store(tmp_path, clock=lambda day=day: DAY + timedelta(days=day)).close()
    names = sorted(path.name for path in (tmp_path / "backups").iterdir())
    assert names == [f"{n:06}-2030-01-{n:02}.db" for n in range(6, 13)]


def test_a_backup_that_fails_is_told_and_nothing_else_stops(
    images: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    instead("backups")(tmp_path)
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

"""Damage that is found at the start: one clear sentence, nothing lost, nothing overwritten."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from app.protocol.prompt import Role
from app.store.records import DamagedError, StoreError
from app.store.store import Store
from tests.store.faults import (
    BACKUP,
    DATABASE,
    DAY,
    INDEX,
    JOURNAL,
    NEW,
    OLD,
    SENTENCE,
    Damage,
    assert_whole,
    both,
    cut,
    cut_by,
    flip,
    remove,
    sql,
    write,
)
from tests.store.samples import all_texts
from tests.tables import slow, table


def foreign(folder: Path) -> None:
    (folder / DATABASE).unlink()
    sql("CREATE TABLE messages (x)", "INSERT INTO messages VALUES ('not ours')")(folder)


@dataclass(frozen=True)
class Found:
    """`says` is the one notice (None: no notice); `texts` what the store then holds; `quarantined`:
    the damaged files are in broken/, byte by byte."""

    damage: Damage
    says: str | None
    texts: list[str]
    quarantined: bool = True
    image: str = "ended"


JOURNAL_DAMAGE = {
    "removed": remove(JOURNAL),
    "emptied": cut(JOURNAL, 0),
    "of noise": write(JOURNAL, random.Random(1).randbytes(9999)),
    "of text": write(JOURNAL, b"Dear"),
    "cut by 1": cut_by(JOURNAL, 1),
    **{f"cut to {size}": cut(JOURNAL, size) for size in (31, 33, 5000)},
    **{f"flipped at {offset}": flip(JOURNAL, offset) for offset in (0, 17, 34, 52, 100, 4151)},
}
"""The last changes are lost, and nothing else."""
MOVED = r"is {} and was moved to '.*1-conversations.db(?:-wal)?': "
USED = MOVED + r"the backup of 2030-01-02 was restored\.$"
DAMAGED, NO_DATABASE = USED.format("damaged"), USED.format("not a database")
JOURNAL_ONLY = USED.format("only a journal")

FOUND = {
    "nothing wrong": Found(lambda _: None, None, OLD + NEW, quarantined=False),
    "cut off": Found(lambda _: None, None, OLD + NEW, False, "crashed"),
    "text file": Found(write(DATABASE, b"Dear diary\n" * 999), NO_DATABASE, OLD),
    "zeros": Found(write(DATABASE, bytes(8192)), NO_DATABASE, OLD),
    "magic flipped": Found(flip(DATABASE, 3), NO_DATABASE, OLD),
    "page size flipped": Found(flip(DATABASE, 17), DAMAGED, OLD),
    "root page flipped": Found(flip(DATABASE, 100), DAMAGED, OLD),
    "page count flipped": Found(flip(DATABASE, 4096 * 3, 4096 * 5, 4096 * 7), DAMAGED, OLD),
    "an unknown version": Found(sql("PRAGMA user_version = 0"), DAMAGED, OLD),
    "a table gone": Found(sql("DROP TABLE runs"), DAMAGED, OLD),
    "a trigger gone": Found(sql("DROP TRIGGER text_of_ended"), DAMAGED, OLD),
    "a read-only file format": Found(flip(DATABASE, 18), DAMAGED, OLD),
    "another program's": Found(foreign, USED.format("another program's"), OLD),
    "emptied": Found(
        cut(DATABASE, 0), "is missing: the backup of 2030-01-02 was restored", OLD, False
    ),
    "removed": Found(
        remove(DATABASE), "is missing: the backup of 2030-01-02 was restored", OLD, False
    ),
    **{
        f"cut to {length}": Found(
            cut(DATABASE, length), DAMAGED if length > 15 else NO_DATABASE, OLD
        )
        for length in (1, 15, 16, 50, 100, 512, 4095, 4096, 4097, 8192, 40_000)
    },
    "cut by a byte that held nothing": Found(cut_by(DATABASE, 1), None, OLD + NEW, False),
    "cut by a page": Found(cut_by(DATABASE, 4096), DAMAGED, OLD),
    "removed before its journal": Found(remove(DATABASE), JOURNAL_ONLY, OLD, True, "crashed"),
    "emptied before its journal": Found(cut(DATABASE, 0), JOURNAL_ONLY, OLD, True, "crashed"),
    "damaged, with its journal": Found(write(DATABASE, b"x"), NO_DATABASE, OLD, True, "crashed"),
    **{
        f"a journal {name}": Found(damage, None, OLD, False, "crashed")
        for name, damage in JOURNAL_DAMAGE.items()
    },
    "a journal with a torn end": Found(
        lambda folder: (folder / JOURNAL).open("ab").write(b"torn" * 99) and None,
        None,
        OLD + NEW,
        False,
        "crashed",
    ),
    "an index of garbage": Found(write(INDEX, b"x" * 32768), None, OLD + NEW, False, "crashed"),
    "no index": Found(remove(INDEX), None, OLD + NEW, False, "crashed"),
    "a damaged backup": Found(
        both(write(DATABASE, b"x"), write(BACKUP, b"SQLite format 3\0 and no more")),
        "is not a database and was moved to '.*1-conversations.db': a new one was created",
        [],
    ),
    "an empty backup": Found(
        both(write(DATABASE, b"x"), write(BACKUP, b"")), "a new one was created", []
    ),
    "no backup": Found(both(write(DATABASE, b"x"), remove(BACKUP)), "a new one was created", []),
    "no database and a damaged backup": Found(
        both(remove(DATABASE), write(BACKUP, b"x")),
        "is missing, and its backup is damaged and was moved to '.*1-backup.db': a new one was",
        [],
    ),
    "lock left behind": Found(write("lock", b"4711"), None, OLD + NEW, False),
    "rubbish of a restore": Found(write("conversations.restored", b"x"), None, OLD + NEW, False),
    "rubbish of a backup": Found(write("backup.unfinished", b"x"), None, OLD + NEW, False),
}


@table("name", FOUND)
def test_what_is_found_at_the_start(images: dict[str, Path], tmp_path: Path, name: str) -> None:
    tmp_path = Path(tempfile.mkdtemp(dir=tmp_path))
    found = FOUND[name]
    shutil.copytree(images[found.image], tmp_path, dirs_exist_ok=True)
    found.damage(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.glob(DATABASE + "*") if p.name != INDEX}
    before = {name: data for name, data in before.items() if data}
    backup = (tmp_path / BACKUP).read_bytes() if (tmp_path / BACKUP).exists() else b""
    if backup and not found.texts:
        before[BACKUP] = backup  # damaged, and put aside, too
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
    if found.texts:
        assert (tmp_path / BACKUP).read_bytes() == backup
    assert all_texts(tmp_path) == found.texts
    put_aside = {
        p.name: p.read_bytes() for p in (tmp_path / "broken").glob("*") if "-shm" not in p.name
    }
    for part, data in put_aside.items():
        assert data == before[part.removeprefix("1-")]
    count = len(before) if found.says and found.says.startswith("is") else 1
    assert len(put_aside) == (count if found.quarantined else 0)


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


@table(
    "statement",
    [
        "UPDATE messages SET token_ids = x'0102'",
        "UPDATE messages SET parent = 4611686018427387904 WHERE id > 1",
        "UPDATE conversations SET current = 99",
    ],
)
def test_values_that_no_store_writes_are_damage(
    images: dict[str, Path], tmp_path: Path, statement: str
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    shutil.copytree(images["ended"], folder, dirs_exist_ok=True)
    sql("PRAGMA ignore_check_constraints = 1", statement)(folder)
    with Store(folder) as store, pytest.raises(DamagedError):
        store.tree(1)


def test_a_message_of_an_unknown_role_is_damage_for_a_search(
    images: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    sql("PRAGMA ignore_check_constraints = 1", "UPDATE messages SET role = 'x'")(tmp_path)
    with Store(tmp_path) as store, pytest.raises(DamagedError):
        store.search("tenant")


@pytest.mark.parametrize("name", HIDDEN)
def test_damage_that_is_met_later(images: dict[str, Path], tmp_path: Path, name: str) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    damage, texts = HIDDEN[name]
    damage(tmp_path)
    clock = lambda: DAY + timedelta(days=1)  # noqa: E731
    with Store(tmp_path, clock=clock) as store:
        assert store.notices == []
        with pytest.raises(DamagedError, match="start specchat again"):
            (store.branch(1), store.search("tenant"))
    before = (tmp_path / DATABASE).read_bytes()
    with Store(tmp_path, clock=clock) as store:
        (notice,) = store.notices
        assert SENTENCE.fullmatch(notice)
        assert ("was recovered" in notice) == (texts == OLD + NEW)
        assert [message.text for message in store.branch(1)] == texts
        assert len(store.search("tenant")) == 1
    assert (tmp_path / "broken" / f"1-{DATABASE}").read_bytes() == before


def test_damaged_figures_do_not_hide_the_answer(images: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    sql("UPDATE runs SET phases = '['", "UPDATE read_maps SET spans = x'00'")(tmp_path)
    with Store(tmp_path) as store:
        _, answer, _ = store.branch(1)
        assert (answer.text, answer.stats) == ("The tenant.", None)
        with pytest.raises(StoreError, match="map of what was read for this answer is damaged"):
            store.read_map(answer.id)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_damaged_journal_is_read_up_to_the_damage(tmp_path: Path, part: float) -> None:
    texts = [f"question {number}" for number in range(20)]
    Store(tmp_path / "running", clock=lambda: DAY).close()
    with Store(tmp_path / "running", clock=lambda: DAY) as store:
        conversation = store.create().id
        for text in texts:
            store.add_message(conversation, Role.USER, text)
        shutil.copytree(tmp_path / "running", tmp_path / "crashed")
    frames = ((tmp_path / "crashed" / JOURNAL).stat().st_size - 32) // (24 + 4096)
    flip(JOURNAL, 32 + (24 + 4096) * int(frames * part) + 100)(tmp_path / "crashed")
    with Store(tmp_path / "crashed") as store:
        assert store.notices == []
        kept = [message for each in store.conversations() for message in store.branch(each.id)]
        assert [message.text for message in kept] == texts[: len(kept)]
    assert_whole(tmp_path / "crashed" / DATABASE)


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
        assert len(list((tmp_path / "attachments").rglob("*.gz"))) == 2


@pytest.mark.parametrize("seed", [0, *map(slow, range(1, 6))])
def test_a_flipped_bit_anywhere_is_survived(
    images: dict[str, Path], tmp_path: Path, seed: int
) -> None:
    """Bits in a text cannot be missed, but nothing else than a sentence may come of any."""
    random_ = random.Random(seed)
    for number in range(15):
        folder = tmp_path / str(number)
        shutil.copytree(images["ended" if number % 2 else "crashed"], folder)
        data = bytearray((folder / DATABASE).read_bytes())
        at = random_.randrange(len(data))
        data[at] ^= 1 << random_.randrange(8)
        (folder / DATABASE).write_bytes(data)
        with Store(folder) as store:
            assert all(SENTENCE.fullmatch(notice) for notice in store.notices)
            if store.notices:  # other pages may hold what was written before it was noticed
                moved = (folder / "broken" / f"1-{DATABASE}").read_bytes()
                assert (len(moved), moved[at]) == (len(data), data[at])
            for attempt in (
                lambda: [store.tree(conversation.id) for conversation in store.conversations()],
                lambda: store.search("tenant"),
                lambda: store.add_message(store.create().id, Role.USER, "goes on"),
            ):
                with contextlib.suppress(StoreError):
                    attempt()


def test_what_was_put_aside_goes_in_the_end(images: dict[str, Path], tmp_path: Path) -> None:
    def notices(day: int) -> list[str]:
        with Store(tmp_path, clock=lambda: DAY + timedelta(days=day)) as store:
            return store.notices

    shutil.copytree(images["ended"], tmp_path, dirs_exist_ok=True)
    for day in (1, 100):
        flip(DATABASE, 100)(tmp_path)
        assert "is damaged" in notices(day)[0]
    (tmp_path / "broken" / "notes.txt").write_text("mine")
    assert notices(-1000) == notices(180) == []
    (notice,) = notices(182)
    assert SENTENCE.fullmatch(notice)
    assert "set aside on 2030-01-02 was deleted after 180 days" in notice
    assert len(list((tmp_path / "attachments").rglob("*.gz"))) == 2
    assert "set aside on 2030-04-11" in notices(300)[0]
    assert [path.name for path in (tmp_path / "broken").iterdir()] == ["notes.txt"]
    assert len(list((tmp_path / "attachments").rglob("*.gz"))) == 1, "no longer needed"
    assert notices(301) == []

"""Snapshots: saving, loading, sharing, limits; damaged ones are never used."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest

from app.engine.cache import snapshot
from app.engine.cache.prefill import StepSize
from app.engine.cache.snapshot import (
    FILE_NAME,
    MANIFEST,
    OtherModels,
    SnapshotError,
    Snapshots,
    read_manifest,
    with_checksum,
)
from app.engine.cache.snapshot_folder import (
    MAX_ON_DISK,
    MIN_ON_DISK,
    disk_limit,
    folder_bytes,
    remove_other_snapshots,
    snapshot_folder,
)
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.model.loader import ModelPair
from app.protocol.commands import CachePolicy, Close, DropConversation, PruneSnapshots
from app.protocol.events import Failed
from tests.engine.driver import LIMIT, Driver
from tests.engine.test_turns import FIRST, Chat, conversation, pair
from tests.tables import table
from tests.tiny import build

IDENTITY = {"target": "a", "draft": "b"}
BUDGET = 1 << 30


@pytest.fixture(scope="module")
def models() -> ModelPair:
    return pair(build("llama"))


@pytest.fixture(scope="module")
def chat(models: ModelPair) -> Chat:
    return new_chat(models)


def new_chat(models: ModelPair) -> Chat:
    first, answer, _ = conversation()
    chat = Chat(models.target.model)
    chat.read(first, FIRST)
    chat.write(first, answer)
    return chat


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "BLOCK", 16)


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path / "snapshots", BUDGET, IDENTITY)


def save(snapshots: Snapshots, chat: Chat, name: str = "c") -> None:
    for _ in snapshots.save(name, chat.conversation):
        pass


def folder(tmp_path: Path) -> Path:
    (only,) = (tmp_path / "snapshots").glob("*/*")
    return only


def same(a: ConversationCache, b: ConversationCache) -> bool:
    def arrays(prefix: Any) -> list[Any]:
        return [np.array(part) for c in prefix.cache for part in (c.keys, c.values)]

    sizes = (
        len(a.target) == len(b.target) and a.target.dense_prefix_len == b.target.dense_prefix_len
    )
    end = b.target.cache[0].inner.offset
    pairs = zip(arrays(a.target), arrays(b.target), strict=True)
    return (
        sizes
        and bool((a.target.cached == b.target.cached).all())
        and all(np.array_equal(x[:, :, :end], y[:, :, :end]) for x, y in pairs)
    )


# --------------------------------------------------------------------------------- damage


def _part(number: int) -> Callable[[Path], Path]:
    def find(folder: Path) -> Path:
        return sorted(p for p in folder.iterdir() if p.name != MANIFEST)[number]

    return find


def _shortened(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def _flipped(path: Path, share: float) -> None:
    data = bytearray(path.read_bytes())
    data[min(int(len(data) * share), len(data) - 1)] ^= 1
    path.write_bytes(bytes(data))


def _another_number(path: Path) -> None:
    """Metadata such as the number of tokens is damaged."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    place = next(e["data_offsets"][0] for e in header.values() if e.get("shape") == [])
    data[start + place] ^= 1
    path.write_bytes(bytes(data))


def _edited(seal: bool = True, **changes: Any) -> Callable[[Path], None]:
    """Change values in the manifest, with or without a matching checksum."""

    def edit(folder: Path) -> None:
        old, _, text = (folder / MANIFEST).read_text().partition("\n")
        manifest = json.loads(text) | changes
        new = with_checksum(manifest)
        (folder / MANIFEST).write_text(new if seal else f"{old}\n{new.partition(chr(10))[2]}")

    return edit


def _a_folder(folder: Path) -> None:
    part = _part(1)(folder)
    part.unlink()
    part.mkdir()


def _swapped(folder: Path) -> None:
    one, other = _part(1)(folder), _part(2)(folder)
    aside = folder / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


DAMAGE: dict[str, Callable[[Path], object]] = {
    **{
        f"part {n} cut to {share:.0%}": lambda f, n=n, s=share: _shortened(_part(n)(f), s)
        for n in (0, 2)
        for share in (0.0, 0.5, 0.99)
    },
    **{
        f"a bit of part {n} at {share:.0%}": lambda f, n=n, s=share: _flipped(_part(n)(f), s)
        for n in (0, 1, 3)
        for share in (0.0, 0.02, 0.5, 1.0)
    },
    "a part is missing": lambda f: _part(1)(f).unlink(),
    "a part is longer": lambda f: _part(1)(f).write_bytes(_part(1)(f).read_bytes() + b"x"),
    "two parts are swapped": _swapped,
    "a part is a folder": _a_folder,
    "the manifest is empty": lambda f: (f / MANIFEST).write_text(""),
    "the manifest is cut": lambda f: _shortened(f / MANIFEST, 0.7),
    "the manifest is not UTF-8": lambda f: (f / MANIFEST).write_bytes(b"\xff\xfe{}"),
    "the manifest is a list": lambda f: (f / MANIFEST).write_text("[]"),
    "another format": _edited(format=99),
    "fewer files than it had": _edited(seal=False, files=[]),
    "a longer dense prefix than it had": _edited(seal=False, target={"dense_prefix_len": 10**6}),
    "a target without layers": _edited(
        target={"dense_prefix_len": 1, "layers": [], "checkpoints": []}
    ),
    "a target of another kind": _edited(
        target={"dense_prefix_len": 1, "layers": [{"kind": "ArraysCache"}] * 3, "checkpoints": []}
    ),
}


@table("name", DAMAGE)
def test_a_damaged_snapshot_is_deleted_and_reported(
    name: str, chat: Chat, models: ModelPair, tmp_path: Path
) -> None:
    place = tmp_path / name
    snapshots = Snapshots(place / "snapshots", BUDGET, IDENTITY)
    save(snapshots, chat)
    DAMAGE[name](folder(place))
    with pytest.raises(SnapshotError) as caught:
        snapshots.load("c", lambda: ConversationCache(models))
    assert "\n" not in str(caught.value)
    assert not list((place / "snapshots").iterdir())
    assert snapshots.load("c", lambda: ConversationCache(models)) is None


def test_rows_of_another_model_are_not_used(
    chat: Chat, models: ModelPair, snapshots: Snapshots, tmp_path: Path
) -> None:
    save(snapshots, chat)
    _edited(identity={"target": "other", "draft": "other"})(folder(tmp_path))
    loaded = snapshots.load("c", lambda: ConversationCache(models))
    assert loaded is not None
    assert len(loaded.target) == 0


def test_damaged_metadata_of_arrays_is_noticed(snapshots: Snapshots, tmp_path: Path) -> None:
    models = pair(build("gemma3"))
    first, _, _ = conversation()
    chat = Chat(models.target.model)
    chat.read(first, None)
    save(snapshots, chat)
    _another_number(folder(tmp_path) / "1-target-1.safetensors")
    with pytest.raises(SnapshotError):
        snapshots.load("c", lambda: ConversationCache(models))


LEFTOVERS: dict[str, Callable[[Path], object]] = {
    "an older generation": lambda f: (f / "0-target-0.safetensors").write_bytes(b"old"),
    "a newer one that was cut off": lambda f: (f / "2-target-0.safetensors").write_bytes(b"cut"),
    "a manifest aside": lambda f: (f / "manifest.part").write_text("{"),
    "somebody's file": lambda f: (f / "notes.txt").write_text("mine"),
}


@pytest.mark.parametrize("leftover", LEFTOVERS.values(), ids=LEFTOVERS)
def test_other_files_do_not_matter(
    leftover: Callable[[Path], object],
    snapshots: Snapshots,
    chat: Chat,
    models: ModelPair,
    tmp_path: Path,
) -> None:
    save(snapshots, chat)
    leftover(folder(tmp_path))
    loaded = snapshots.load("c", lambda: ConversationCache(models))
    assert loaded is not None
    assert same(loaded, chat.conversation)
    save(snapshots, chat)
    assert {p.name.partition("-")[0] for p in folder(tmp_path).glob("*-*")} <= {"2", "3"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_cancelled_save_leaves_the_older_one_and_nothing_else(
    snapshots: Snapshots, chat: Chat, models: ModelPair, tmp_path: Path
) -> None:
    save(snapshots, chat)
    before = names(folder(tmp_path))
    for stop in range(1, 5):
        saving = snapshots.save("c", chat.conversation)
        for _ in range(stop):
            next(saving)
        saving.close()
        assert names(folder(tmp_path)) == before
        loaded = snapshots.load("c", lambda: ConversationCache(models))
        assert same(loaded, chat.conversation)


def test_a_failed_save_leaves_nothing(
    snapshots: Snapshots, chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(snapshots, chat)
    before = names(folder(tmp_path))
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        save(snapshots, chat)
    assert names(folder(tmp_path)) == before


def test_an_unreadable_manifest_deletes_no_file(
    snapshots: Snapshots, chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(snapshots, chat)
    (folder(tmp_path) / "7-target-0.safetensors").write_bytes(b"cut")
    before = names(folder(tmp_path))
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    monkeypatch.setattr(snapshot, "read_manifest", mock.Mock(side_effect=error))
    Snapshots(tmp_path / "snapshots", BUDGET, IDENTITY)
    assert names(folder(tmp_path)) == before


@pytest.mark.parametrize("when", ["at the next start", "at the next save", "when it is loaded"])
def test_leftovers_of_a_killed_save_are_deleted(
    snapshots: Snapshots, chat: Chat, models: ModelPair, tmp_path: Path, when: str
) -> None:
    save(snapshots, chat)
    before = names(folder(tmp_path))
    for orphan in ("2-target-0.safetensors", "7-draft-12.safetensors", "7-manifest.part"):
        (folder(tmp_path) / orphan).write_bytes(b"cut")
    (folder(tmp_path) / "notes.txt").write_text("mine")
    if when == "at the next start":
        Snapshots(tmp_path / "snapshots", BUDGET, IDENTITY)
    elif when == "at the next save":
        saving = snapshots.save("c", chat.conversation)
        next(saving)
        saving.close()
    else:
        assert snapshots.load("c", lambda: ConversationCache(models)) is not None
    assert names(folder(tmp_path)) == sorted([*before, "notes.txt"])


def test_cancelling_a_save_does_not_wait_for_the_disk(
    snapshots: Snapshots, chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, release = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        started.set()
        release.wait()

    monkeypatch.setattr(os, "fsync", slow)
    saving = snapshots.save("c", chat.conversation)
    next(saving)
    started.wait()
    saving.close()
    assert not release.is_set()
    assert not names(folder(tmp_path))
    release.set()


STRAYS: dict[str, Callable[[Path], object]] = {
    "a folder": lambda f: (f / "old").mkdir(),
    "a folder with one of our names": lambda f: (f / "9-target-0.safetensors").mkdir(),
    "a pipe": lambda f: os.mkfifo(f / "pipe"),
    "a pipe with one of our names": lambda f: os.mkfifo(f / "2-manifest.part"),
    "a pipe where a manifest was written aside": lambda f: os.mkfifo(f / "manifest.part"),
    "a link to nowhere": lambda f: (f / "link").symlink_to("nowhere"),
    "a digit that is not a number": lambda f: (f / "\u00b2-target-0.safetensors").write_text("x"),
    "a name that is not text": lambda f: (f / "\udcff-1").write_text("x"),
    "a number without end": lambda f: (f / f"{'9' * 200}-target-0.safetensors").write_text("x"),
}


@table("name", STRAYS)
def test_stray_files_do_not_stop_a_save(
    name: str, chat: Chat, models: ModelPair, tmp_path: Path
) -> None:
    place = tmp_path / name
    snapshots = Snapshots(place / "snapshots", BUDGET, IDENTITY)
    save(snapshots, chat)
    STRAYS[name](folder(place))
    for _ in range(2):
        save(snapshots, chat)
        assert snapshots.load("c", lambda: ConversationCache(models)) is not None
    ours = [n for n in names(folder(place)) if FILE_NAME.fullmatch(n)]
    assert len({n.partition("-")[0] for n in ours if (folder(place) / n).is_file()}) == 1


def test_stray_folders_among_the_snapshots_are_not_deleted_for_the_budget(
    chat: Chat, tmp_path: Path
) -> None:
    (tmp_path / "snapshots" / "mine").mkdir(parents=True)
    (tmp_path / "snapshots" / "mine" / "file").write_bytes(b"x" * 10_000)
    save(Snapshots(tmp_path / "snapshots", 1, IDENTITY), chat)
    assert (tmp_path / "snapshots" / "mine" / "file").exists()


@pytest.mark.parametrize("what", ["a pipe", "a folder"])
def test_a_manifest_that_is_not_a_file_is_deleted_and_reported(
    snapshots: Snapshots, chat: Chat, models: ModelPair, tmp_path: Path, what: str
) -> None:
    """Reading a pipe would block forever."""
    save(snapshots, chat)
    manifest = folder(tmp_path) / MANIFEST
    manifest.unlink()
    os.mkfifo(manifest) if what == "a pipe" else manifest.mkdir()
    Snapshots(tmp_path / "snapshots", BUDGET, IDENTITY)
    with pytest.raises(SnapshotError, match="not a file"):
        snapshots.load("c", lambda: ConversationCache(models))
    save(snapshots, chat)
    assert snapshots.load("c", lambda: ConversationCache(models)) is not None


def test_an_incomplete_snapshot_counts_as_none(
    snapshots: Snapshots, chat: Chat, models: ModelPair
) -> None:
    next(snapshots.save("c", chat.conversation))
    assert snapshots.load("c", lambda: ConversationCache(models)) is None


def test_the_budget_deletes_the_oldest_snapshots(
    tmp_path: Path, chat: Chat, models: ModelPair
) -> None:
    free = Snapshots(tmp_path / "snapshots", BUDGET, IDENTITY)
    save(free, chat, "a")
    size = sum(f.stat().st_size for f in folder(tmp_path).iterdir())
    tight = Snapshots(tmp_path / "snapshots", int(2.5 * size), IDENTITY)
    save(tight, new_chat(models), "b")
    for path in (tmp_path / "snapshots").glob("*/*"):
        os.utime(path / MANIFEST, ns=(10**9, 10**9))
    assert tight.load("a", lambda: ConversationCache(models)) is not None  # used now
    save(tight, new_chat(models), "c")
    assert tight.load("b", lambda: ConversationCache(models)) is None
    for name in ("a", "c"):
        assert tight.load(name, lambda: ConversationCache(models)) is not None


@table("identity", [{"target": "a", "draft": "other"}, {"target": "a"}])
def test_with_another_draft_the_targets_part_is_used(
    identity: dict[str, str], chat: Chat, models: ModelPair, tmp_path: Path
) -> None:
    place = tmp_path / str(len(identity))
    save(Snapshots(place, BUDGET, identity), chat)
    loaded = Snapshots(place, BUDGET, IDENTITY).load("c", lambda: ConversationCache(models))
    assert loaded is not None
    assert same(loaded, chat.conversation)
    assert loaded.draft is None or len(loaded.draft) == 0


def test_a_snapshot_of_another_target_is_kept_for_it(
    chat: Chat, models: ModelPair, snapshots: Snapshots, tmp_path: Path
) -> None:
    save(snapshots, chat)
    other = Snapshots(tmp_path / "snapshots", BUDGET, {"target": "other"})
    for _ in range(2):
        with pytest.raises(OtherModels, match="made with other models or other versions"):
            other.load("c", lambda: ConversationCache(models))
    save(other, chat)
    other.discard("c")
    loaded = snapshots.load("c", lambda: ConversationCache(models))
    assert loaded is not None
    assert same(loaded, chat.conversation)
    other.delete("c")
    assert snapshots.load("c", lambda: ConversationCache(models)) is None
    assert not list((tmp_path / "snapshots").iterdir())


def branch(chat: Chat, models: ModelPair) -> Chat:
    """A conversation that continues another one's cache, up to its answer."""
    first, _, _ = conversation()
    twin = Chat(models.target.model)
    twin.conversation.replace_target(chat.conversation.target.fork())
    twin.write(first, np.arange(9, dtype=np.int32))
    return twin


def test_manifests_are_read_once_unless_changed(
    tmp_path: Path, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not read again in every turn."""
    folder, read = tmp_path / "snapshots", list[str]()
    save(Snapshots(folder, BUDGET, {"target": "other"}), chat, "other")
    own = Snapshots(folder, BUDGET, IDENTITY)
    for name in ("own", "b"):
        save(own, chat, name)
    damaged = own.folder_of("b") / MANIFEST
    damaged.write_text(damaged.read_text() + " ")

    def counted(folder: Path) -> str:
        read.append(folder.parent.name)
        return read_manifest(folder)

    monkeypatch.setattr(snapshot, "read_manifest", counted)
    index, ids = Snapshots(folder, BUDGET, IDENTITY).index, chat.conversation.target.ids
    for _ in range(3):
        assert index.find_longest(ids, dense=False)[0] in ("", "own")
    assert sorted(read) == sorted(snapshot_folder(folder, name).name for name in ("b", "own"))
    save(Snapshots(folder, BUDGET, IDENTITY), chat, "a")
    read.clear()
    index.find_longest(ids, dense=False)
    assert len(read) == 1, "one that was changed is read again"


def test_shared_blocks_are_on_the_disk_once(
    snapshots: Snapshots, chat: Chat, models: ModelPair, tmp_path: Path
) -> None:
    save(snapshots, chat, "a")
    one = folder_bytes(tmp_path)
    other = branch(chat, models)
    save(snapshots, other, "b")
    assert folder_bytes(tmp_path) < 1.5 * one, "and the tokens, and the last blocks"
    for gone, left, expected in (("a", "b", other), ("b", "c", chat)):
        save(snapshots, chat, "c")
        snapshots.delete(gone)
        loaded = snapshots.load(left, lambda: ConversationCache(models))
        assert loaded is not None
        assert same(loaded, expected.conversation)
    snapshots.delete("c")
    assert not folder_bytes(tmp_path)


def test_a_save_links_to_other_snapshots_if_one_is_deleted_meanwhile(
    snapshots: Snapshots, chat: Chat, models: ModelPair, tmp_path: Path
) -> None:
    def inodes(name: str) -> dict[str, int]:
        files = snapshot_folder(tmp_path / "snapshots", name).glob("*-rows-*")
        return {f.name.partition("-")[2]: f.stat().st_ino for f in files}

    save(snapshots, chat, "a")
    save(snapshots, chat, "b")
    chosen = next(iter(snapshots.index.blocks().values()))[0].parent
    gone, left = (
        ("a", "b") if chosen == snapshot_folder(tmp_path / "snapshots", "a") else ("b", "a")
    )
    saving = snapshots.save("c", chat.conversation)
    next(saving)
    snapshots.delete(gone)
    list(saving)
    assert inodes("c") == inodes(left)


def test_a_later_snapshot_writes_only_new_blocks(
    snapshots: Snapshots, models: ModelPair, tmp_path: Path
) -> None:
    chat = new_chat(models)

    def blocks() -> dict[str, int]:
        files = folder(tmp_path).glob("*-rows-*")
        return {f.name.partition("-")[2]: f.stat().st_ino for f in files}

    save(snapshots, chat)
    before = blocks()
    first, _, _ = conversation()
    chat.write(first, np.arange(3, dtype=np.int32))
    save(snapshots, chat)
    assert len(before.items() - blocks().items()) == 1, "the last one"


def test_without_hard_links_a_block_is_written_again(
    snapshots: Snapshots, chat: Chat, models: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError(errno.EPERM, "no links")))
    for name in ("a", "b", "a"):
        save(snapshots, chat, name)
    snapshots.delete("a")
    loaded = snapshots.load("b", lambda: ConversationCache(models))
    assert loaded is not None
    assert same(loaded, chat.conversation)


def test_the_budget_counts_shared_files_once(
    snapshots: Snapshots, chat: Chat, models: ModelPair, tmp_path: Path
) -> None:
    save(snapshots, chat, "a")
    one = folder_bytes(tmp_path)
    tight = Snapshots(tmp_path / "snapshots", int(1.5 * one), IDENTITY)
    save(tight, branch(chat, models), "b")
    assert tight.load("a", lambda: ConversationCache(models)) is not None
    save(tight, new_chat(models), "c")
    assert folder_bytes(tmp_path) <= 1.5 * one
    assert tight.load("c", lambda: ConversationCache(models)) is not None
    assert len(list((tmp_path / "snapshots").iterdir())) < 3


def test_with_a_small_budget_the_draft_is_not_saved(tmp_path: Path) -> None:
    loaded = pair(build("llama")).target
    both = ModelPair(loaded, loaded, None, None)  # type: ignore[arg-type]
    first, _, _ = conversation()
    chat = Chat(loaded.model)
    chat.conversation = ConversationCache(both)
    chat.read(first, FIRST)
    draft = chat.conversation.draft
    everything = np.arange(len(first.ids), dtype=np.int32)
    draft.prefill_at(loaded.model, first.ids, everything, StepSize(64), lambda done: None)
    for budget, there in ((BUDGET, len(first.ids)), (chat.conversation.nbytes - 1, 0)):
        snapshots = Snapshots(tmp_path / str(budget), budget, IDENTITY)
        save(snapshots, chat)
        again = snapshots.load("c", lambda: ConversationCache(both))
        assert same(again, chat.conversation)
        assert again.draft is not None
        assert len(again.draft) == there


def test_conversations_with_any_name_can_be_saved(
    snapshots: Snapshots, chat: Chat, models: ModelPair, tmp_path: Path
) -> None:
    for name in ("../../x", "", "a/b", "\0", "ä" * 300, "\udc80"):
        save(snapshots, chat, name)
        assert snapshots.load(name, lambda: ConversationCache(models)) is not None
    assert len(list((tmp_path / "snapshots").iterdir())) == 6
    shutil.rmtree(tmp_path / "snapshots")


GB = 10**9


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(900 * GB, 0, 300 * GB))


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize(
    ("weights", "limit"),
    [
        (16_000_000, MIN_ON_DISK),
        (350_000_000, 7 * GB),
        (5 * GB, MAX_ON_DISK),
    ],
)
def test_a_small_model_does_not_fill_the_disk(tmp_path: Path, weights: int, limit: int) -> None:
    """A model of 4 million parameters used 1.1 GB after half an hour; 20 GB were allowed."""
    assert disk_limit(0, tmp_path / "not" / "there", weights) == limit


def test_a_tenth_of_a_small_disk_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 9 * GB - 1000))
    (tmp_path / "saved").write_bytes(bytes(1000))
    assert disk_limit(0, tmp_path, 5 * GB) == 9 * GB // 10


@pytest.mark.usefixtures("disk")
def test_the_limit_set_by_the_user_applies(tmp_path: Path) -> None:
    assert disk_limit(3 * GB, tmp_path, 16_000_000) == 3 * GB


def test_leftover_files_count_towards_the_size(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "stray").write_bytes(bytes(5))
    (tmp_path / "a" / "b" / "1-target-0.safetensors").write_bytes(bytes(70))
    (tmp_path / "a" / "dangling").symlink_to(tmp_path / "nothing")
    assert 75 <= folder_bytes(tmp_path) < 1000
    assert folder_bytes(tmp_path / "nothing") == 0


def saved(folder: Path, *names: str) -> None:
    for name in names:
        snapshot_folder(folder, name).mkdir(parents=True)
        (snapshot_folder(folder, name) / "manifest.json").touch()


def names_in(folder: Path, names: str) -> str:
    return "".join(name for name in names if snapshot_folder(folder, name).exists())


def test_only_snapshots_of_other_conversations_are_removed(tmp_path: Path) -> None:
    remove_other_snapshots(tmp_path / "nothing", "a")
    saved(tmp_path, *"abc")
    (tmp_path / "mine").mkdir()
    snapshot_folder(tmp_path, "d").write_text("mine")
    remove_other_snapshots(tmp_path, ["b", "x"])
    assert names_in(tmp_path, "abc") == "b"
    assert (tmp_path / "mine").is_dir()
    assert snapshot_folder(tmp_path, "d").read_text() == "mine"


@pytest.mark.parametrize("mlx", [True, False])
def test_snapshots_are_deleted_whether_a_pair_is_loaded_or_not(
    tmp_path: Path, mlx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not mlx:
        monkeypatch.setitem(sys.modules, "app.engine.backend.mlx_patches", None)
        monkeypatch.delattr("app.engine.backend.mlx_patches", raising=False)
    saved(tmp_path, *"abc")
    driver = Driver()
    driver.engine.send(PruneSnapshots(str(tmp_path), ("a", "b")))
    driver.engine.send(DropConversation("a", str(tmp_path)))
    driver.engine.send(Close())
    driver.engine.join(LIMIT)
    assert names_in(tmp_path, "abc") == "b"
    assert not driver.of(Failed)


def test_without_a_pair_snapshots_are_deleted_in_the_policys_folder(tmp_path: Path) -> None:
    saved(tmp_path, *"ab")
    driver = Driver()
    driver.engine.send(CachePolicy(snapshot_folder=str(tmp_path)))
    driver.engine.send(DropConversation("a"))
    driver.engine.send(Close())
    driver.engine.join(LIMIT)
    assert names_in(tmp_path, "ab") == "b"

"""How much of the disk snapshots may take, and how much they do."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from app.engine.cache.snapshot_folder import (
    MAX_ON_DISK,
    MIN_ON_DISK,
    disk_limit,
    folder_bytes,
    remove_other_snapshots,
    snapshot_folder,
)
from app.protocol.commands import CachePolicy, Close, DropConversation, PruneSnapshots
from app.protocol.events import Failed
from tests.engine.driver import LIMIT, Driver

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
    """A model of 4 million parameters had 1.1 GB after half an hour, of 20 that it might take."""
    assert disk_limit(0, tmp_path / "not" / "there", weights) == limit


def test_a_tenth_of_a_small_disk_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 9 * GB - 1000))
    (tmp_path / "saved").write_bytes(bytes(1000))
    assert disk_limit(0, tmp_path, 5 * GB) == 9 * GB // 10


@pytest.mark.usefixtures("disk")
def test_what_the_user_set_is_the_limit(tmp_path: Path) -> None:
    assert disk_limit(3 * GB, tmp_path, 16_000_000) == 3 * GB


def test_leftovers_count_too(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "stray").write_bytes(bytes(5))
    (tmp_path / "a" / "b" / "1-target-0.safetensors").write_bytes(bytes(70))
    (tmp_path / "a" / "dangling").symlink_to(tmp_path / "nothing")
    assert 75 <= folder_bytes(tmp_path) < 1000
    assert folder_bytes(tmp_path / "nothing") == 0


def snapshots(folder: Path, *names: str) -> None:
    for name in names:
        snapshot_folder(folder, name).mkdir(parents=True)
        (snapshot_folder(folder, name) / "manifest.json").touch()


def names_in(folder: Path, names: str) -> str:
    return "".join(name for name in names if snapshot_folder(folder, name).exists())


def test_snapshots_of_other_conversations_go_and_nothing_else(tmp_path: Path) -> None:
    remove_other_snapshots(tmp_path / "nothing", "a")
    snapshots(tmp_path, *"abc")
    (tmp_path / "mine").mkdir()
    snapshot_folder(tmp_path, "d").write_text("mine")
    remove_other_snapshots(tmp_path, ["b", "x"])
    assert names_in(tmp_path, "abc") == "b"
    assert (tmp_path / "mine").is_dir()
    assert snapshot_folder(tmp_path, "d").read_text() == "mine"


@pytest.mark.parametrize("mlx", [True, False])
def test_they_are_deleted_whether_a_pair_is_loaded_or_not(
    tmp_path: Path, mlx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not mlx:
        monkeypatch.setitem(sys.modules, "app.engine.backend.mlx_patches", None)
        monkeypatch.delattr("app.engine.backend.mlx_patches", raising=False)
    snapshots(tmp_path, *"abc")
    driver = Driver()
    driver.engine.send(PruneSnapshots(str(tmp_path), ("a", "b")))
    driver.engine.send(DropConversation("a", str(tmp_path)))
    driver.engine.send(Close())
    driver.engine.join(LIMIT)
    assert names_in(tmp_path, "abc") == "b"
    assert not driver.of(Failed)


def test_without_a_pair_they_are_deleted_where_they_were_saved(tmp_path: Path) -> None:
    snapshots(tmp_path, *"ab")
    driver = Driver()
    driver.engine.send(CachePolicy(snapshot_folder=str(tmp_path)))
    driver.engine.send(DropConversation("a"))
    driver.engine.send(Close())
    driver.engine.join(LIMIT)
    assert names_in(tmp_path, "ab") == "b"

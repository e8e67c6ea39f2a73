"""Models that are refused, lists that cannot be true, and disks that fail: nothing is lost and
nothing unverified is found."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.models.errors import DownloadError, ModelError
from app.models.pull import Outcome
from tests.models import pulls
from tests.models.pulls import NAME, Puller, check, refused
from tests.tables import slow, table

ALWAYS = 10_000


# ---------------------------------------------------------------------------- the list


def with_file(path: str, data: bytes = b"x") -> Callable[[dict[str, bytes]], Any]:
    return lambda files: files.update({path: data})


def without(path: str) -> Callable[[dict[str, bytes]], Any]:
    return lambda files: files.pop(path)


REFUSED_FILES = {
    "code": (with_file("modeling_tiny.py"), "contains code"),
    "code in a folder": (with_file("custom/Layers.PY"), "contains code"),
    "model_file": (
        with_file("config.json", b'{"model_type": "qwen3", "model_file": "x.py"}'),
        "model_file",
    ),
    "auto_map": (
        with_file("config.json", b'{"model_type": "qwen3", "auto_map": {"A": "b.C"}}'),
        "auto_map",
    ),
    "auto_map of a tokenizer": (
        with_file("tokenizer_config.json", b'{"auto_map": {"A": "b.C"}}'),
        "auto_map",
    ),
    "no config": (without("config.json"), "no config.json"),
    "no tokenizer": (without("tokenizer.json"), "no tokenizer.json"),
    "a broken config": (with_file("config.json", b"{"), "not valid JSON"),
    "a shard that is not there": (without("model-00002-of-00002.safetensors"), "00002"),
}


@table("name", REFUSED_FILES)
def test_a_model_is_refused_before_its_weights_are_fetched(logged_in: Puller, name: str) -> None:
    change, words = REFUSED_FILES[name]
    files = pulls.tiny_model()
    change(files)
    logged_in.hub.add(NAME, files)
    assert words in refused(logged_in)
    weights = logged_in.hub.repositories[NAME].digest("model-00001-of-00002.safetensors")
    assert not [asked for asked in logged_in.hub.asked if asked.path.endswith(weights)]
    assert logged_in.cache.snapshot_folder(NAME) is None
    assert not logged_in.cache.download_folder(NAME).joinpath("manifest.json").exists()
    check(logged_in)


@pytest.mark.parametrize("path", ["pytorch_model.bin", "original/consolidated.00.pth"])
def test_a_pickle_beside_the_weights_is_left_out(logged_in: Puller, path: str) -> None:
    logged_in.hub.add(NAME, pulls.tiny_model() | {path: b"x"})
    logged_in.pull(NAME)
    folder = logged_in.cache.snapshot_folder(NAME)
    assert folder is not None
    assert not (folder / path).exists()


def test_weights_that_are_only_pickles_are_refused(logged_in: Puller) -> None:
    files = {name: data for name, data in pulls.tiny_model().items() if "safetensors" not in name}
    logged_in.hub.add(NAME, files | {"pytorch_model.bin": b"x"})
    assert "only as pickles" in refused(logged_in)


def test_weights_that_are_none_are_never_published(logged_in: Puller) -> None:
    files = pulls.tiny_model() | {"model-00001-of-00002.safetensors": b"PK\x03\x04" * 5000}
    logged_in.hub.add(NAME, files)
    assert "model-00001-of-00002.safetensors" in refused(logged_in)
    assert logged_in.cache.snapshot_folder(NAME) is None


def entry(**changes: Any) -> dict[str, Any]:
    return {"type": "file", "path": "a.json", "size": 1, "oid": "a" * 40} | changes


BAD_ENTRIES = {
    "up": entry(path="../../../escape.json"),
    "up in the middle": entry(path="a/../../b.json"),
    "absolute": entry(path="/etc/passwd.json"),
    "backslash": entry(path="..\\evil.json"),
    "NUL": entry(path="a\0.json"),
    "escape sequence": entry(path="\x1b]0;evil\x07.json"),
    "no name": entry(path=""),
    "a name that is none": entry(path=3),
    "an endless name": entry(path="a" * 100_000),
    "no size": entry(size=None),
    "a negative size": entry(size=-1),
    "a size that is true": entry(size=True),
    "no digest": entry(oid=None),
    "a digest that is a path": entry(oid="../../../../../../../../../../../../evil"),
    "an LFS digest that is git's": entry(lfs={"oid": "a" * 40, "size": 1}),
    "LFS that is none": entry(lfs="x"),
    "the same name twice": entry(path="config.json"),
    "the same name in capitals": entry(path="CONFIG.json"),
    "no entry": "x",
}


@table("name", BAD_ENTRIES)
def test_a_list_that_cannot_be_right_is_refused(logged_in: Puller, name: str) -> None:
    logged_in.hub.tree = lambda entries: [*entries, BAD_ENTRIES[name]]
    with pytest.raises(ModelError, match="is invalid") as caught:
        logged_in.pull()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    assert not list(logged_in.cache.folder.glob("models--*"))


def test_what_is_not_wanted_may_have_any_name(logged_in: Puller) -> None:
    logged_in.hub.tree = lambda entries: [
        *entries,
        entry(path="bilder/größe.png"),
        entry(path="additional_chat_templates", type="directory"),
        entry(path=".hidden.json"),
    ]
    assert logged_in.pull() is Outcome.DOWNLOADED


def test_a_list_of_many_pages(logged_in: Puller) -> None:
    logged_in.hub.page = 3
    assert logged_in.pull() is Outcome.DOWNLOADED


def test_a_huge_list_is_not_read_to_its_end(logged_in: Puller) -> None:
    many = [entry(path=f"{index}.txt") for index in range(10_000)]
    logged_in.hub.tree = lambda entries: [*entries, *many]
    assert "more than 10,000 files" in refused(logged_in)


def test_a_size_that_lies(logged_in: Puller) -> None:
    def lie(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for each in entries:
            if each["path"].startswith("model-00001"):
                each["lfs"]["size"] += 100
        return entries

    logged_in.hub.tree = lie
    assert "bytes that the hub lists" in refused(logged_in)


def test_a_digest_that_lies(logged_in: Puller) -> None:
    def lie(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for each in entries:
            if each["path"] == "config.json":
                each["oid"] = "0" * 40
        return entries

    logged_in.hub.tree = lie
    assert "wrong digest twice" in refused(logged_in)


# ---------------------------------------------------------------------------- the disk


def test_a_disk_without_room_is_seen_before_the_first_byte(
    logged_in: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=200_000))
    settings = dataclasses.replace(logged_in.settings(), reserve_bytes=1000)
    with pytest.raises(ModelError, match="must stay free"):
        logged_in.pull(settings=settings)
    assert not [asked for asked in logged_in.hub.asked if "resolve" in asked.path]


def test_a_size_beyond_every_disk(logged_in: Puller) -> None:
    logged_in.hub.tree = lambda entries: [*entries, entry(path="big.json", size=10**18)]
    assert "needs 1000000000.0 GB" in refused(logged_in)


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EIO, "cannot be written")]
)
@pytest.mark.parametrize("after", [slow(0), slow(1), 9])
def test_a_disk_that_fails_while_writing(
    logged_in: Puller, monkeypatch: pytest.MonkeyPatch, number: int, words: str, after: int
) -> None:
    opened, calls = Path.open, iter(range(ALWAYS))

    class Failing:
        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, data: bytes) -> None:
            if next(calls) >= after:
                raise OSError(number, os.strerror(number))
            self._file.write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *error: object) -> None:
            self._file.close()

    def opening(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        file = opened(path, mode, *more, **named)
        return Failing(file) if mode == "ab" else file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opening)
        assert words in refused(logged_in)
    assert logged_in.cache.snapshot_folder(NAME) is None
    assert logged_in.pull() is Outcome.DOWNLOADED
    pulls.check_whole(logged_in.cache, logged_in.hub)
    check(logged_in)


@pytest.mark.parametrize("nth", [nth if nth % 5 == 1 else slow(nth) for nth in range(14)])
def test_a_disk_that_fails_at_any_rename(
    logged_in: Puller, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Every step of publishing can be the last one."""
    replace, calls = os.replace, iter(range(ALWAYS))

    def failing(*arguments: Any) -> None:
        if next(calls) == nth * 3:
            raise OSError(errno.EIO, "broken")
        replace(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with contextlib.suppress(DownloadError):
            logged_in.pull()
    check(logged_in)
    logged_in.pull()
    pulls.check_whole(logged_in.cache, logged_in.hub)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_may_not_be_written(logged_in: Puller, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir(mode=0o500)
    assert "cannot be written" in refused(logged_in)


def test_a_file_in_the_place_of_the_cache(logged_in: Puller) -> None:
    logged_in.cache.folder.write_text("not a folder")
    assert "cannot be written" in refused(logged_in)

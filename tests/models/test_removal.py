"""Models are deleted, and verify finds every change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from app.models.cache import ModelCache, VerifyResult, blobs, verify
from app.models.errors import ModelError
from app.models.pull import Outcome
from app.models.removal import removable_size, remove
from app.models.unfinished import unfinished
from tests.models import fake_hub as fake
from tests.models import pulls
from tests.models.fake_hub import FakeHub, Fault
from tests.models.pulls import NAME, Puller


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


# ---------------------------------------------------------------------------- removal


def test_a_model_is_deleted(here: Puller, cache: ModelCache, hub: FakeHub) -> None:
    size = removable_size(cache, NAME)
    assert size > 300_000
    assert remove(cache, NAME) == size
    assert cache.find(NAME) is None
    assert not cache.repository_folder(NAME).exists()
    assert here.pull() is Outcome.DOWNLOADED
    pulls.check_whole(cache, hub)


def test_only_older_commits(here: Puller, cache: ModelCache, hub: FakeHub) -> None:
    """What both commits use stays; what only the old one uses goes."""
    old, new = two_commits(here)
    shared = {blob.name for blob in blobs(cache.repository_folder(NAME))}
    found = cache.find(NAME)
    assert found is not None
    assert 100_000 <= found.older <= 101_000
    assert removable_size(cache, NAME, older=True) == found.older
    assert remove(cache, NAME, older=True) == found.older
    assert len(shared) - len(blobs(cache.repository_folder(NAME))) == 1
    pulls.check_whole(cache, hub)
    pulls.check_clean(cache)
    assert not (cache.repository_folder(NAME) / "snapshots" / old).exists()
    found = cache.find(NAME)
    assert found is not None
    assert (found.older, found.commit) == (0, new)
    for action in (remove, removable_size):
        with pytest.raises(ModelError, match="no older versions"):
            action(cache, NAME, older=True)


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
    remove(cache, NAME)
    pulls.check_whole(cache, hub, "org/twin")
    assert verify(cache, "org/twin").faults == ()


def test_an_unfinished_download_goes_too(puller: Puller, cache: ModelCache, hub: FakeHub) -> None:
    hub.faults = [Fault("model-00002", fake.status(418), 100)]
    with pytest.raises(ModelError):
        puller.pull()
    remove(cache, NAME)
    assert unfinished(cache) == []
    hub.faults = []
    puller.pull()
    pulls.check_whole(cache, hub)


def test_nothing_to_remove(cache: ModelCache) -> None:
    for action in (remove, removable_size):
        with pytest.raises(ModelError, match="is not installed"):
            action(cache, NAME)
        with pytest.raises(ModelError, match="not a model name"):
            action(cache, "../..")


@pytest.mark.parametrize("older", [False, True])
def test_a_removal_that_fails_can_be_repeated(
    here: Puller, cache: ModelCache, monkeypatch: pytest.MonkeyPatch, older: bool, hub: FakeHub
) -> None:
    two_commits(here)
    unlink, calls = os.unlink, iter(range(100))

    def failing(*arguments: Any, **options: Any) -> None:
        if next(calls) == 3:
            raise OSError(5, "broken")
        unlink(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing)
        with pytest.raises(ModelError, match="The model cache cannot be written"):
            remove(cache, NAME, older)
    assert [each.repository for each in cache.installed()] == [NAME], "it is still listed"
    remove(cache, NAME, older)
    if older:
        pulls.check_whole(cache, hub)
        assert len(list((cache.repository_folder(NAME) / "snapshots").iterdir())) == 1
    else:
        assert not cache.repository_folder(NAME).exists()


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

"""Why `app.models.hub` downloads files itself. Each test shows what huggingface_hub does not do;
one that fails says that it does now."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import HfApi, constants, hf_hub_download

from app.models.cache import ModelCache
from app.models.manifest import file_digest
from tests.models import fake_hub as fake
from tests.models.fake_hub import FakeHub, Fault
from tests.models.pulls import NAME, TOKEN, weights

WEIGHTS = "model-00001-of-00002.safetensors"
STORAGE = "storage:/blobs/"


@pytest.fixture(autouse=True)
def without_xet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


def download(hub: FakeHub, cache: ModelCache) -> Path:
    commit = hub.repositories[NAME].commit
    place = {"endpoint": hub.endpoint, "cache_dir": cache.folder, "token": False}
    return Path(hf_hub_download(NAME, WEIGHTS, revision=commit, **place))


def requests(hub: FakeHub) -> list[tuple[int, int] | None]:
    """The ranges that the storage server was asked for."""
    return [asked.range for asked in hub.asked if asked.server == "storage"]


def test_it_starts_an_interrupted_file_again(hub: FakeHub, cache: ModelCache) -> None:
    hub.faults = [Fault(STORAGE, fake.reset(100_000)), Fault(STORAGE, fake.status(500), skip=1)]
    with pytest.raises(httpx2.HTTPError):
        download(hub, cache)
    hub.faults = []
    hub.asked.clear()
    download(hub, cache)
    assert requests(hub) == [None]


KILLED = """
import sys
from huggingface_hub import constants, hf_hub_download
constants.DOWNLOAD_CHUNK_SIZE = 10_000
repository, file, commit, endpoint, folder = sys.argv[1:]
hf_hub_download(
    repository, file, revision=commit, endpoint=endpoint, cache_dir=folder, token=False
)
"""


def test_if_killed_it_leaves_a_part_that_nothing_uses(hub: FakeHub, cache: ModelCache) -> None:
    hub.rate = 500_000
    commit = hub.add(NAME, {WEIGHTS: weights("w", 2_000_000)}).commit
    arguments = [NAME, WEIGHTS, commit, hub.endpoint, str(cache.folder)]
    command = [sys.executable, "-c", KILLED, *arguments]
    process = subprocess.Popen(command, env=os.environ | {"HF_HUB_DISABLE_XET": "1"})
    while not any(part.stat().st_size for part in cache.folder.rglob("*.incomplete")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    hub.rate = 0
    hub.asked.clear()
    download(hub, cache)
    assert requests(hub) == [None]
    assert list(cache.folder.rglob("*.incomplete"))


def test_it_publishes_a_damaged_file(hub: FakeHub, cache: ModelCache) -> None:
    hub.faults = [Fault(STORAGE, fake.flip)]
    published = download(hub, cache).resolve()
    assert file_digest(published, published.name) != published.name


def test_it_waits_as_long_as_the_server_asks(
    hub: FakeHub, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slept(Exception):
        pass

    def sleep(seconds: float) -> None:
        raise Slept(seconds)

    hub.faults = [Fault(STORAGE, fake.status(429, Retry_After="3600"))]
    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(Slept, match="3601"):
        download(hub, cache)


def test_it_sends_the_token_wherever_the_next_page_is(hub: FakeHub) -> None:
    hub.tokens.add(TOKEN)
    hub.faults = [Fault("/tree/", fake.header("Link", f'<{hub.storage}/x>; rel="next"'))]
    with pytest.raises(httpx2.HTTPError):
        list(HfApi(hub.endpoint, token=TOKEN).list_repo_tree(NAME))
    assert hub.asked[-1].server == "storage"
    assert hub.asked[-1].authorization == f"Bearer {TOKEN}"

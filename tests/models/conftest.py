"""A hub on loopback and a cache of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.models.cache import ModelCache
from tests.models.fake_hub import FakeHub
from tests.models.pulls import NAME, TOKEN, Puller, tiny_model


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    hub = FakeHub()
    hub.add(NAME, tiny_model())
    yield hub
    hub.close()


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "hub")


@pytest.fixture
def puller(cache: ModelCache, hub: FakeHub) -> Puller:
    return Puller(cache, hub)


@pytest.fixture
def logged_in(puller: Puller) -> Puller:
    puller.token = TOKEN
    puller.hub.tokens.add(TOKEN)
    return puller

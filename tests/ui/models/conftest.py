"""The models screen on a cache of its own and the hub on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.models.cache import ModelCache
from app.models.catalogue import CatalogueEntry
from app.models.library import Library
from app.models.packaged import SMOLLM2
from app.protocol.commands import Load
from app.settings.file import SettingsFile
from app.ui.app import SpecchatApp
from app.ui.start import Start
from tests.fakes import FakeEngine
from tests.models import files, pulls
from tests.models.fake_hub import FakeHub
from tests.models.test_pairs import SIZES

Here = Callable[..., Awaitable[None]]
Make = Callable[..., SpecchatApp]
BIG, SMALL, OTHER = "org/big-4bit", "org/small-4bit", "org/other"


def model_files(layers: int, size: int = 60_000, seed: int = 0) -> dict[str, bytes]:
    """A model whose memory can be told; those of one seed share a tokenizer."""
    config = {**SIZES, "num_hidden_layers": layers, "quantization": {"bits": 4, "group_size": 64}}
    tokenizer = files.tokenizer(vocab={"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4 + seed})
    return pulls.tiny_model(size, layers) | {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": json.dumps(tokenizer).encode(),
    }


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    hub = FakeHub()
    for name, layers in ((BIG, 30), (SMALL, 2)):
        hub.add(name, model_files(layers))
    hub.add(OTHER, model_files(4, seed=3))
    yield hub
    hub.close()


FEW = ("Qwen3.8-27B-4bit", "snowflake-arctic-embed-xs", SMOLLM2.repository)


class SmallLibrary(Library):
    """With few models of our catalogue: each of its 34 costs a fit with every draft."""

    def entries(self) -> tuple[CatalogueEntry, ...]:
        return tuple(
            each for each in Library.entries(self) if each.custom or each.name.endswith(FEW)
        )


@pytest.fixture
def whole_catalogue() -> None:
    """For tests that look at the catalogue itself."""


@pytest.fixture
def library(tmp_path: Path, hub: FakeHub, request: pytest.FixtureRequest) -> Library:
    """Nothing is here yet, and the user has no catalogue."""
    cache = ModelCache(tmp_path / "hub")
    kind = Library if "whole_catalogue" in request.fixturenames else SmallLibrary
    return kind(cache, tmp_path / "config", pulls.Puller(cache, hub).settings)


@pytest.fixture
def here(library: Library, hub: FakeHub) -> Here:
    """Fetches models, as an earlier run did."""

    async def fetch(*names: str) -> None:
        for name in names:
            await asyncio.to_thread(pulls.Puller(library.cache, hub).pull, name)

    return fetch


@pytest.fixture
def app(library: Library) -> Make:
    def make(engine: FakeEngine | None = None, **more: Any) -> SpecchatApp:
        load = Load("models/target-model", "models/draft-model", ("first", "first-draft"))
        more.setdefault("settings", SettingsFile())
        return SpecchatApp(Start(engine or FakeEngine(), load, library=lambda: library, **more))

    return make

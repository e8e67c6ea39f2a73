"""A tiny pair of models, and a hub on loopback with a cache of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from app.cli.main import run
from tests import tiny
from tests.fakes import FakeEngine
from tests.models import pulls
from tests.models.fake_hub import FakeHub
from tests.models.pulls import NAME

Shell = Callable[..., tuple[int, str, str]]
TEXT = "".join(f"Line {n} says {n * n}.\n" for n in range(60))


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny target and draft, and files to ask about."""
    root = tmp_path_factory.mktemp("room")
    tiny.save(root / "target", "qwen3", 0)
    tiny.save(root / "draft", "qwen3", 1)
    (root / "text.txt").write_text(TEXT)
    (root / "binary").write_bytes(b"\x00\x01\x02")
    (root / "\x1b[31mred.txt").write_text("Red.")
    (root / "empty").mkdir()
    return root


@pytest.fixture(scope="module")
def unknown(room: Path) -> Path:
    """A model of an architecture that there is not."""
    folder = tiny.save(room / "unknown")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "nope"}))
    return folder


def without_models(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """From now on `specchat ask` loads no model. Returns the engines that it starts instead."""
    started: list[FakeEngine] = []

    def start(load_spread: object) -> FakeEngine:
        started.append(FakeEngine())
        return started[-1]

    monkeypatch.setattr("app.cli.ask.MlxEngine", start)
    return started


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """For tests of what is asked and kept: no model is loaded."""
    return without_models(monkeypatch)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    hub = FakeHub()
    hub.add(NAME, pulls.tiny_model())
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    yield hub
    hub.close()


@pytest.fixture
def shell(hub: FakeHub, home: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs `specchat models` with these arguments; returns status, output and errors."""

    def act(*arguments: str) -> tuple[int, str, str]:
        status = run(["models", *arguments])
        return status, *capsys.readouterr()

    return act

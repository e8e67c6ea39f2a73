"""A hub on loopback and a cache of one's own, for the commands about models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from app.cli.main import run
from tests.models import pulls
from tests.models.fake_hub import FakeHub
from tests.models.pulls import NAME

Shell = Callable[..., tuple[int, str, str]]


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

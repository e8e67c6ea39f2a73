"""Tiny models in folders, and an engine that has loaded a pair of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from app.protocol.events import Loaded
from tests import tiny
from tests.engine.driver import Driver


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "target": tiny.save(root / "target", "qwen3", 0),
        "draft": tiny.save(root / "draft", "qwen3", 1),
        "hybrid": tiny.save(root / "hybrid", "qwen3_next", 2),
        "sliding": tiny.save(root / "sliding", "gpt_oss", 2),
        "gpt2": tiny.save(root / "gpt2", "gpt2", 2),
        "gemma2": tiny.save(root / "gemma2", "gemma2", 2),
        "bf16": tiny.save(root / "bf16", "qwen3", 0, mx.bfloat16),
        "short": tiny.save(root / "short", "qwen3", 0, max_position_embeddings=500),
    }


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.on_event = lambda event: None
    driver.close()


@pytest.fixture
def loaded(driver: Driver, folders: dict[str, Path]) -> Driver:
    event = driver.load(folders["target"], folders["draft"])
    assert isinstance(event, Loaded)
    assert event.dense_only is None
    return driver

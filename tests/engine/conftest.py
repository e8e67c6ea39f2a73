"""Tiny models in folders, and an engine that has loaded a pair of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_tokenizer

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
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


@pytest.fixture(scope="session")
def models() -> dict[str, Any]:
    """The oracle's architectures."""
    return {name: tiny.build(name) for name in tiny.ORACLE}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A byte tokenizer with tags for thinking."""
    folder = tiny.save(tmp_path_factory.mktemp("thinker"))
    backend = tiny.byte_tokenizer()
    backend.add_tokens(["<think>", "</think>"])
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.on_event = lambda event: None
    driver.close()


@pytest.fixture(scope="module")
def shared(folders: dict[str, Path]) -> Iterator[Driver]:
    """The engine of a module's tests, with the pair loaded. Use it through `loaded`."""
    driver = Driver()
    event = driver.load(folders["target"], folders["draft"])
    assert event.dense_only is None
    yield driver
    driver.on_event = lambda event: None
    driver.close()


@pytest.fixture
def loaded(shared: Driver) -> Driver:
    """The module's engine as if it had just loaded the pair. A test of loading, losing or memory
    takes `driver`, a new engine, instead."""
    return shared.fresh()


@pytest.fixture(scope="module")
def writer() -> Iterator[EngineSession]:
    """The demo pair with `only_quotes` off, so that the target writes its answers."""
    with EngineSession() as session:
        session.load(replace(resolve_pair(), only_quotes=False))
        yield session

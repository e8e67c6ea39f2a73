from __future__ import annotations

from pathlib import Path

import pytest

from app.models.cache import ModelCache


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "hub")

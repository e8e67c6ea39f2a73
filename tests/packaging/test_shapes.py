"""What is shipped of the catalogue's models is what mlx-lm makes of them now."""

from __future__ import annotations

import json

import pytest
import shapes

from app.models.architecture import digest, measure

STORED = json.loads((shapes.MODELS / "shapes.json").read_text("utf-8"))
STALE = "run `python packaging/shapes.py`"


def test_every_model_of_the_catalogue_is_stored() -> None:
    assert set(STORED) == {digest(config) for config in shapes.configs()}, STALE


def test_the_embedded_pair_is_stored_as_it_is() -> None:
    for config in shapes.configs()[-2:]:
        assert STORED[digest(config)] == measure(config), STALE


@pytest.mark.slow
def test_all_are_stored_as_they_are() -> None:
    for config in shapes.configs():
        assert STORED[digest(config)] == measure(config), STALE

"""What is computed for public models is what is published of them, and what the docs say."""

from __future__ import annotations

import pytest

from app.models.architecture import parse_architecture
from app.models.catalogue import catalogue
from tests.models.model_table import HEAD, PublicModel, cells, public_models, rows_in_docs
from tests.tables import table

MODELS = public_models()
CATALOGUED = {
    entry.name
    for entry in catalogue()
    if not (entry.architecture and entry.architecture.is_encoder)
}
IN_DOCS = {row[1]: row for row in rows_in_docs()}


def test_there_are_many_of_many_architectures() -> None:
    assert len({model.name for model in MODELS}) == len(MODELS) >= 60
    assert len({row[0] for row in IN_DOCS.values()}) >= 25
    assert sum(model.published > 0 for model in MODELS) >= 50
    assert all(model.sources for model in MODELS)
    assert IN_DOCS.keys() == {model.name for model in MODELS}
    packaged = {name for name in CATALOGUED if name.startswith("local/")}
    assert IN_DOCS.keys() >= CATALOGUED - packaged


def test_their_weights_are_as_large_as_their_files() -> None:
    differences = [row[HEAD.index("difference")] for row in IN_DOCS.values()]
    assert all(abs(float(each.rstrip("%"))) <= 2 for each in differences if each)


@table("model", [model for model in MODELS if model.name in CATALOGUED])
def test_the_table_in_the_docs_is_up_to_date(model: PublicModel) -> None:
    """Otherwise run `python -m tests.models.model_table`."""
    assert IN_DOCS[model.name] == cells(model, parse_architecture(model.config))


@pytest.mark.slow
@table("model", [model for model in MODELS if model.name not in CATALOGUED])
def test_so_it_is_for_models_outside_the_catalogue(model: PublicModel) -> None:
    assert IN_DOCS[model.name] == cells(model, parse_architecture(model.config))

"""The converted models compute what other implementations do with the original files, and split
texts as llama.cpp does. `tests.real.reference` wrote what they are compared with."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model, load_tokenizer
from numpy.typing import NDArray

from app.models.packaged import SMOLLM2, PackagedModel
from tests.real.packages import GEMMA3
from tests.real.reference import FILE, READ, digest, positions

pytestmark = pytest.mark.real
MODELS = pytest.mark.parametrize(
    ("model", "fixture"), [(SMOLLM2, "smollm2"), (GEMMA3, "gemma3")], ids=["smollm2", "gemma3"]
)
MIN_COSINE = 1 - 1e-8
"""Measured: within 2e-11 of 1."""


@cache
def reference(model: PackagedModel) -> dict[str, NDArray[Any]]:
    with np.load(FILE) as file:
        names = [name for name in file.files if name.startswith(f"{model.name}/")]
        return {name.partition("/")[2]: file[name] for name in names}


@pytest.mark.skipif(sys.platform != "linux", reason="weights are dequantised only on Linux")
@MODELS
def test_logits_are_those_of_torch(
    model: PackagedModel, fixture: str, request: pytest.FixtureRequest
) -> None:
    expected = reference(model)
    compute, _ = load_model(request.getfixturevalue(fixture))
    for group in READ:
        ids = expected[f"ids/{group}"]
        rows = compute(mx.array(ids)[None])[0, mx.array(positions(ids))]
        ours = np.array(rows[:, mx.array(expected["sample"])], np.float64)
        theirs = expected[f"logits/{group}"].astype(np.float64)
        lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        cosines = (ours * theirs).sum(axis=1) / lengths
        assert cosines.min() >= MIN_COSINE, group
        assert rows.argmax(axis=1).tolist() == expected[f"top/{group}"].tolist(), group


@MODELS
def test_texts_have_the_ids_of_llama_cpp(
    model: PackagedModel, fixture: str, request: pytest.FixtureRequest, texts: dict[str, list[str]]
) -> None:
    folder: Path = request.getfixturevalue(fixture)
    expected, tokenizer = reference(model), load_tokenizer(folder)
    assert sum(map(len, texts.values())) > 2000
    for group, lines in texts.items():
        pairs = zip(lines, expected[f"digests/{group}"].tolist(), strict=True)
        wrong = [line for line, wanted in pairs if digest(tokenizer.encode(line)) != wanted]
        assert wrong == [], group

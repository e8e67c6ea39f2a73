"""Estimates for real configurations stay what they were: `estimates.json` has them as first
computed, by source. Change it only with a reason to estimate differently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.engine.backend import CPU, GPU
from app.engine.memory import Transient
from app.models import fit
from app.models.architecture import parse_architecture
from app.models.fit import ModelSize
from tests.models.test_architecture import TABLE

ESTIMATES = json.loads((Path(__file__).parent / "estimates.json").read_text("utf-8"))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["source"].split(",")[0])
def test_estimates_are_what_they_were(row: dict) -> None:  # type: ignore[type-arg]
    config = row["numbers"]
    shape = parse_architecture(config)
    weights = int(shape.parameters * 0.55)
    target, draft = ModelSize("", shape, weights), ModelSize("", shape, weights // 9)
    found = [
        fit.cache_bytes(shape, 50_000),
        fit.step_bytes(shape, 50_000),
        fit.scoring_bytes(shape, 50_000),
        fit.peak_bytes(target, draft, 30_000),
        fit.sparse_peak_bytes(target, draft, 30_000),
    ]
    for backend, quantised in ((CPU, False), (GPU, False), (GPU, True)):
        transient = Transient.of(config, 2, quantised, shape.has_sinks, backend)
        found += [int(transient.bytes(256, 50_000)), transient.largest_step(1 << 30, 50_000)]
    assert found == ESTIMATES[row["source"].split(",")[0]]

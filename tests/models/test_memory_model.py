"""Estimates for real configurations stay what they were: `estimates.json` has them by source.
Change it only with a reason: `python -m tests.models.test_memory_model` records it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.engine.backend.device import CPU, GPU
from app.engine.cache.sizes import Transient
from app.models import fit
from app.models.architecture import parse_architecture
from app.models.fit import ModelSize
from app.protocol.options import DEFAULT_KEEP_RATIO
from tests.models.test_architecture import TABLE
from tests.tables import table

FILE = Path(__file__).parent / "estimates.json"
ESTIMATES = json.loads(FILE.read_text("utf-8"))


def name(row: dict[str, Any]) -> str:
    return str(row["source"]).split(",")[0]


def estimates(row: dict[str, Any]) -> list[int]:
    """Bytes at 50,000 tokens of a cache, a step and scoring, the peaks at 30,000; and for each
    backend the bytes of a step of 256 tokens, and the largest step in 1 GiB."""
    config = row["numbers"]
    shape = parse_architecture(config)
    weights = int(shape.parameters * 0.55)
    target, draft = ModelSize("", shape, weights), ModelSize("", shape, weights // 9)
    found = [
        fit.cache_bytes(shape, 50_000),
        fit.step_bytes(shape, 50_000),
        fit.scoring_bytes(shape, 50_000),
        fit.peak_bytes(target, draft, 30_000),
        fit.peak_bytes(target, draft, 30_000, DEFAULT_KEEP_RATIO),
    ]
    for backend, quantised in ((CPU, False), (GPU, False), (GPU, True)):
        transient = Transient.of(config, 2, quantised, shape.has_sinks, backend)
        found += [int(transient.bytes(256, 50_000)), transient.largest_step(1 << 30, 50_000)]
    return found


@table("row", TABLE)
def test_estimates_are_what_they_were(row: dict[str, Any]) -> None:
    assert estimates(row) == ESTIMATES[name(row)]


if __name__ == "__main__":
    lines = (f" {json.dumps(name(row))}: {json.dumps(estimates(row))}" for row in TABLE)
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")

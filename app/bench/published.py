"""`specchat bench published`: what others measured of real pairs, beside what is predicted here.

Nothing runs: both are arithmetic on public configurations. It shows how far the prediction of
`app/models/speedup.py` can be trusted before a pair was ever timed on this machine.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import TextIO

from app.models import speedup
from app.models.catalogue import catalogue, find
from app.models.fit import ModelSize

KEEP = 0.2
AT = 16
"""Thousands of tokens at which measured and predicted are compared: every pair has it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A pair. `sooner` by thousands of tokens, as measured on an M2 Ultra; `r` and `predicted` are
    ours, at AT."""

    name: str
    sooner: dict[int, float]
    r: float
    predicted: float

    @property
    def measured(self) -> float:
        return self.sooner[AT]


def rows() -> Iterator[Row]:
    """In the order of what was measured."""
    text = (files("app.bench") / "published.toml").read_text("utf-8")
    for pair in tomllib.loads(text)["pair"]:
        target = _sized(pair["target"], pair["target_bits"])
        draft = _sized(pair["draft"], pair["draft_bits"])
        r = speedup.cost_ratio(target, draft, AT * 1024)
        sooner = {int(tokens): float(times) for tokens, times in pair["sooner"].items()}
        yield Row(pair["name"], sooner, r, speedup.speedup(r, KEEP))


def _sized(name: str, bits: float) -> ModelSize:
    entry = find(catalogue(), name)
    if entry is None or entry.architecture is None:
        raise RuntimeError(f"{name} is not in the catalogue")
    return ModelSize(name, entry.architecture, round(entry.architecture.parameters * bits / 8))


def published(as_json: bool, out: TextIO) -> int:
    """Print the rows; returns the exit status."""
    found = list(rows())
    if as_json:
        from app.bench.machine import machine

        pairs = [asdict(row) | {"measured": row.measured} for row in found]
        out.write(json.dumps({"machine": machine(), "keep": KEEP, "at": AT, "rows": pairs}) + "\n")
        return 0
    out.write(f"{f'keep {KEEP:g}, {AT}K tokens':<42}{'measured':>9}{'predicted':>11}{'r':>7}\n")
    for row in found:
        out.write(f"{row.name:<42}{row.measured:9.2f}{row.predicted:11.2f}{row.r:7.3f}\n")
    return 0

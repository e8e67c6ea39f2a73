"""`specchat bench ttft`: how soon the first word comes, by length and keep, beside plain mlx-lm.

In each run, one after the other and on the same random models: plain mlx-lm reads everything with
the target, then with the draft; then a whole sparse turn of ours, from ids to the first token, at
each keep. The prediction is that of the port of SpecPrefill to unified memory (Green 2026, doi
10.5281/zenodo.19120919): 1 / (r + keep + e) times sooner, where r is the draft's share of the dense
reading, and e that of what is neither model's reading. G is predicted / measured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TextIO, TypeVar

import numpy as np

from app.bench.given_ids import plain, sparse_turn
from app.bench.shapes import random_pair, shapes
from app.engine import blas

STEP = 512
T = TypeVar("T")
READING = ("score", "prefill")
"""The phases in which one of the two models reads."""


@dataclass(frozen=True, slots=True)
class Row:
    """One length and keep of one run, in seconds; `peak` and `dense_peak` are bytes of MLX's."""

    length: int
    keep: float
    kept: int
    dense: float
    draft: float
    ttft: float
    phases: dict[str, float]
    peak: int
    dense_peak: int

    @property
    def speedup(self) -> float:
        return self.dense / self.ttft

    @property
    def r(self) -> float:
        return self.draft / self.dense

    @property
    def e(self) -> float:
        return (self.ttft - sum(self.phases.get(name, 0.0) for name in READING)) / self.dense

    @property
    def predicted(self) -> float:
        return 1 / (self.r + self.kept / self.length + self.e)

    @property
    def g(self) -> float:
        return self.predicted / self.speedup


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured."""

    shape: str
    scale: float
    bits: int | None
    lengths: tuple[int, ...]
    keeps: tuple[float, ...]
    runs: int


def ttft(asked: Asked, as_json: bool, out: TextIO) -> int:
    """Measure and print medians; returns the exit status. Raises UserError for an unknown shape."""
    blas.load_openblas()
    from app.engine import seams

    seams.install()
    rows = list(_measure(asked))
    from app.bench.machine import machine

    report = _json if as_json else _table
    out.write(report(asked, rows, machine()))
    return 0


def _measure(asked: Asked) -> Iterator[list[Row]]:
    """The runs of each length and keep. The first run of a length warms up and is not counted."""
    target, draft = random_pair(asked.shape, asked.scale, asked.bits)
    vocabulary = shapes()[asked.shape]["target"]["vocab_size"]
    chance = np.random.default_rng(0)
    for length in asked.lengths:
        ids = chance.integers(3, vocabulary, length).astype(np.int32)
        found: dict[float, list[Row]] = {keep: [] for keep in asked.keeps}
        for run in range(asked.runs + 1):
            dense, dense_peak = _peaked(partial(plain, target, ids, STEP))
            skimmed = plain(draft, ids, STEP)
            for keep in asked.keeps:
                figures, peak = _peaked(partial(sparse_turn, target, draft, ids, keep, STEP))
                phases = {str(part.phase): part.seconds for part in figures.phases}
                row = Row(
                    length,
                    keep,
                    figures.kept_tokens,
                    dense,
                    skimmed,
                    figures.ttft,
                    phases,
                    peak,
                    dense_peak,
                )
                found[keep] += [row] if run else []
        yield from found.values()


def _peaked(measure: Callable[[], T]) -> tuple[T, int]:
    import mlx.core as mx

    mx.clear_cache()
    mx.reset_peak_memory()
    return measure(), mx.get_peak_memory()


def _median(rows: Sequence[Row], figure: Callable[[Row], float]) -> float:
    return statistics.median(figure(row) for row in rows)


COLUMNS: tuple[tuple[str, int, Callable[[Row], float], str], ...] = (
    ("dense", 9, lambda row: row.dense, ".3f"),
    ("draft", 8, lambda row: row.phases.get("score", 0.0), ".3f"),
    ("look", 8, lambda row: row.phases.get("lookahead", 0.0), ".3f"),
    ("select", 8, lambda row: row.phases.get("select", 0.0), ".4f"),
    ("target", 8, lambda row: row.phases.get("prefill", 0.0), ".3f"),
    ("TTFT", 9, lambda row: row.ttft, ".3f"),
    ("sooner", 8, lambda row: row.speedup, ".2f"),
    ("1/(r+k+e)", 11, lambda row: row.predicted, ".2f"),
    ("r", 7, lambda row: row.r, ".3f"),
    ("e", 7, lambda row: row.e, ".3f"),
    ("G", 6, lambda row: row.g, ".2f"),
    ("memory", 8, lambda row: row.peak / row.dense_peak, ".2f"),
)
"""Heading, width, what of a row, and how it is written."""


def _table(asked: Asked, measured: list[list[Row]], described: str) -> str:
    heading = "".join(f"{name:>{width}}" for name, width, _, _ in COLUMNS)
    lines = [
        f"{asked.shape}, {asked.scale:.0%} of the layers, random weights"
        + (f" in {asked.bits} bits" if asked.bits else "")
        + f", steps of {STEP}, medians of {asked.runs}, in seconds",
        described,
        "",
        f"{'tokens':>7}{'keep':>6}{heading}",
    ]
    for rows in measured:
        first = rows[0]
        figures = "".join(
            f"{_median(rows, figure):>{width}{form}}" for _, width, figure, form in COLUMNS
        )
        lines.append(f"{first.length:>7,}{first.keep:>6.2f}{figures}")
    lines += ["", "memory: the peak of the sparse turn, as a share of the dense one's"]
    return "\n".join(lines) + "\n"


def _json(asked: Asked, measured: list[list[Row]], described: str) -> str:
    rows = [
        {**asdict(row), "speedup": row.speedup, "predicted": row.predicted, "r": row.r, "e": row.e}
        for rows in measured
        for row in rows
    ]
    return json.dumps({"machine": described, "asked": asdict(asked), "runs": rows}) + "\n"

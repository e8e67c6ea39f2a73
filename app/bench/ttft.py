"""`specchat bench ttft`: how soon the first token comes, by length and keep.

In each run, one after the other and on the same random models: plain mlx-lm reads everything with
the target, then our engine does, and then a whole sparse turn of ours, from ids to the first token,
at each keep. So what reading sparsely saves is measured in one engine, and that engine is measured
beside mlx-lm on its own. The prediction is that of the port of SpecPrefill to unified memory (Green
2026, doi 10.5281/zenodo.19120919): 1 / (r + keep + e) times sooner, where r is the draft's share of
the dense prefill, and e that of what is neither model's. G is predicted / measured, and all of it
is against our own dense turn.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, TextIO, TypeVar

import numpy as np

from app.bench.median_range import spread
from app.bench.memory_check import check
from app.bench.shapes import random_pair, shapes
from app.bench.token_turn import loaded, plain, turn
from app.engine import blas
from app.errors import UserError
from app.protocol.options import Mode

if TYPE_CHECKING:
    from app.engine.loader import LoadedModel

STEP = 512
T = TypeVar("T")
READING = ("score", "prefill")
"""The phases in which one of the two models reads."""


@dataclass(frozen=True, slots=True)
class Row:
    """One length and keep of one run, in seconds: `plain` mlx-lm's dense prefill, our `dense` turn
    and our sparse one. `peak` and `dense_peak` are bytes of MLX's, of our two turns."""

    length: int
    keep: float
    kept: int
    plain: float
    dense: float
    ttft: float
    phases: dict[str, float]
    peak: int
    dense_peak: int

    @property
    def speedup(self) -> float:
        """By reading sparsely: both turns are ours."""
        return self.dense / self.ttft

    @property
    def engine(self) -> float:
        """Our engine beside mlx-lm: both read everything."""
        return self.plain / self.dense

    @property
    def r(self) -> float:
        return self.phases.get("score", 0.0) / self.dense

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
    target: str | None = None
    """With `draft`, real models instead of a shape."""
    draft: str | None = None


def ttft(asked: Asked, as_json: bool, out: TextIO) -> int:
    """Measure and print medians; returns the exit status. Raises UserError for an unknown shape,
    or a length that does not fit."""
    blas.load_openblas()
    from app.engine import mlx_patches

    mlx_patches.install()
    rows = list(_measure(asked))
    from app.bench.machine import machine

    report = _json if as_json else _table
    out.write(report(asked, rows, machine()))
    return 0


def _measure(asked: Asked) -> Iterator[list[Row]]:
    """The runs of each length and keep. The first run of a length warms up and is not counted."""
    models, vocabulary = _models(asked)
    target = models[0].model
    check(models[0], asked.lengths, STEP)
    chance = np.random.default_rng(0)
    for length in asked.lengths:
        ids = chance.integers(3, vocabulary, length).astype(np.int32)
        found: dict[float, list[Row]] = {keep: [] for keep in asked.keeps}
        for run in range(asked.runs + 1):
            alone = plain(target, ids, STEP)
            dense, dense_peak = _peaked(partial(turn, models, ids, 1.0, Mode.FULL))
            for keep in asked.keeps:
                figures, peak = _peaked(partial(turn, models, ids, keep))
                phases = {str(part.phase): part.seconds for part in figures.phases}
                row = Row(
                    length,
                    keep,
                    figures.read_tokens,
                    alone,
                    dense.ttft,
                    figures.ttft,
                    phases,
                    peak,
                    dense_peak,
                )
                found[keep] += [row] if run else []
        yield from found.values()


def _models(asked: Asked) -> tuple[list[LoadedModel], int]:
    """Target and draft, and how many tokens both know. Raises UserError."""
    if asked.target is None:
        pair = random_pair(asked.shape, asked.scale, asked.bits)
        configs = [shapes()[asked.shape][name] for name in ("target", "draft")]
        models = [loaded(model, about, STEP) for model, about in zip(pair, configs, strict=True)]
        return models, configs[0]["vocab_size"]
    from app.chat.model_pairs import resolve_pair as located
    from app.engine.loader import load_pair

    found = load_pair(located(asked.target, asked.draft), STEP)
    if found.draft is None or found.dense_only:
        raise UserError(f"There is nothing to compare: {found.dense_only}", "name another pair")
    return [found.target, found.draft], min(found.target.vocab_size, found.draft.vocab_size)


def _peaked(measure: Callable[[], T]) -> tuple[T, int]:
    import mlx.core as mx

    mx.clear_cache()
    mx.reset_peak_memory()
    return measure(), mx.get_peak_memory()


def _median(rows: Sequence[Row], figure: Callable[[Row], float]) -> float:
    return statistics.median(figure(row) for row in rows)


COLUMNS: tuple[tuple[str, int, Callable[[Row], float], str], ...] = (
    ("plain", 9, lambda row: row.plain, ".3f"),
    ("dense", 9, lambda row: row.dense, ".3f"),
    ("draft", 8, lambda row: row.phases.get("score", 0.0), ".3f"),
    ("look", 8, lambda row: row.phases.get("lookahead", 0.0), ".3f"),
    ("select", 8, lambda row: row.phases.get("select", 0.0), ".4f"),
    ("target", 8, lambda row: row.phases.get("prefill", 0.0), ".3f"),
    ("TTFT", 9, lambda row: row.ttft, ".3f"),
    ("sooner", 8, lambda row: row.speedup, ".2f"),
    ("engine", 8, lambda row: row.engine, ".2f"),
    ("1/(r+k+e)", 11, lambda row: row.predicted, ".2f"),
    ("r", 7, lambda row: row.r, ".3f"),
    ("e", 7, lambda row: row.e, ".3f"),
    ("G", 6, lambda row: row.g, ".2f"),
    ("memory", 8, lambda row: row.peak / row.dense_peak, ".2f"),
)
"""Heading, width, what of a row, and how it is written."""
LEGEND = (
    "plain: mlx-lm reads everything; dense: our engine does; TTFT: our sparse turn",
    "sooner: dense / TTFT, what reading sparsely saves; engine: plain / dense, about 1 on a Mac",
    "memory: the peak of our sparse turn, as a share of our dense one's",
)


def _table(asked: Asked, measured: list[list[Row]], described: str) -> str:
    heading = "".join(f"{name:>{width}}" for name, width, _, _ in COLUMNS)
    lines = [
        f"{asked.shape}, {asked.scale:.0%} of the layers, random weights"
        + (f" in {asked.bits} bits" if asked.bits else "")
        if asked.target is None
        else f"{asked.target} with {asked.draft or 'its draft'}",
        f"steps of {STEP}, medians of {asked.runs}, in seconds; the range is of `sooner`",
        described,
        "",
        f"{'tokens':>7}{'keep':>6}{heading}   range",
    ]
    for rows in measured:
        first = rows[0]
        figures = "".join(
            f"{_median(rows, figure):>{width}{form}}" for _, width, figure, form in COLUMNS
        )
        sooner = spread(row.speedup for row in rows)
        around = f"{sooner.least:.2f} to {sooner.most:.2f}"
        lines.append(f"{first.length:>7,}{first.keep:>6.2f}{figures}   {around}")
    lines += ["", *LEGEND]
    return "\n".join(lines) + "\n"


def _json(asked: Asked, measured: list[list[Row]], described: str) -> str:
    shares = ("speedup", "engine", "predicted", "r", "e", "g")
    runs = [
        asdict(row) | {name: getattr(row, name) for name in shares}
        for rows in measured
        for row in rows
    ]
    rows = [
        {
            "length": rows[0].length,
            "keep": rows[0].keep,
            "kept": rows[0].kept,
            "figures": {name: spread(map(figure, rows)) for name, _, figure, _ in COLUMNS},
        }
        for rows in measured
    ]
    figures = {"machine": described, "asked": asdict(asked), "rows": rows, "runs": runs}
    return json.dumps(figures) + "\n"

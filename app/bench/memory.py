"""`specchat bench memory`: the peak of MLX's memory in a sparse turn and in a dense one.

Random models. At each length and in each run, after everything else was let go: plain mlx-lm reads
all with the target; a dense turn of ours; a sparse one. Weights are counted where they are needed:
the draft's only in the sparse turn. Beside each of ours stands what was foreseen for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from app.bench.median_range import spread
from app.bench.shapes import random_pair, shapes
from app.bench.token_turn import loaded, plain, turn
from app.engine import blas
from app.protocol.options import Mode

if TYPE_CHECKING:
    from app.engine.loader import LoadedModel

STEP = 512


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured."""

    shape: str
    lengths: tuple[int, ...]
    keep: float
    runs: int


@dataclass(frozen=True, slots=True)
class Row:
    """One length of one run, bytes; `foreseen` of ours."""

    length: int
    kept: int
    plain: int
    dense: int
    sparse: int
    foreseen_dense: float
    foreseen_sparse: float

    @property
    def ratio(self) -> float:
        return self.sparse / self.plain


def memory(asked: Asked, as_json: bool, out: TextIO) -> int:
    """Measure and print medians; returns the exit status. Raises UserError for an unknown shape, or
    a length that does not fit."""
    blas.load_openblas()
    from app.engine import mlx_patches

    mlx_patches.install()
    measured = list(_measure(asked))
    from app.bench.machine import machine

    report = _json if as_json else _table
    out.write(report(asked, measured, machine()))
    return 0


def _measure(asked: Asked) -> Iterator[list[Row]]:
    """The runs of each length. One of all kinds before them warms up."""
    from app.bench.memory_check import check

    pair = random_pair(asked.shape)
    configs = [shapes()[asked.shape][name] for name in ("target", "draft")]
    models = [loaded(model, config, STEP) for model, config in zip(pair, configs, strict=True)]
    check(models[0], asked.lengths, STEP)
    vocabulary, chance = configs[0]["vocab_size"], np.random.default_rng(0)
    for length in asked.lengths:
        ids = chance.integers(3, vocabulary, length).astype(np.int32)
        yield [_row(models, ids, asked.keep) for _ in range(asked.runs)]


def _row(models: list[LoadedModel], ids: Any, keep: float) -> Row:
    target, draft = models
    dense = partial(turn, models, ids, 1.0, Mode.FULL)
    kept = 0

    def sparse() -> None:
        nonlocal kept
        kept = turn(models, ids, keep).read_tokens

    alone = peak(partial(plain, target.model, ids, STEP)) - draft.info.weight_bytes
    ours = peak(dense) - draft.info.weight_bytes
    both = peak(sparse)
    return Row(
        len(ids),
        kept,
        alone,
        ours,
        both,
        target.info.weight_bytes + _reading(target, len(ids), retained=False),
        target.info.weight_bytes
        + draft.info.weight_bytes
        + max(_scoring(draft, len(ids)), _reading(target, kept, retained=True)),
    )


def peak(measure: Callable[[], object]) -> int:
    """Of MLX's memory while it runs, bytes."""
    import gc

    import mlx.core as mx

    gc.collect()
    mx.clear_cache()
    mx.reset_peak_memory()
    measure()
    return mx.get_peak_memory()


def _reading(target: LoadedModel, tokens: int, retained: bool) -> float:
    from app.engine import memory_estimates

    return target.cache_size.bytes(tokens, retained) + memory_estimates.transient_bytes(
        target, STEP, tokens
    )


def _scoring(draft: LoadedModel, tokens: int) -> float:
    from app.engine import memory_estimates

    step = max(
        memory_estimates.transient_bytes(draft, STEP, tokens), draft.transient.scoring(tokens)
    )
    return draft.cache_size.bytes(tokens) + step


def _table(asked: Asked, measured: list[list[Row]], described: str) -> str:
    lines = [
        f"{asked.shape}, keep {asked.keep:.0%}, steps of {STEP}, medians of {asked.runs}, megabytes"
        " with weights",
        described,
        "",
        f"{'tokens':>7}{'read':>8}{'plain':>9}{'dense':>9}{'foreseen':>10}{'sparse':>9}"
        f"{'foreseen':>10}   sparse / plain",
    ]
    for rows in measured:
        first = rows[0]
        figures = {
            name: spread(getattr(row, name) / 1e6 for row in rows).median
            for name in ("plain", "dense", "foreseen_dense", "sparse", "foreseen_sparse")
        }
        lines.append(
            f"{first.length:>7,}{first.kept:>8,}{figures['plain']:>9.0f}{figures['dense']:>9.0f}"
            f"{figures['foreseen_dense']:>10.0f}{figures['sparse']:>9.0f}"
            f"{figures['foreseen_sparse']:>10.0f}   {spread(row.ratio for row in rows).text()}"
        )
    return "\n".join(lines) + "\n"


def _json(asked: Asked, measured: list[list[Row]], described: str) -> str:
    rows = [
        {
            "length": rows[0].length,
            "kept": rows[0].kept,
            "ratio": spread(row.ratio for row in rows),
            "runs": [asdict(row) for row in rows],
        }
        for rows in measured
    ]
    return json.dumps({"machine": described, "asked": asdict(asked), "rows": rows}) + "\n"

"""MLX's peak memory in sparse and dense turns.

For each length, each run measures a dense prefill in mlx-lm, our dense turn, and our sparse turn,
with everything else released. The draft's weights count only in the sparse turn. Models have random
weights.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from app.protocol.options import Mode
from benchmarks.harness import Bench, Column, Goal, Options, Progress, Result, Row, Run, columns
from benchmarks.shapes import random_pair, shapes
from benchmarks.token_turn import check_fits, loaded, plain, turn

if TYPE_CHECKING:
    from app.engine.model.loader import LoadedModel

STEP = 512
MB = 1e6


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    """Raises UserError for an unknown shape, or a length that does not fit."""
    configs = [shapes()[options.shape][name] for name in ("target", "draft")]
    models = [
        loaded(model, config, STEP)
        for model, config in zip(random_pair(options.shape), configs, strict=True)
    ]
    check_fits(models[0], options.lengths, STEP)
    rng = np.random.default_rng(0)
    for length in options.lengths:
        ids = rng.integers(3, configs[0]["vocab_size"], length).astype(np.int32)
        measured = progress.repeat(
            f"{length:,} tokens", partial(_run, models, ids, options.keep), warm_up=False
        )
        runs = [run for _, run in measured]
        yield Row({"length": length, "selected": measured[0][0]}, runs)


def _run(models: list[LoadedModel], ids: Any, keep: float) -> tuple[int, Run]:
    """(number of tokens selected in the sparse turn, megabytes by name)."""
    target, draft = models
    selected = 0

    def sparse_turn() -> None:
        nonlocal selected
        selected = turn(models, ids, keep).read_tokens

    mlx_lm = peak(partial(plain, target.model, ids, STEP)) - draft.info.weight_bytes
    dense = peak(partial(turn, models, ids, 1.0, Mode.FULL)) - draft.info.weight_bytes
    sparse = peak(sparse_turn)
    scoring, prefill = _scoring(draft, len(ids)), _prefill(target, selected, sparse=True)
    weights = target.info.weight_bytes
    run = {
        "plain": mlx_lm,
        "dense": dense,
        "predicted_dense": weights + _prefill(target, len(ids), sparse=False),
        "sparse": sparse,
        "predicted_sparse": weights + draft.info.weight_bytes + max(scoring, prefill),
    }
    return selected, {name: value / MB for name, value in run.items()} | {"ratio": sparse / mlx_lm}


def peak(measure: Callable[[], object]) -> int:
    """MLX's peak memory during `measure`, in bytes."""
    import mlx.core as mx

    gc.collect()
    mx.clear_cache()
    mx.reset_peak_memory()
    measure()
    return mx.get_peak_memory()


def _prefill(target: LoadedModel, tokens: int, sparse: bool) -> float:
    from app.engine.memory.manager import transient_bytes

    return target.cache_size.bytes(tokens, sparse) + transient_bytes(target, STEP, tokens)


def _scoring(draft: LoadedModel, tokens: int) -> float:
    from app.engine.memory.manager import transient_bytes

    step = max(transient_bytes(draft, STEP, tokens), draft.transient.scoring(tokens))
    return draft.cache_size.bytes(tokens) + step


def about(result: Result) -> str:
    return (
        "Peak of MLX's memory in megabytes, with the weights that each turn needs, at keep"
        f" {result.options['keeps'][0]:g}. *Predicted* is the estimate made before a turn starts."
    )


def goals(result: Result) -> Iterator[Goal]:
    for row in result.rows:
        ratio = row.spread("ratio")
        goal = f"{row['length']:,} tokens: a sparse turn needs less than mlx-lm's dense prefill"
        yield Goal(goal, ratio.text(), ratio.median < 1)


BENCH = Bench(
    "memory",
    "peak memory of sparse and full prefill",
    "Memory",
    measure,
    about,
    columns(
        Column("tokens", "length", ","),
        Column("selected", "selected", ","),
        Column("mlx-lm", "plain", ",.0f"),
        Column("dense", "dense", ",.0f"),
        Column("predicted", "predicted_dense", ",.0f"),
        Column("sparse", "sparse", ",.0f"),
        Column("predicted", "predicted_sparse", ",.0f"),
        Column("sparse / mlx-lm", "ratio", spread=True),
    ),
    goals,
    report_args="--length 4k,8k --runs 1",
    quick_args="--length 512 --runs 1",
    flags={"shape": "small", "length": "4k,8k,16k", "keep": "0.2", "runs": "5"},
)

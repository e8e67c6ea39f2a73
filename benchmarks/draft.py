"""Speedup by block-sparse attention in the draft's prefill of a long prompt.

Each run measures, for the same draft, one layer's attention over a whole prefill as computed by
mlx-lm, densely by us, and block-sparse; then the whole prefill densely and block-sparse. Queries,
keys and values are random: the time does not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from app.errors import UserError
from app.models.embedded import EMBEDDED, draft_path
from benchmarks.harness import Bench, Column, Goal, Options, Progress, Result, Row, Run, columns
from benchmarks.shapes import random_pair

STEP = 512
MIN_LENGTH = 1024
Patch = AbstractContextManager[None]


def check(options: Options) -> None:
    """Raises UserError for lengths at which attention is not block-sparse."""
    if min(options.lengths) < MIN_LENGTH:
        raise UserError(
            f"A prompt of {min(options.lengths)} tokens is attended to densely",
            f"give lengths from {MIN_LENGTH:,} on",
        )


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    """Measure the draft of a shape, or the embedded one. Raises UserError for an unknown shape."""
    model = _draft(options.shape)
    heads = _heads(model)
    for length in options.lengths:
        runs = progress.repeat(
            f"{length:,} tokens", partial(_run, model, heads, length), warm_up=False
        )
        yield Row({"length": length}, runs)


def _draft(shape: str) -> Any:
    if shape != EMBEDDED:
        return random_pair(shape)[1]
    from mlx_lm.utils import load_model

    return load_model(draft_path())[0]


def _heads(model: Any) -> tuple[Any, Any]:
    """Queries (1, Hq, 2, D) and keys (1, Hk, 2, D) of one layer's attention."""
    import mlx.core as mx

    from app.engine.backend import mlx_patches
    from app.engine.cache.prefill import forward, make_stock_cache

    observed: list[tuple[Any, Any]] = []
    with mlx_patches.observed_attention(lambda q, k, *_: observed.append((q, k))):
        mx.eval(forward(model, make_stock_cache(model), np.zeros(2, np.int32)))
    return observed[0]


def _run(model: Any, heads: tuple[Any, Any], length: int) -> Run:
    """Seconds and their ratios."""
    from app.engine.backend.mlx_patches import blocked_attention, sparse_attention
    from app.engine.cache.prefill import device_backend
    from app.protocol.options import Blocks

    top = Blocks()
    block = device_backend().query_block
    plain = _attention(heads, length, nullcontext())
    dense = _attention(heads, length, blocked_attention(block))
    sparse = _attention(heads, length, _both(blocked_attention(block), sparse_attention(top)))
    prefill = _prefill(model, length, sparse_attention(None))
    sparse_prefill = _prefill(model, length, sparse_attention(top))
    return {
        "plain": plain,
        "dense": dense,
        "sparse": sparse,
        "of_plain": sparse / plain,
        "of_dense": sparse / dense,
        "prefill": prefill,
        "sparse_prefill": sparse_prefill,
        "of_prefill": sparse_prefill / prefill,
    }


@contextmanager
def _both(first: Patch, second: Patch) -> Iterator[None]:
    with first, second:
        yield


def _attention(heads: tuple[Any, Any], length: int, patch: Patch) -> float:
    """Seconds of one layer's attention in a prefill of `length` tokens."""
    import mlx.core as mx

    q, k, v = (
        mx.random.normal((1, like.shape[1], length, like.shape[3])).astype(like.dtype)
        for like in (heads[0], heads[1], heads[1])
    )
    scale = q.shape[3] ** -0.5
    mx.eval(q, k, v)
    started = time.perf_counter()
    with patch:
        for start in range(0, length, STEP):
            end = min(start + STEP, length)
            step = q[:, :, start:end], k[:, :, :end], v[:, :, :end]
            mx.eval(mx.fast.scaled_dot_product_attention(*step, scale=scale, mask="causal"))
    return time.perf_counter() - started


def _prefill(model: Any, length: int, patch: Patch) -> float:
    """Seconds of the draft's whole prefill."""
    from app.engine.cache.prefill import StepSize, make_stock_cache, prefill

    ids = np.random.default_rng(0).integers(3, model.args.vocab_size, length).astype(np.int32)
    started = time.perf_counter()
    with patch:
        prefill(model, make_stock_cache(model), ids, None, StepSize(STEP), lambda done: None)
    return time.perf_counter() - started


def about(result: Result) -> str:
    return (
        f"The draft of the {result.options['shapes'][0]} pair, whose attention is block-sparse"
        f" while it prefills a long prompt in steps of {STEP} tokens: seconds for one layer's"
        " attention over the whole prompt, as mlx-lm computes it, densely by us, and block-sparse;"
        " then for the whole prefill."
    )


def goals(result: Result) -> Iterator[Goal]:
    longest = result.rows[-1]
    for figure, name in (("of_plain", "mlx-lm's"), ("of_dense", "ours")):
        ratio = longest.spread(figure)
        goal = f"attention at {longest['length']:,} tokens at most a third of dense, {name}"
        yield Goal(goal, ratio.text(), ratio.median <= 1 / 3)


BENCH = Bench(
    "draft",
    "speedup of the draft's block-sparse attention",
    "Long prompts",
    measure,
    about,
    columns(
        Column("tokens", "length", ","),
        Column("mlx-lm", "plain"),
        Column("dense", "dense"),
        Column("block-sparse", "sparse"),
        Column("/ mlx-lm", "of_plain"),
        Column("/ dense", "of_dense", spread=True),
        Column("prefill, dense", "prefill"),
        Column("block-sparse", "sparse_prefill"),
        Column("/ dense", "of_prefill", spread=True),
    ),
    goals,
    report_args="--runs 3",
    quick_args="--length 1k,4k --runs 1",
    flags={"shape": "embedded", "length": "8k,16k,32k", "runs": "5"},
    check=check,
)

"""`specchat bench draft`: what block-sparse attention saves while a draft reads a long prompt.

In each run, at each length and on the same draft, one after the other: the attention of one layer
over a whole prefill, as plain mlx-lm does it, as we do it densely, and block-sparse; then the whole
prefill, densely and block-sparse. Queries, keys and values of the attention are random: its time
does not depend on them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import numpy as np

from app.bench.median_range import spread
from app.bench.shapes import random_pair
from app.engine import blas
from app.models.embedded import EMBEDDED, draft_path
from app.protocol.options import DEFAULT_TUNING

STEP = 512
SHORTEST = 1024
Way = AbstractContextManager[None]


@dataclass(frozen=True, slots=True)
class Row:
    """One length of one run, in seconds: one layer's attention, and the draft's whole prefill."""

    length: int
    plain: float
    dense: float
    sparse: float
    prefill_dense: float
    prefill_sparse: float

    @property
    def of_plain(self) -> float:
        return self.sparse / self.plain

    @property
    def of_dense(self) -> float:
        return self.sparse / self.dense

    @property
    def of_prefill(self) -> float:
        return self.prefill_sparse / self.prefill_dense


def draft(shape: str, lengths: Sequence[int], runs: int, as_json: bool, out: TextIO) -> int:
    """Measure the draft of `shape`, a pair without weights or the embedded one, and print medians;
    returns the exit status. Raises UserError for an unknown shape."""
    blas.load_openblas()
    from app.engine import mlx_patches

    mlx_patches.install()
    model = _draft(shape)
    heads = _heads(model)
    measured = [[_row(model, heads, length) for _ in range(max(runs, 1))] for length in lengths]
    from app.bench.machine import machine

    report = _json if as_json else _table
    out.write(report(shape, measured, machine()))
    return 0


def _draft(shape: str) -> Any:
    if shape != EMBEDDED:
        return random_pair(shape)[1]
    from mlx_lm.utils import load_model

    return load_model(draft_path())[0]


def _heads(model: Any) -> tuple[Any, Any]:
    """Queries (1, Hq, 2, D) and keys (1, Hk, 2, D) of one layer, as its attention gets them."""
    import mlx.core as mx

    from app.engine import mlx_patches
    from app.engine.prefill import forward, make_stock_cache

    seen: list[tuple[Any, Any]] = []
    with mlx_patches.observed_attention(lambda q, k, *_: seen.append((q, k))):
        mx.eval(forward(model, make_stock_cache(model), np.zeros(2, np.int32)))
    return seen[0]


def _row(model: Any, heads: tuple[Any, Any], length: int) -> Row:
    from app.engine.mlx_patches import blocked_attention, sparse_attention
    from app.engine.prefill import device_backend
    from app.protocol.options import Blocks

    few = Blocks(top=DEFAULT_TUNING.sparse_draft_top)
    block = device_backend().query_block
    blocked = blocked_attention(block), blocked_attention(block)
    ways = nullcontext(), blocked[0], _both(blocked[1], sparse_attention(few))
    return Row(
        length,
        *(_attention(heads, length, way) for way in ways),
        *(_prefill(model, length, sparse_attention(blocks)) for blocks in (None, few)),
    )


@contextmanager
def _both(first: Way, second: Way) -> Iterator[None]:
    with first, second:
        yield


def _attention(heads: tuple[Any, Any], length: int, way: Way) -> float:
    """Seconds that one layer's attention takes over a prefill of `length` tokens."""
    import mlx.core as mx

    q, k, v = (
        mx.random.normal((1, like.shape[1], length, like.shape[3])).astype(like.dtype)
        for like in (heads[0], heads[1], heads[1])
    )
    scale = q.shape[3] ** -0.5
    mx.eval(q, k, v)
    begun = time.perf_counter()
    with way:
        for start in range(0, length, STEP):
            end = min(start + STEP, length)
            step = q[:, :, start:end], k[:, :, :end], v[:, :, :end]
            mx.eval(mx.fast.scaled_dot_product_attention(*step, scale=scale, mask="causal"))
    return time.perf_counter() - begun


def _prefill(model: Any, length: int, way: Way) -> float:
    """Seconds until the draft has read `length` tokens."""
    from app.engine.prefill import StepSize, make_stock_cache, prefill

    ids = np.random.default_rng(0).integers(3, model.args.vocab_size, length).astype(np.int32)
    begun = time.perf_counter()
    with way:
        prefill(model, make_stock_cache(model), ids, None, StepSize(STEP), lambda done: None)
    return time.perf_counter() - begun


COLUMNS: tuple[tuple[str, int, Callable[[Row], float], str], ...] = (
    ("plain", 8, lambda row: row.plain, ".2f"),
    ("dense", 8, lambda row: row.dense, ".2f"),
    ("sparse", 8, lambda row: row.sparse, ".2f"),
    ("/plain", 8, lambda row: row.of_plain, ".2f"),
    ("/dense", 22, lambda row: row.of_dense, "spread"),
    ("read", 8, lambda row: row.prefill_dense, ".2f"),
    ("sparsely", 9, lambda row: row.prefill_sparse, ".2f"),
    ("/read", 22, lambda row: row.of_prefill, "spread"),
)
"""Heading, width, what of a row, and how it is written."""


def _table(shape: str, measured: list[list[Row]], described: str) -> str:
    lines = [
        f"the draft of {shape}, steps of {STEP}, medians of {len(measured[0])}, in seconds",
        described,
        "",
        f"{'':7}{'attention of one layer':^54}{'whole prefill':^39}",
        f"{'tokens':>7}" + "".join(f"{name:>{width}}" for name, width, _, _ in COLUMNS),
    ]
    for rows in measured:
        cells = ""
        for _, width, figure, form in COLUMNS:
            found = spread(figure(row) for row in rows)
            text = found.text() if form == "spread" else f"{found.median:{form}}"
            cells += f"{text:>{width}}"
        lines.append(f"{rows[0].length:>7,}{cells}")
    lines += ["", "plain: mlx-lm's; dense: ours; sparse: block-sparse; /: as a share of"]
    return "\n".join(lines) + "\n"


def _json(shape: str, measured: list[list[Row]], described: str) -> str:
    figures = {name: figure for name, _, figure, _ in COLUMNS}
    rows = [
        {
            "length": rows[0].length,
            "figures": {
                name: spread(figure(row) for row in rows) for name, figure in figures.items()
            },
            "runs": [asdict(row) for row in rows],
        }
        for rows in measured
    ]
    return json.dumps({"machine": described, "shape": shape, "rows": rows}) + "\n"

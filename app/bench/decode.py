"""`specchat bench decode`: how fast the answer is written after sparse reading.

Random models, since time does not depend on weights. In each run, in turns: our decoding over a
cache of N entries that stand at positions up to M, as it is after sparse reading; plain mlx-lm's
`generate_step` over its own cache of N entries; the same over M entries. Seconds run from the
second token to the last one, so that no prefill and no copying of the cache is in them. Of a
windowed model the local layers differ: mlx-lm's rotating cache against ours, which knows
positions.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from app.bench.median_range import Spread, spread
from app.bench.shapes import random_pair, shapes
from app.engine import blas

STEP, CHUNK = 512, 32


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured; `tokens` of an answer."""

    shapes: tuple[str, ...]
    lengths: tuple[int, ...]
    keep: float
    tokens: int
    runs: int


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds a token, of one run."""

    shape: str
    length: int
    kept: int
    ours: float
    plain_kept: float
    plain_all: float


def decode(asked: Asked, as_json: bool, out: TextIO) -> int:
    """Measure and print medians; returns the exit status. Raises UserError for an unknown shape."""
    blas.load_openblas()
    from app.engine import mlx_patches

    mlx_patches.install()
    measured = [rows for shape in asked.shapes for rows in _measure(asked, shape)]
    from app.bench.machine import machine

    report = _json if as_json else _table
    out.write(report(asked, measured, machine()))
    return 0


def _measure(asked: Asked, shape: str) -> Iterator[list[Row]]:
    """The runs of each length. The first run of a length warms up and is not counted."""
    target, _ = random_pair(shape)
    chance = np.random.default_rng(0)
    for length in asked.lengths:
        ids = chance.integers(3, shapes()[shape]["target"]["vocab_size"], length).astype(np.int32)
        kept = _kept(length, asked.keep)
        ways = _ways(target, ids, kept, asked.tokens)
        rows = []
        for run in range(asked.runs + 1):
            names = list(ways)[run % 3 :] + list(ways)[: run % 3]  # none is always the first
            found = {name: ways[name]() for name in names}
            rows += [Row(shape, length, len(kept), **found)] if run else []
        yield rows


def _kept(length: int, keep: float) -> NDArray[np.int32]:
    """Positions of chunks chosen by lot, and not the last token, which decoding feeds."""
    chunks = -(-length // CHUNK)
    chosen = np.random.default_rng(0).permutation(chunks)[: max(round(chunks * keep), 1)]
    positions = np.flatnonzero(np.repeat(np.isin(np.arange(chunks), chosen), CHUNK))
    return positions[positions < length - 1].astype(np.int32)


def _ways(
    target: Any, ids: NDArray[np.int32], kept: NDArray[np.int32], tokens: int
) -> dict[str, Callable[[], float]]:
    """By name, what measures milliseconds a token."""
    from app.engine.caches import WindowedCache, positioned_layers
    from app.engine.prefill import (
        StepSize,
        make_positioned_cache,
        make_stock_cache,
        prefill,
        set_next_position,
    )

    def read(cache: Any, ids: NDArray[np.int32], positions: NDArray[np.int32] | None) -> Any:
        prefill(target, cache, ids, positions, StepSize(STEP), lambda done: None)
        return cache

    placed = make_positioned_cache(target)
    for layer in positioned_layers(placed):
        if isinstance(layer, WindowedCache):
            layer.retain_all = True  # as in a sparse turn: more can be recalled later
    ours = read(placed, ids[kept], kept)
    set_next_position(ours, len(ids) - 1)
    some = read(make_stock_cache(target), ids[kept], None)
    every = read(make_stock_cache(target), ids[:-1], None)
    return {
        "ours": lambda: _ours(target, copy.deepcopy(ours), ids, tokens),
        "plain_kept": lambda: _plain(target, copy.deepcopy(some), ids, tokens),
        "plain_all": lambda: _plain(target, copy.deepcopy(every), ids, tokens),
    }


def _ours(target: Any, cache: Any, ids: NDArray[np.int32], tokens: int) -> float:
    """As a turn writes its answer, with the text of each token."""
    from app.bench.token_turn import tokenizer
    from app.engine.decode import Decoder
    from app.protocol.options import Sampling
    from app.protocol.stats import FinishReason

    words = tokenizer()
    words._eos_token_ids = set()  # a random model may write one
    decoder = Decoder(1, words, Sampling(max_tokens=tokens), lambda event: None)
    times: list[float] = []

    def stop() -> FinishReason | None:
        times.append(time.perf_counter())
        return None

    decoder.run(target, cache, ids, tokens, stop)
    return _milliseconds(times)


def _plain(target: Any, cache: Any, ids: NDArray[np.int32], tokens: int) -> float:
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    last = mx.array(ids[-1:])
    stream = generate_step(last, target, max_tokens=tokens, prompt_cache=cache)
    return _milliseconds([time.perf_counter() for _ in stream])


def _milliseconds(times: list[float]) -> float:
    return 1000 * (times[-1] - times[0]) / (len(times) - 1)


def _ratios(rows: list[Row]) -> dict[str, Spread]:
    """Of tokens a second, within each run."""
    return {
        "to_plain_kept": spread(row.plain_kept / row.ours for row in rows),
        "to_plain_all": spread(row.plain_all / row.ours for row in rows),
    }


def _table(asked: Asked, measured: list[list[Row]], described: str) -> str:
    lines = [
        f"keep {asked.keep:.0%}, answers of {asked.tokens} tokens, medians of {asked.runs},"
        " tokens a second",
        described,
        "",
        f"{'model':<10}{'M':>8}{'N':>8}{'ours':>9}{'plain N':>9}{'plain M':>9}"
        f"   {'ours / plain N':<24}{'ours / plain M'}",
    ]
    for rows in measured:
        first, ratios = rows[0], _ratios(rows)
        rates = (
            spread(1000 / value for value in values).median
            for values in zip(*((r.ours, r.plain_kept, r.plain_all) for r in rows), strict=True)
        )
        lines.append(
            f"{first.shape:<10}{first.length:>8,}{first.kept:>8,}"
            + "".join(f"{rate:>9.1f}" for rate in rates)
            + f"   {ratios['to_plain_kept'].text():<24}{ratios['to_plain_all'].text()}"
        )
    return "\n".join(lines) + "\n"


def _json(asked: Asked, measured: list[list[Row]], described: str) -> str:
    rows = [
        {
            "shape": rows[0].shape,
            "length": rows[0].length,
            "kept": rows[0].kept,
            "ratios": _ratios(rows),
            "runs": [asdict(row) for row in rows],
        }
        for rows in measured
    ]
    return json.dumps({"machine": described, "asked": asdict(asked), "rows": rows}) + "\n"

"""Speed of decoding after a sparse prefill.

Each run measures in rotating order: our decoder over a cache of N entries at positions up to M, as
after a sparse prefill; mlx-lm's `generate_step` over its own cache of N entries, and of M entries.
Times run from the second token to the last, so they exclude prefill and copying the cache. In
windowed models, mlx-lm's rotating cache is compared with ours, which stores positions. Weights are
random: the time does not depend on them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Bench, Column, Goal, Options, Progress, Result, Row, Run, columns
from benchmarks.shapes import random_pair, shapes

STEP, CHUNK = 512, 32


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    """Raises UserError for an unknown shape."""
    for shape in options.shapes:
        target, _ = random_pair(shape)
        vocabulary = shapes()[shape]["target"]["vocab_size"]
        rng = np.random.default_rng(0)
        for length in options.lengths:
            ids = rng.integers(3, vocabulary, length).astype(np.int32)
            selected = _random_chunks(length, options.keep)
            timers = _timers(target, ids, selected, options.tokens)
            runs = progress.repeat(f"{shape}, {length:,} tokens", partial(_run, timers, count()))
            yield Row({"model": shape, "length": length, "selected": len(selected)}, runs)


def _run(timers: dict[str, Callable[[], float]], turns: Iterator[int]) -> Run:
    """Tokens per second by name. The order rotates from run to run."""
    names, first = list(timers), next(turns) % len(timers)
    seconds = {name: timers[name]() for name in names[first:] + names[:first]}
    rates = {name: 1 / seconds[name] for name in names}
    return rates | {f"of_{name}": rates["ours"] / rates[name] for name in names[1:]}


def _random_chunks(length: int, keep: float) -> NDArray[np.int32]:
    """Positions of random chunks, without the last token, which decoding feeds."""
    chunks = -(-length // CHUNK)
    chosen = np.random.default_rng(0).permutation(chunks)[: max(round(chunks * keep), 1)]
    positions = np.flatnonzero(np.repeat(np.isin(np.arange(chunks), chosen), CHUNK))
    return positions[positions < length - 1].astype(np.int32)


def _timers(
    target: Any, ids: NDArray[np.int32], selected: NDArray[np.int32], tokens: int
) -> dict[str, Callable[[], float]]:
    """Functions that measure the seconds per token, by name."""
    from app.engine.cache.caches import WindowedCache, positioned_layers
    from app.engine.cache.prefill import (
        StepSize,
        make_positioned_cache,
        make_stock_cache,
        prefill,
        set_next_position,
    )

    def filled(cache: Any, ids: NDArray[np.int32], positions: NDArray[np.int32] | None) -> Any:
        prefill(target, cache, ids, positions, StepSize(STEP), lambda done: None)
        return cache

    sparse = make_positioned_cache(target)
    for layer in positioned_layers(sparse):
        if isinstance(layer, WindowedCache):
            layer.retain_all = True  # as in a sparse turn, where recall may need them
    ours = filled(sparse, ids[selected], selected)
    set_next_position(ours, len(ids) - 1)
    some = filled(make_stock_cache(target), ids[selected], None)
    every = filled(make_stock_cache(target), ids[:-1], None)
    return {
        "ours": lambda: _ours(target, copy.deepcopy(ours), ids, tokens),
        "plain_selected": lambda: _plain(target, copy.deepcopy(some), ids, tokens),
        "plain_all": lambda: _plain(target, copy.deepcopy(every), ids, tokens),
    }


def _ours(target: Any, cache: Any, ids: NDArray[np.int32], tokens: int) -> float:
    """Decode like a turn, including detokenisation. Returns seconds per token."""
    from app.engine.cache.prefix_cache import PrefixCache
    from app.engine.turn.decode import Decoder
    from app.protocol.options import Sampling
    from app.protocol.stats import FinishReason
    from benchmarks.token_turn import tokenizer

    text = tokenizer()
    text._eos_token_ids = set()  # a random model may generate one
    decoder = Decoder(1, text, Sampling(max_tokens=tokens, speculate=False), lambda event: None)
    times: list[float] = []

    def stop() -> FinishReason | None:
        times.append(time.perf_counter())
        return None

    decoder.generate(target, PrefixCache(lambda: cache), ids, tokens, stop)
    return _per_token(times)


def _plain(target: Any, cache: Any, ids: NDArray[np.int32], tokens: int) -> float:
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    last = mx.array(ids[-1:])
    stream = generate_step(last, target, max_tokens=tokens, prompt_cache=cache)
    return _per_token([time.perf_counter() for _ in stream])


def _per_token(times: list[float]) -> float:
    return (times[-1] - times[0]) / (len(times) - 1)


def about(result: Result) -> str:
    return (
        f"Tokens a second while decoding {result.options['tokens']} tokens after a sparse prefill"
        f" at keep {result.options['keeps'][0]:g}: *ours* over N entries at positions up to M,"
        " beside mlx-lm's `generate_step` over N entries and over M. Ours also makes text of the"
        " tokens."
    )


def goals(result: Result) -> Iterator[Goal]:
    for row in result.rows:
        for entries, figure, minimum in (("N", "selected", 0.97), ("M", "all", 1.0)):
            ratio = row.spread(f"of_plain_{figure}")
            goal = f"{row['model']}, M = {row['length']:,}: at least {minimum:g} of mlx-lm's rate"
            yield Goal(f"{goal} over {entries} entries", ratio.text(), ratio.median >= minimum)


BENCH = Bench(
    "decode",
    "tokens per second of answers, compared with mlx-lm",
    "Decoding",
    measure,
    about,
    columns(
        Column("model", "model"),
        Column("M", "length", ","),
        Column("N", "selected", ","),
        Column("ours", "ours", ".1f", spread=True),
        Column("mlx-lm, N", "plain_selected", ".1f", spread=True),
        Column("mlx-lm, M", "plain_all", ".1f", spread=True),
        Column("ours / mlx-lm, N", "of_plain_selected", spread=True),
        Column("ours / mlx-lm, M", "of_plain_all", spread=True),
    ),
    goals,
    quick_args="--length 512 --tokens 4 --runs 1",
    flags={
        "tokens": "32",
        "shape": "small,windowed",
        "length": "4k,16k",
        "keep": "0.2",
        "runs": "5",
    },
)

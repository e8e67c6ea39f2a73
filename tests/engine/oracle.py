"""The oracle: reference results that sparse prefill must equal.

For pure attention, a dense forward over the whole prompt in which skipped tokens are masked. For
hybrids, whose recurrent layers must not see skipped tokens, the tokens are fed one by one, each at
its own position, in the order of reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, CacheList, make_prompt_cache
from numpy.typing import NDArray

from app.engine.backend.device import CPU, GPU, Backend
from app.engine.cache.caches import Cache, flatten
from app.engine.cache.positions import Positions
from app.engine.cache.prefill import (
    StepSize,
    forward,
    make_positioned_cache,
    prefill,
    set_next_position,
)
from app.engine.cache.prefix_cache import Checkpoint, PrefixCache
from tests.tiny import HYBRID, VOCABULARY


def tolerance(on_gpu: bool, device: object) -> float:
    """Maximum difference of two logits that are equal but for rounding. Virtual Macs, such as those
    of GitHub, have a GPU that rounds more."""
    return 1e-3 if on_gpu and device == "Apple Paravirtual device" else 1e-4


TOLERANCE = tolerance(
    mx.default_device().type == mx.DeviceType.gpu, mx.device_info().get("device_name")
)
PROMPT, DECODED, STEP = 200, 6, 16
BACKENDS = {"cpu": replace(CPU, query_block=5), "gpu": GPU}
"""Backends to test. A step has several blocks of attention."""


KeysAndValues = list[tuple[mx.array, mx.array]]
"""Keys and values of each layer, in order."""


@contextmanager
def keys_seen(
    seen: NDArray[np.bool_],
    stay: NDArray[np.bool_] | None = None,
    of: KeysAndValues | None = None,
    stored: Callable[[mx.array], mx.array] = lambda each: each,
) -> Iterator[KeysAndValues]:
    """Context manager: query i sees key j only if `seen[i, j]` (or `seen[j]`). Where `stay`, keys
    and values are replaced by those `of` another pass. Yields this pass's keys and values. `stored`
    converts them as a cache does."""
    own: KeysAndValues = []
    attention = mx.fast.scaled_dot_product_attention

    def masked(q: mx.array, k: mx.array, v: mx.array, *, mask: Any = None, **kw: Any) -> mx.array:
        if mask is None or isinstance(mask, str):
            mask = mx.tril(mx.ones((q.shape[2], k.shape[2]), mx.bool_))
        k, v = stored(k), stored(v)
        if stay is not None and of is not None:
            visible = mx.array(stay)[:, None]
            k, v = (mx.where(visible, *both) for both in zip(of[len(own)], (k, v), strict=True))
        own.append((k, v))
        return attention(q, k, v, mask=mask & mx.array(seen), **kw)

    mx.fast.scaled_dot_product_attention = masked
    try:
        yield own
    finally:
        mx.fast.scaled_dot_product_attention = attention


def keys_masked_out(dropped: NDArray[np.bool_]) -> AbstractContextManager[KeysAndValues]:
    """Context manager: no attention sees key j if `dropped[j]`."""
    return keys_seen(~dropped)


def prompt(seed: int = 0) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Token ids (PROMPT + DECODED,) and the selected positions of the prompt, with wide gaps."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, VOCABULARY, PROMPT + DECODED).astype(np.int32)
    selected = np.zeros(PROMPT, bool)
    selected[:4] = selected[-9:] = True
    selected[30:43] = selected[90:110] = selected[118:121] = selected[150] = True
    return ids, np.flatnonzero(selected).astype(np.int32)


def sparse_logits(
    model: Any,
    ids: NDArray[np.int32],
    selected: NDArray[np.int32],
    backend: Backend = BACKENDS["cpu"],
) -> mx.array:
    """Logits of the last selected token and of DECODED - 1 tokens decoded after it."""
    cache = make_positioned_cache(model)
    step = StepSize(STEP, backend=backend)
    prefill(model, cache, ids[selected[:-1]], selected[:-1], step, lambda done: None)
    set_next_position(cache, int(selected[-1]))
    tail = [ids[int(selected[-1])], *ids[PROMPT : PROMPT + DECODED - 1]]
    return mx.concatenate(
        [forward(model, cache, np.array([token], np.int32))[:, -1] for token in tail]
    )


def expected_logits(
    name: str, model: Any, ids: NDArray[np.int32], selected: NDArray[np.int32]
) -> mx.array:
    if name in HYBRID:
        return _one_by_one(model, ids, selected)
    dropped = np.ones(PROMPT + DECODED, bool)
    dropped[selected] = dropped[PROMPT:] = False
    with keys_masked_out(dropped):
        logits = model(mx.array(ids)[None])
        mx.eval(logits)
    return logits[0, PROMPT - 1 : PROMPT + DECODED - 1]


def _one_by_one(model: Any, ids: NDArray[np.int32], selected: NDArray[np.int32]) -> mx.array:
    decoded = np.arange(PROMPT, PROMPT + DECODED - 1, dtype=np.int32)
    return one_by_one(model, ids, Read(np.concatenate([selected, decoded])))[-DECODED:]


class Read(NamedTuple):
    """Tokens that are read in this order. `aside`: recurrent layers start from their states after
    the tokens below this position, and return to their latest states at the end."""

    positions: Positions
    aside: int | None = None


class PlainCache:
    """The keys and values of one attention layer, which is fed one token at a time, at position
    `offset`. `window`: number of last positions that a token attends to; 0: all."""

    def __init__(self, window: int) -> None:
        self.offset, self._window = 0, window
        self._positions: list[int] = []
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def make_mask(self, N: int, **_: Any) -> None:
        assert N == 1

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        self._positions.append(self.offset)
        if self.keys is not None:
            keys = mx.concatenate([self.keys, keys], axis=2)
            values = mx.concatenate([self.values, values], axis=2)
        self.keys, self.values = keys, values
        return self.keys_and_values()

    def keys_and_values(self) -> list[mx.array]:
        """Those that the last token attends to."""
        distance = self.offset - np.array(self._positions)
        seen = np.flatnonzero((distance >= 0) & (distance < (self._window or np.inf)))
        return [each[..., mx.array(seen), :] for each in (self.keys, self.values)]


def _plain(cache: Any) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*map(_plain, cache.caches))
    if isinstance(cache, ArraysCache):
        return cache
    return PlainCache(getattr(cache, "max_size", None) or 0)


def one_by_one(model: Any, ids: NDArray[np.int32], *reads: Read) -> mx.array:
    """Logits (n, vocabulary) after each of the tokens of `ids` that are `read`, fed one at a
    time."""
    cache = [_plain(each) for each in make_prompt_cache(model)]
    plain = [layer for layer in flatten(cache) if isinstance(layer, PlainCache)]

    def feed(part: Positions) -> mx.array:
        for layer in plain:
            layer.offset = int(part[0])
        return model(mx.array(ids[part])[None], cache=cache)[:, -1]

    return _replay(cache, feed, 1, reads)


def in_steps(model: Any, ids: NDArray[np.int32], *reads: Read) -> mx.array:
    """The same in steps of up to `STEP` tokens, which rounds otherwise: logits after each step."""
    cache = make_positioned_cache(model)
    return _replay(cache, lambda part: forward(model, cache, ids[part], part)[:, -1], STEP, reads)


def _replay(
    cache: Cache, feed: Callable[[Positions], mx.array], step: int, reads: Sequence[Read]
) -> mx.array:
    recurrent = [layer for layer in flatten(cache) if isinstance(layer, ArraysCache)]
    states = {-1: [layer.cache for layer in recurrent]}
    """By position, the states after each step that was not read aside."""
    starts = [read.aside for read in reads if read.aside is not None]
    rows = []

    def put_back(position: int) -> None:
        for layer, state in zip(recurrent, states[position], strict=True):
            layer.cache = list(state)

    for positions, aside in reads:
        latest = next(reversed(states))
        put_back(latest if aside is None else max(each for each in states if each < aside))
        ends = {*range(0, len(positions), step), *np.searchsorted(positions, starts).tolist()}
        for part in np.split(positions, sorted(ends - {0, len(positions)})):
            rows.append(feed(part))
            mx.eval(rows[-1])
            if aside is None:
                states[int(part[-1])] = [list(layer.cache) for layer in recurrent]
        if aside is not None:
            put_back(latest)
    return mx.concatenate(rows)


Asides = dict[int, tuple[int, int]]
"""By the number of each forward that read tokens aside: the number of its run, and the position of
the checkpoint from which the run started."""


@contextmanager
def recorded_asides() -> Iterator[Asides]:
    """Context manager: yields what was read aside in any cache since its start."""
    found: Asides = {}
    run = (0, 0)
    set_states, mark_cached = PrefixCache._set_states, PrefixCache.mark_cached

    def begin(prefix: PrefixCache, point: Checkpoint | None) -> None:
        nonlocal run
        run = (run[0] + 1, 0 if point is None else point.position)
        set_states(prefix, point)

    def record(
        prefix: PrefixCache, ids: NDArray[np.int32], positions: Positions, read: int | None = None
    ) -> None:
        before = len(prefix)
        mark_cached(prefix, ids, positions, read)
        if prefix.is_recurrent and len(positions) and positions[0] < before:
            found[int(prefix.reads[positions[0]])] = run

    PrefixCache._set_states, PrefixCache.mark_cached = begin, record  # type: ignore[method-assign]
    try:
        yield found
    finally:
        PrefixCache._set_states, PrefixCache.mark_cached = set_states, mark_cached  # type: ignore[method-assign]


def reads_of(prefix: PrefixCache, asides: Asides) -> list[Read]:
    """How the cached tokens were read, in this order."""
    positions = np.flatnonzero(prefix.cached).astype(np.int32)
    order = positions[np.argsort(prefix.reads[positions], kind="stable")]
    runs = groupby(order, lambda position: asides.get(int(prefix.reads[position])))
    return [Read(np.array(list(part)), run and run[1]) for run, part in runs]


def read_aside(reads: Iterable[Read]) -> list[int]:
    """Positions of the tokens that were read aside, in the order of reading."""
    return [int(p) for positions, aside in reads if aside is not None for p in positions]


def difference(a: mx.array, b: mx.array) -> float:
    return float(mx.abs(a - b).max().item())


def oracle_error(name: str, model: Any, backend: Backend = BACKENDS["cpu"]) -> float:
    """Maximum difference of any logit between sparse prefill and the reference."""
    ids, selected = prompt()
    ours = sparse_logits(model, ids, selected, backend)
    return difference(ours, expected_logits(name, model, ids, selected))

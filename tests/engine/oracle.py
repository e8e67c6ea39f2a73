"""The oracle: reference results that sparse prefill must equal.

For pure attention, a dense forward over the whole prompt in which skipped tokens are masked. For
hybrids, whose recurrent layers must not see skipped tokens, the selected tokens are fed one by one,
each at its own position. For late reading, one pass over all tokens in the order of reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from app.engine.backend.device import CPU, GPU, Backend
from app.engine.backend.mlx_patches import explicit_positions
from app.engine.cache.prefill import (
    StepSize,
    forward,
    make_positioned_cache,
    prefill,
    set_next_position,
)
from app.engine.cache.prefix_cache import PrefixCache
from tests.tiny import HYBRID, VOCABULARY

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
    return one_by_one(model, ids, np.concatenate([selected, decoded]))[-DECODED:]


def one_by_one(model: Any, ids: NDArray[np.int32], order: NDArray[np.int32]) -> mx.array:
    """Logits (n, vocabulary) after each of the tokens at these positions (n,) of `ids`, fed one at
    a time in this order."""
    cache = make_positioned_cache(model)
    rows = []
    for position in order:
        token = slice(int(position), int(position) + 1)
        rows.append(forward(model, cache, ids[token], np.array([position], np.int32))[:, -1])
        mx.eval(rows[-1])
    return mx.concatenate(rows)


def logits_in_order(model: Any, ids: NDArray[np.int32], order: NDArray[np.int32]) -> mx.array:
    """The same in one pass without any cache. Attention sees the keys at lower positions."""
    with keys_seen(order <= order[:, None]), explicit_positions(mx.array(order)):
        logits: mx.array = model(mx.array(ids[order])[None])[0]
        mx.eval(logits)
    return logits


def reading_order(prefix: PrefixCache) -> NDArray[np.int32]:
    """Positions of the cached tokens in the order in which they were read."""
    positions = np.flatnonzero(prefix.cached)
    return positions[np.argsort(prefix.reads[positions], kind="stable")].astype(np.int32)


def difference(a: mx.array, b: mx.array) -> float:
    return float(mx.abs(a - b).max().item())


def oracle_error(name: str, model: Any, backend: Backend = BACKENDS["cpu"]) -> float:
    """Maximum difference of any logit between sparse prefill and the reference."""
    ids, selected = prompt()
    ours = sparse_logits(model, ids, selected, backend)
    return difference(ours, expected_logits(name, model, ids, selected))

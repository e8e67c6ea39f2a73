"""Makes room in caches for the tokens that are known to come.

mlx-lm's caches grow by their `step`, 256 tokens, and are copied whole when they do: in a prefill in
steps of 256 tokens and more, every layer at every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from app.engine.caches import TRIMMABLE, Cache, PositionedCache, WindowedCache, flatten
from app.engine.progress import Cancelled


@contextmanager
def reserve_capacity(cache: Cache, count: int) -> Iterator[None]:
    """Inside, layers that keep everything grow at most once for `count` more tokens, with the first
    of them. They go on as before afterwards. When it is cancelled, what was not used is given back:
    it may be gigabytes."""
    stores = [store for c in flatten(cache) if (store := _growing_store(c)) is not None]
    before = [store.step for store in stores]
    for store in stores:
        if _capacity(store) - store.offset < count:
            _trim_to_size(store)
            whole = -(-count // type(store).step) * type(store).step
            store.step = max(store.step, whole)
    try:
        yield
    except Cancelled:
        for store in stores:
            _release_unused(store)
        raise
    finally:
        for store, step in zip(stores, before, strict=True):
            store.step = step


def _growing_store(cache: Any) -> Any:
    """Where a layer that keeps everything stores it."""
    if isinstance(cache, WindowedCache) and not cache.retain_all:
        return None
    store = cache.inner if isinstance(cache, PositionedCache) else cache
    return store if type(store) in TRIMMABLE else None


def _capacity(store: Any) -> int:
    keys = store.keys[0] if isinstance(store.keys, tuple | list) else store.keys
    return 0 if keys is None else int(keys.shape[-2])


def _trim_to_size(store: Any) -> None:
    """Drop the room there is, to which mlx-lm may add what it grows by."""
    if store.offset == 0:
        store.keys = store.values = None
    elif _capacity(store) > store.offset:
        cut = tree_map(lambda array: array[..., : store.offset, :], (store.keys, store.values))
        store.keys, store.values = cut


def _release_unused(store: Any) -> None:
    """Copy what is there out of a buffer that is much longer."""
    if _capacity(store) - store.offset < type(store).step:
        return
    if store.offset == 0:
        store.keys = store.values = None
        return
    there = mx.arange(store.offset)  # a slice would keep the whole buffer alive
    copied = tree_map(lambda array: mx.take(array, there, axis=-2), (store.keys, store.values))
    mx.eval(copied)
    store.keys, store.values = copied

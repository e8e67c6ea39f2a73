"""Grows caches once for the tokens that are known to come.

mlx-lm's caches grow by their `step` of 256 tokens and are copied whole each time: in a prefill in
steps of 256 tokens or more, every layer at every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from app.engine.cache.caches import TRIMMABLE, Cache, PositionedCache, WindowedCache, flatten
from app.engine.progress import Cancelled


@contextmanager
def reserve_capacity(cache: Cache, count: int) -> Iterator[None]:
    """Inside, layers that store all entries grow at most once for `count` more tokens, with the
    first of them. Afterwards they grow as before. When cancelled, unused capacity is released: it
    may be gigabytes."""
    stores = [store for c in flatten(cache) if (store := _growing_store(c)) is not None]
    steps = [store.step for store in stores]
    for store in stores:
        if capacity(store) - store.offset < count:
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
        for store, step in zip(stores, steps, strict=True):
            store.step = step


def release_unused(cache: Cache) -> None:
    """After a rewind: copy the entries out of buffers that are less than half used, so that fewer
    are copied than are freed."""
    for layer in flatten(cache):
        store = _growing_store(layer)
        if store is not None and capacity(store) > 2 * store.offset:
            _release_unused(store)


def trim_to_size(cache: Cache) -> None:
    """Let buffers grow with the next entry, which copies the entries there are, and no capacity."""
    for layer in flatten(cache):
        if (store := _growing_store(layer)) is not None:
            _trim_to_size(store)


def capacity(store: Any) -> int:
    """How many entries a stock cache has memory for."""
    keys = store.keys[0] if isinstance(store.keys, tuple | list) else store.keys
    return 0 if keys is None else int(keys.shape[-2])


def _growing_store(cache: Any) -> Any:
    """The stock cache of a layer that stores all entries; None for other layers."""
    if isinstance(cache, WindowedCache) and not cache.retain_all:
        return None
    store = cache.inner if isinstance(cache, PositionedCache) else cache
    return store if type(store) in TRIMMABLE else None


def _trim_to_size(store: Any) -> None:
    """Drop unused capacity, which mlx-lm would otherwise add to."""
    if store.offset == 0:
        store.keys = store.values = None
    elif capacity(store) > store.offset:
        stored = tree_map(lambda array: array[..., : store.offset, :], (store.keys, store.values))
        store.keys, store.values = stored


def _release_unused(store: Any) -> None:
    """Copy the entries out of a buffer that is much longer."""
    if capacity(store) - store.offset < type(store).step:
        return
    if store.offset == 0:
        store.keys = store.values = None
        return
    entries = mx.arange(store.offset)  # a slice would keep the whole buffer alive
    copied = tree_map(lambda array: mx.take(array, entries, axis=-2), (store.keys, store.values))
    mx.eval(copied)
    store.keys, store.values = copied

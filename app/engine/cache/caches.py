"""KV caches that store the position of every entry.

A stock mlx-lm cache uses its number of entries as the next token's position. After a sparse prefill
the two differ. The caches here wrap a stock `KVCache`, store positions next to the entries, return
the next *position* as `offset`, and build attention masks from positions. So unmodified model code
continues at the right position.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    create_attention_mask,
)

from app.engine.cache.positions import Entries, PositionRuns, Positions
from app.engine.progress import TurnCancelled


class UnsupportedCache(ValueError):
    """The model uses a kind of cache that cannot store positions."""


def _inner(name: str) -> Any:
    """A property that forwards to the same attribute of `self.inner`."""
    return property(
        lambda self: getattr(self.inner, name),
        lambda self, value: setattr(self.inner, name, value),
    )


class PositionedCache:
    """A `KVCache` whose entries have explicit positions.

    `set_next_positions` sets the positions of the next step's tokens; by default they continue at
    `offset`. Recalled tokens are stored last although their positions are lower; the attention
    mask then compares positions.
    """

    keys, values, state = _inner("keys"), _inner("values"), _inner("state")

    def __init__(
        self,
        inner: KVCache | QuantizedKVCache | None = None,
        positions: PositionRuns | None = None,
    ) -> None:
        self.inner = inner or KVCache()
        self.positions = positions or PositionRuns()
        self._announced: Positions | None = None
        self._next_position: int | None = None

    # ------------------------------------------------------------ the next tokens' positions

    @property
    def offset(self) -> int:
        if self._announced is not None:
            return int(self._announced[0])
        return self.positions.end if self._next_position is None else self._next_position

    def set_next_positions(self, positions: Positions) -> None:
        self._announced = positions

    def set_next_position(self, position: int) -> None:
        """Put the next token at `position`, after every entry."""
        if position < self.positions.end:
            raise ValueError(f"position {position} is before the end of the cache")
        self._announced, self._next_position = None, position

    def positions_of_next(self, count: int) -> Positions:
        """Positions of the next tokens, int32 (count,)."""
        if self._announced is not None:
            if len(self._announced) != count:
                raise ValueError(f"{len(self._announced)} positions for {count} tokens")
            return self._announced
        return np.arange(self.offset, self.offset + count, dtype=np.int32)

    # ------------------------------------------------------------ what mlx-lm's models call

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self._announced is None:  # one run without gaps, as in decoding
            self.positions = self.positions.with_run(self.offset, self.offset + keys.shape[2])
        else:
            self.positions = self.positions.extended(self.positions_of_next(keys.shape[2]))
        self._announced = self._next_position = None
        fetched: tuple[mx.array, mx.array] = self.inner.update_and_fetch(keys, values)
        return fetched

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        """The attention mask of the next N tokens over all entries and themselves, bool
        (N, stored + N), or mlx-lm's shorthand for it. For tokens after all entries and without a
        window, mlx-lm's own mask is correct."""
        if window_size is None and self.offset >= self.positions.end:
            mask: mx.array | str | None = create_attention_mask(
                N, self.inner.offset, return_array, None
            )
            return mask
        return self._mask(N, window_size, return_array, self.positions.array())

    def _mask(
        self, N: int, window: int | None, return_array: bool, stored: Positions
    ) -> mx.array | str | None:
        queries = self.positions_of_next(N)
        keys = np.concatenate([stored, queries])
        after = bool((stored < queries[0]).all())
        fits = window is None or int(queries[-1]) - int(keys.min()) < window
        if not return_array and after and fits:
            return None if N == 1 else "causal"
        q, k = mx.array(queries)[:, None], mx.array(keys)[None]
        return q >= k if window is None else (q >= k) & (q < k + window)

    # ------------------------------------------------------------ the rest of mlx-lm's interface

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """The stored keys and values, for layers that share this layer's cache."""
        stored: tuple[mx.array, mx.array] = self.inner.keys_and_values()
        return stored

    @property
    def nbytes(self) -> int:
        return nbytes(self.inner)

    def size(self) -> int:
        return int(self.inner.offset)

    def empty(self) -> bool:
        return bool(self.inner.empty())

    def is_trimmable(self) -> bool:
        return True

    def covers(self, position: int) -> bool:
        """Whether all entries that a token at `position` attends to are still stored."""
        return True

    def trim(self, n: int) -> int:
        """Drop the n entries stored last. Returns the number dropped."""
        trimmed = int(self.inner.trim(n))
        if trimmed:
            self.positions = self.positions.without_last(trimmed)
        self._announced = self._next_position = None
        return trimmed

    def evict(self, positions: Positions) -> None:
        """Drop the entries at these positions, although others may have attended to them."""
        self._select_entries(*self.positions.without(positions))

    def rewind(self, position: int) -> int:
        """Drop all entries at or after `position`. Returns the number dropped. By causality, no
        remaining entry has attended to them."""
        before, count = self.size(), self.positions.count_below(position)
        if self.positions.ascending:
            return self.trim(before - count)
        self._select_entries(*self.positions.between(0, position))
        return before - count

    def _select_entries(self, positions: PositionRuns, entries: Entries, capacity: int = 0) -> None:
        """Keep only these entries, in this order, in buffers of at least this capacity."""
        self.positions, self._announced, self._next_position = positions, None, None
        self.inner.offset = len(entries)
        if len(entries) == 0 or self.inner.keys is None:  # another cache may hold the rows
            self.inner.keys = self.inner.values = None
            return
        index = mx.array(np.pad(entries, (0, max(capacity - len(entries), 0))))
        stored = (self.inner.keys, self.inner.values)
        self.inner.keys, self.inner.values = tree_map(lambda a: mx.take(a, index, axis=2), stored)


class QuantisedCache(PositionedCache):
    """A positioned cache with quantised keys and values. mlx-lm's models check for `bits`."""

    inner: QuantizedKVCache
    bits, group_size = _inner("bits"), _inner("group_size")


class DequantisedCache(PositionedCache):
    """A positioned cache that stores keys and values quantised and dequantises them for each step.
    It has no `bits`: it serves attention that cannot read packed values (attention with sinks,
    latent attention, layers that share another layer's keys)."""

    inner: QuantizedKVCache

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        super().update_and_fetch(keys, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        how = {"group_size": self.inner.group_size, "bits": self.inner.bits}
        keys, values = (mx.dequantize(*packed, **how) for packed in super().keys_and_values())
        return keys, values


class WindowedCache(PositionedCache):
    """The cache of a sliding-window layer.

    A query at position q attends to a key at k if k <= q < k + window. A stock `RotatingKVCache`
    counts entries instead of positions, so across gaps a query would see far too old keys.

    While tokens come in order, entries outside the window are evicted in batches of `slack`, so
    that decoding rarely copies. With `retain_all` they stay, because recalled tokens attend to the
    entries before them. A step always fetches only the entries that its tokens attend to, so both
    cost the same. Recalled entries are sorted by position once, in the first step after all others.
    """

    slack = 256

    def __init__(
        self, window: int, retain_all: bool = False, positions: PositionRuns | None = None
    ) -> None:
        super().__init__(positions=positions)
        self.window = window
        self.retain_all = retain_all
        self.evicted_below = 0
        """One past the highest evicted position."""
        self._fetched: int | Entries | None = None
        """Entries that the last step fetched: the last n, or these indices; None: all."""

    # The fetched entries depend only on the state, so that the mask, which is made once for all
    # layers of a kind, fits every layer.

    def _positions_when_ready(self, count: int) -> PositionRuns:
        """The positions stored once `_make_ready(count)` has run: sorted and without evictable
        ones, if the next tokens come after all others."""
        if self.offset < self.positions.end:
            return self.positions
        ordered = self.positions if self.positions.ascending else self.positions.sorted()[0]
        evictable = self._evictable(count)
        return ordered.without_first(evictable) if evictable else ordered

    def _evictable(self, count: int) -> int:
        if self.retain_all:
            return 0
        outside = self.positions.count_below(self.offset - self.window + 1)
        return outside if outside >= self.slack or count > 1 else 0

    def _make_ready(self, count: int) -> None:
        """Sort and evict entries before the next `count` tokens are stored."""
        if (ready := self._positions_when_ready(count)) is self.positions:
            return
        announced, next_position, offset = self._announced, self._next_position, self.offset
        if not self.positions.ascending:
            ordered, entries = self.positions.sorted()
            self._select_entries(ordered, entries, self.inner.keys.shape[2])
        if evicted := self.size() - len(ready.array()):
            self.evicted_below = self.positions.end_below(offset - self.window + 1)
            self.inner.keys = self.inner.keys[..., evicted : self.size(), :]
            self.inner.values = self.inner.values[..., evicted : self.size(), :]
            self.inner.offset -= evicted
            self.positions = ready
        self._announced, self._next_position = announced, next_position

    def _visible(self, stored: PositionRuns, count: int) -> int | Entries:
        """Entries that the next `count` tokens attend to: the last n, or these indices."""
        if self.offset >= stored.end and stored.ascending:
            return stored.count_from(self.offset - self.window + 1)
        return stored.visible_to(self.positions_of_next(count), self.window)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        count = keys.shape[2]
        self._make_ready(count)
        visible, before = self._visible(self.positions, count), self.size()
        super().update_and_fetch(keys, values)
        if isinstance(visible, int):
            self._fetched = visible + count
        else:
            self._fetched = np.append(visible, np.arange(before, before + count))
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        keys, values = super().keys_and_values()
        if self._fetched is None:
            return keys, values
        if isinstance(self._fetched, int):
            return keys[..., -self._fetched :, :], values[..., -self._fetched :, :]
        if len(self._fetched) == keys.shape[2]:
            return keys, values
        index = mx.array(self._fetched)
        return mx.take(keys, index, axis=2), mx.take(values, index, axis=2)

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        ready = self._positions_when_ready(N)
        visible = self._visible(ready, N)
        if isinstance(visible, int) and N == 1:  # one token after all others
            return mx.ones((1, visible + 1), mx.bool_) if return_array else None
        stored = ready.array()
        stored = stored[len(stored) - visible :] if isinstance(visible, int) else stored[visible]
        return self._mask(N, window_size or self.window, return_array, stored)

    def trim(self, n: int) -> int:
        self._fetched = None
        return super().trim(n)

    def _select_entries(self, positions: PositionRuns, entries: Entries, capacity: int = 0) -> None:
        self._fetched = None
        super()._select_entries(positions, entries, capacity)

    def is_trimmable(self) -> bool:
        return self.retain_all and not self.evicted_below

    def covers(self, position: int) -> bool:
        return not self.evicted_below or position - self.window + 1 >= self.evicted_below

    def copy_at(self, position: int) -> WindowedCache:
        """A copy rewound to `position` that holds only the window. Requires `covers(position)`."""
        first = position - self.window + 1
        twin = copy.copy(self)
        twin.inner, twin.retain_all = copy.copy(self.inner), False
        twin._select_entries(*self.positions.between(first, position))
        if not twin.positions.ascending:
            twin._select_entries(*twin.positions.sorted())
        twin.evicted_below = max(self.evicted_below, self.positions.end_below(first))
        mx.eval(twin.inner.keys, twin.inner.values)  # lazy copies would keep the originals alive
        return twin


TRIMMABLE = (KVCache, QuantizedKVCache)
"""mlx-lm's caches that can drop their last entries."""
Cache = list[Any]
"""One cache per layer, as mlx-lm's models expect it."""


def can_drop_last(cache: Cache) -> bool:
    """Whether every layer can drop its last entries; recurrent layers cannot."""
    return all(isinstance(layer, (PositionedCache, *TRIMMABLE)) for layer in flatten(cache))


def drop_last(cache: Cache, count: int) -> None:
    """Drop the last `count` entries of every layer. Requires `can_drop_last`."""
    for layer in flatten(cache):
        layer.trim(count)


def to_positioned(stock: Sequence[Any], retain_all: bool = False) -> Cache:
    """Convert a model's own empty caches to positioned ones, layer by layer. With `retain_all`,
    windowed layers evict nothing, so that more can be recalled later. Recurrent layers keep their
    caches, which have no positions. Raises UnsupportedCache for other kinds."""
    start = PositionRuns()  # shared, so that each change is computed once for all layers
    return [_to_positioned(cache, retain_all, start) for cache in stock]


def _to_positioned(cache: Any, retain_all: bool, start: PositionRuns) -> Any:
    kind = type(cache)
    if kind is KVCache:
        return PositionedCache(cache, start)
    if kind is QuantizedKVCache:
        return QuantisedCache(cache, start)
    if kind is DequantisedCache:
        return DequantisedCache(cache.inner, start)
    if kind is RotatingKVCache and cache.keep == 0:
        return WindowedCache(cache.max_size, retain_all, start)
    if kind is ArraysCache:
        return cache
    if kind is CacheList:
        return CacheList(*(_to_positioned(c, retain_all, start) for c in cache.caches))
    raise UnsupportedCache(f"its {kind.__name__} layers cannot store positions")


class StepWatcher:
    """Tells whether the running step has updated all of `caches` (flattened)."""

    def __init__(self, caches: Iterable[Any]) -> None:
        self._pending = [(cache, _step_state(cache)) for cache in caches][::-1]
        self._count = len(self._pending)

    def __call__(self) -> bool:
        while self._pending and _has_changed(*self._pending[-1]):
            self._pending.pop()
        return not self._pending

    @property
    def updated(self) -> int:
        """Number of caches, in order, that were updated at the last call."""
        return self._count - len(self._pending)


def _step_state(cache: Any) -> list[Any]:
    """Attributes of a layer that every step replaces or advances; empty for unknown kinds."""
    if isinstance(cache, PositionedCache):
        cache = cache.inner
    if isinstance(cache, ArraysCache):
        return list(cache.cache)
    return [cache.keys, cache.offset] if hasattr(cache, "offset") else []


def _has_changed(cache: Any, before: list[Any]) -> bool:
    now = _step_state(cache)
    if isinstance(cache, ArraysCache):
        return all(a is not b for a, b in zip(now, before, strict=True))
    return bool(now) and (now[0] is not before[0] or now[1] != before[1])


def step_undo(cache: Cache) -> Callable[[int], None] | None:
    """A function that restores `cache` to its current state after one step, complete or not; it
    takes the number of tokens in that step. None if a layer cannot be restored."""
    undos = [_layer_undo(layer) for layer in flatten(cache)]
    if not all(undos):
        return None

    def undo(count: int) -> None:
        for undo_layer in undos:
            if undo_layer is not None:
                undo_layer(count)

    return undo


def _layer_undo(layer: Any) -> Callable[[int], object] | None:
    if isinstance(layer, PositionedCache):
        positions = layer.positions
        return lambda count: layer.trim(0 if layer.positions is positions else count)
    if type(layer) in TRIMMABLE:
        offset = layer.offset
        return lambda count: layer.trim(layer.offset - offset)
    if type(layer) in (ArraysCache, RotatingKVCache):  # each step makes new arrays
        before = {**vars(layer)}
        if isinstance(layer, ArraysCache):
            before["cache"] = list(layer.cache)
        return lambda count: vars(layer).update(before)
    return None


def attention_layers(cache: Cache) -> int:
    """Number of attention layers."""
    return sum(not isinstance(layer, ArraysCache) for layer in flatten(cache))


def nbytes(cache: Any) -> int:
    """Bytes used by the cache of one layer."""
    # mlx-lm raises for an empty quantised cache.
    empty = isinstance(cache, QuantizedKVCache) and cache.empty()
    return 0 if empty else int(cache.nbytes)


def flatten(cache: Iterable[Any]) -> list[Any]:
    """The caches of all layers, including those inside a CacheList."""
    found: list[Any] = []
    for c in cache:
        found += flatten(c.caches) if isinstance(c, CacheList) else [c]
    return found


def row_layers(cache: Cache) -> list[Any]:
    """The layers that store an entry (row) for every token."""
    return [layer for layer in flatten(cache) if stores_rows(layer)]


def stores_rows(layer: Any) -> bool:
    """Whether a layer stores an entry for every token; sliding windows and recurrent layers do
    not."""
    kinds = (PositionedCache, *TRIMMABLE)
    return isinstance(layer, kinds) and not isinstance(layer, WindowedCache)


def store_of(layer: Any) -> Any:
    """The stock cache that holds a layer's arrays."""
    return layer.inner if isinstance(layer, PositionedCache) else layer


def positioned_layers(cache: Cache) -> list[PositionedCache]:
    return [c for c in flatten(cache) if isinstance(c, PositionedCache)]


# ----------------------------------------------------------------------------------- growth


# mlx-lm's caches grow by `step` (256) entries and copy everything each time: in a prefill with
# steps of 256 tokens or more, every layer in every step.


@contextmanager
def reserve_capacity(cache: Cache, count: int) -> Iterator[None]:
    """Within this context, layers that store all entries grow once for `count` more tokens. If the
    turn is cancelled, unused capacity is released; it may be gigabytes."""
    stores = [store for c in flatten(cache) if (store := _growing_store(c)) is not None]
    steps = [store.step for store in stores]
    for store in stores:
        if capacity(store) - store.offset < count:
            _trim_to_size(store)
            whole = -(-count // type(store).step) * type(store).step
            store.step = max(store.step, whole)
    try:
        yield
    except TurnCancelled:
        for store in stores:
            _release_unused(store)
        raise
    finally:
        for store, step in zip(stores, steps, strict=True):
            store.step = step


def release_unused(cache: Cache) -> None:
    """Free unused capacity after a rewind. Only buffers that are less than half used are copied, so
    that more bytes are freed than copied."""
    for layer in flatten(cache):
        store = _growing_store(layer)
        if store is not None and capacity(store) > 2 * store.offset:
            _release_unused(store)


def trim_to_size(cache: Cache) -> None:
    """Slice all buffers to their entries, so that the next growth copies no unused capacity."""
    for layer in flatten(cache):
        if (store := _growing_store(layer)) is not None:
            _trim_to_size(store)


def capacity(store: Any) -> int:
    """Number of entries that a stock cache has memory for."""
    keys = store.keys[0] if isinstance(store.keys, tuple | list) else store.keys
    return 0 if keys is None else int(keys.shape[-2])


def _growing_store(cache: Any) -> Any:
    """The stock cache of a layer that stores all entries; None for other layers."""
    if isinstance(cache, WindowedCache) and not cache.retain_all:
        return None
    store = cache.inner if isinstance(cache, PositionedCache) else cache
    return store if type(store) in TRIMMABLE else None


def _trim_to_size(store: Any) -> None:
    """Slice the buffers to the entries in use; mlx-lm would add to the unused capacity."""
    if store.offset == 0:
        store.keys = store.values = None
    elif capacity(store) > store.offset:
        stored = tree_map(lambda array: array[..., : store.offset, :], (store.keys, store.values))
        store.keys, store.values = stored


def _release_unused(store: Any) -> None:
    """Copy the entries to smaller buffers if at least one `step` of capacity is unused."""
    if capacity(store) - store.offset < type(store).step:
        return
    if store.offset == 0:
        store.keys = store.values = None
        return
    entries = mx.arange(store.offset)  # a slice would keep the whole buffer alive
    copied = tree_map(lambda array: mx.take(array, entries, axis=-2), (store.keys, store.values))
    mx.eval(copied)
    store.keys, store.values = copied

"""Caches that know the position of every entry.

A stock mlx-lm cache counts entries and takes that count for the next token's position. After a
sparse prefill the two differ. The caches here keep positions beside the entries, answer `offset`
with the next *position*, and build masks from positions, so that unmodified model code and
`generate_step` go on at the right place. Storage stays a stock `KVCache`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
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
from numpy.typing import NDArray

from app.engine.positions import PositionRuns, Positions


class UnsupportedCache(ValueError):
    """A model uses a cache that sparse prefill cannot place at positions."""


class PositionedCache:
    """A `KVCache` whose entries sit at known positions.

    `place(positions)` announces where the next step's tokens go; without it they go to the run
    that starts at `offset`. Entries that are placed before others (recalled ones) are stored after
    them, and masks then go by position.
    """

    def __init__(self, inner: KVCache | QuantizedKVCache | None = None) -> None:
        self.inner = inner or KVCache()
        self.positions = PositionRuns()
        self._placed: Positions | None = None
        self._seek: int | None = None

    # ------------------------------------------------------------ where the next tokens go

    @property
    def offset(self) -> int:
        if self._placed is not None:
            return int(self._placed[0])
        return self.positions.next if self._seek is None else self._seek

    def place(self, positions: Positions) -> None:
        self._placed = positions

    def seek(self, position: int) -> None:
        """Let the next token go to `position`, after every entry."""
        if position < self.positions.next:
            raise ValueError(f"position {position} was already passed")
        self._placed, self._seek = None, position

    def _next_positions(self, count: int) -> Positions:
        if self._placed is not None:
            if len(self._placed) != count:
                raise ValueError(f"{len(self._placed)} positions placed, {count} tokens came")
            return self._placed
        return np.arange(self.offset, self.offset + count, dtype=np.int32)

    # ------------------------------------------------------------ what mlx-lm's models call

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self._placed is None:  # a run, as each token of an answer is
            self.positions.append_run(self.offset, self.offset + keys.shape[2])
        else:
            self.positions.append(self._next_positions(keys.shape[2]))
        self._placed = self._seek = None
        fetched: tuple[mx.array, mx.array] = self.inner.update_and_fetch(keys, values)
        return fetched

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        """The mask of the next N tokens over all entries and themselves: bool (N, stored + N),
        or what mlx-lm uses instead of an array. After every entry and without a window, order
        alone decides."""
        if window_size is None and self.offset >= self.positions.next:
            mask: mx.array | str | None = create_attention_mask(
                N, self.inner.offset, return_array, None
            )
            return mask
        return self._mask(N, window_size, return_array, self.positions.array())

    def _mask(
        self, N: int, window: int | None, return_array: bool, stored: Positions
    ) -> mx.array | str | None:
        queries = self._next_positions(N)
        keys = np.concatenate([stored, queries])
        after = bool((stored < queries[0]).all())
        fits = window is None or int(queries[-1]) - int(keys.min()) < window
        if not return_array and after and fits:
            return None if N == 1 else "causal"
        q, k = mx.array(queries)[:, None], mx.array(keys)[None]
        return q >= k if window is None else (q >= k) & (q < k + window)

    # ------------------------------------------------------------ the rest of mlx-lm's interface

    @property
    def keys(self) -> Any:
        return self.inner.keys

    @keys.setter
    def keys(self, value: mx.array) -> None:
        self.inner.keys = value

    @property
    def values(self) -> Any:
        return self.inner.values

    @values.setter
    def values(self, value: mx.array) -> None:
        self.inner.values = value

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What is stored, for layers that read another layer's cache."""
        stored: tuple[mx.array, mx.array] = self.inner.keys_and_values()
        return stored

    @property
    def state(self) -> Any:
        return self.inner.state

    @property
    def nbytes(self) -> int:
        return nbytes(self.inner)

    def size(self) -> int:
        return int(self.inner.offset)

    def empty(self) -> bool:
        return bool(self.inner.empty())

    def is_trimmable(self) -> bool:
        return True

    def reaches(self, position: int) -> bool:
        """Whether a token at `position` would find everything here that it may see."""
        return True

    def trim(self, n: int) -> int:
        """Take back the n entries stored last; returns how many there were to take."""
        trimmed = int(self.inner.trim(n))
        self.positions.drop_last(trimmed)
        self._placed = self._seek = None
        return trimmed

    def forget(self, positions: Positions) -> None:
        """Take back the entries at these positions. What stays may have seen them."""
        stays = np.isin(self.positions.array(), positions, invert=True)
        self._select(np.flatnonzero(stays))

    def _select(self, entries: NDArray[np.int64]) -> None:
        """Keep only these entries, in this order."""
        stays = self.positions.array()[entries]
        self._take(entries)
        self.positions = PositionRuns()
        for run in np.split(stays, np.flatnonzero(np.diff(stays) != 1) + 1):
            if len(run):
                self.positions.append(run)

    def rewind(self, position: int) -> int:
        """Take back every entry at or after `position`; returns how many. What stays never saw
        them: nothing sees what comes after it."""
        before, count = self.size(), self.positions.count_below(position)
        if self.positions.ascending:
            return self.trim(before - count)
        self._take(np.flatnonzero(self.positions.array() < position))
        self.positions.drop_from(position)
        return before - count

    def _take(self, entries: NDArray[np.int64]) -> None:
        """Keep only these entries, indices in the order of storage."""
        self._placed = self._seek = None
        self.inner.offset = len(entries)
        if len(entries) == 0:
            self.inner.keys = self.inner.values = None
            return
        index = mx.array(entries)
        stored = (self.inner.keys, self.inner.values)
        self.inner.keys, self.inner.values = tree_map(lambda a: mx.take(a, index, axis=2), stored)


class QuantisedCache(PositionedCache):
    """One whose keys and values are quantised: mlx-lm's models ask a cache for its `bits`."""

    inner: QuantizedKVCache

    @property
    def bits(self) -> int:
        return int(self.inner.bits)

    @property
    def group_size(self) -> int:
        return int(self.inner.group_size)


class WindowedCache(PositionedCache):
    """The cache of a sliding-window layer.

    A key at k is seen from q while q < k + window. Stock `RotatingKVCache` counts entries instead
    of positions, so with gaps it would let a local layer look thousands of tokens back.

    While everything is read in order, entries that no later query can see are dropped, once
    `slack` of them have fallen out, so that decoding seldom copies. With `retains` they stay: what
    is recalled later sees the entries before it. A single token after all others is given only
    what its window holds, so that decoding costs the same either way.
    """

    slack = 256

    def __init__(self, window: int, retains: bool = False) -> None:
        super().__init__()
        self.window = window
        self.retains = retains
        self.lost = 0
        """One past the highest position that was dropped."""
        self._seen: int | None = None
        """How many of the last entries the step before was given; None: all."""

    def _droppable(self, count: int) -> int:
        """How many entries go before the next `count` tokens come. A function of state alone, so
        that every layer of a kind does the same and one mask fits them all."""
        if self.retains:
            return 0
        fallen = self.size() - self.positions.count_from(self.offset - self.window + 1)
        return fallen if fallen >= self.slack or count > 1 else 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        fallen = self._droppable(keys.shape[2])
        if fallen:
            placed, sought = self._placed, self._seek
            self.lost = int(self.positions.array()[:fallen].max()) + 1
            self._take(np.arange(fallen, self.size()))
            self.positions.drop_first(fallen)
            self._placed, self._seek = placed, sought
        alone = self._alone(keys.shape[2])
        super().update_and_fetch(keys, values)
        last = self.positions.next - self.window
        self._seen = self.positions.count_from(last) if alone else None
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        keys, values = super().keys_and_values()
        if self._seen is None or self._seen == keys.shape[2]:
            return keys, values
        return keys[..., -self._seen :, :], values[..., -self._seen :, :]

    def _alone(self, count: int) -> bool:
        """Whether what comes is one token after all others, which are in order."""
        return count == 1 and self.positions.ascending and self.offset >= self.positions.next

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        if self._alone(N):
            seen = self.positions.count_from(self.offset - self.window + 1) + 1
            return mx.ones((1, seen), mx.bool_) if return_array else None
        stored = self.positions.array()[self._droppable(N) :]
        return self._mask(N, window_size or self.window, return_array, stored)

    def is_trimmable(self) -> bool:
        """What has been dropped cannot come back."""
        return self.retains and not self.lost

    def reaches(self, position: int) -> bool:
        return not self.lost or position - self.window + 1 >= self.lost

    def before(self, position: int) -> WindowedCache:
        """What this one was after the tokens before `position`, with no more than its window. Only
        where it `reaches` there."""
        first = position - self.window + 1
        stored = self.positions.array()
        order = np.argsort(stored)
        ascending = stored[order]
        twin = copy.copy(self)
        twin.inner, twin.retains, twin._seen = copy.copy(self.inner), False, None
        twin._select(order[(ascending >= first) & (ascending < position)])
        gone = ascending[ascending < first]
        twin.lost = max(self.lost, int(gone[-1]) + 1 if len(gone) else 0)
        mx.eval(twin.inner.keys, twin.inner.values)  # or all of this one would live as long
        return twin


STOCK = (KVCache, QuantizedKVCache)
"""mlx-lm's own caches that can take back what comes last."""
Cache = list[Any]
"""One cache per layer, as mlx-lm's models take it."""


def positioned(stock: Sequence[Any], retains: bool = False) -> Cache:
    """Position-aware twins of a model's own empty caches, layer by layer. With `retains`, more can
    be recalled later, so that windowed layers drop nothing.

    Recurrent layers keep theirs: they have no positions, they see the kept tokens in order.
    Raises UnsupportedCache for kinds that cannot be placed.
    """
    return [_twin(cache, retains) for cache in stock]


def _twin(cache: Any, retains: bool) -> Any:
    kind = type(cache)
    if kind is KVCache:
        return PositionedCache(cache)
    if kind is QuantizedKVCache:
        return QuantisedCache(cache)
    if kind is RotatingKVCache and cache.keep == 0:
        return WindowedCache(cache.max_size, retains)
    if kind is ArraysCache:
        return cache
    if kind is CacheList:
        return CacheList(*(_twin(c, retains) for c in cache.caches))
    raise UnsupportedCache(f"its {kind.__name__} layers cannot be read at chosen positions")


class Fed:
    """Says whether every one of `caches` (unfolded) has been given the step that is running."""

    def __init__(self, caches: Iterable[Any]) -> None:
        self._waiting = [(cache, _contents(cache)) for cache in caches][::-1]

    def __call__(self) -> bool:
        while self._waiting and _has_changed(*self._waiting[-1]):
            self._waiting.pop()
        return not self._waiting


def _contents(cache: Any) -> list[Any]:
    """What every step replaces or moves on. Empty for kinds that are not known."""
    if isinstance(cache, PositionedCache):
        cache = cache.inner
    if isinstance(cache, ArraysCache):
        return list(cache.cache)
    return [cache.keys, cache.offset] if hasattr(cache, "offset") else []


def _has_changed(cache: Any, before: list[Any]) -> bool:
    now = _contents(cache)
    if isinstance(cache, ArraysCache):
        return all(a is not b for a, b in zip(now, before, strict=True))
    return bool(now) and (now[0] is not before[0] or now[1] != before[1])


def nbytes(cache: Any) -> int:
    """Of one layer. A quantised one that is empty cannot be asked."""
    empty = isinstance(cache, QuantizedKVCache) and cache.empty()
    return 0 if empty else int(cache.nbytes)


def flat(cache: Cache) -> list[Any]:
    """All layers' caches, lists unfolded."""
    found: list[Any] = []
    for c in cache:
        found += flat(c.caches) if isinstance(c, CacheList) else [c]
    return found


def layers(cache: Cache) -> list[PositionedCache]:
    """Those of them that have positions."""
    return [c for c in flat(cache) if isinstance(c, PositionedCache)]

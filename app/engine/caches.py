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

from app.engine.positions import Entries, PositionRuns, Positions


class UnsupportedCache(ValueError):
    """A model uses a cache that sparse prefill cannot place at positions."""


class PositionedCache:
    """A `KVCache` whose entries sit at known positions.

    `place(positions)` announces where the next step's tokens go; without it they go to the run
    that starts at `offset`. Entries that are placed before others (recalled ones) are stored after
    them, and masks then go by position.
    """

    def __init__(
        self,
        inner: KVCache | QuantizedKVCache | None = None,
        positions: PositionRuns | None = None,
    ) -> None:
        self.inner = inner or KVCache()
        self.positions = positions or PositionRuns()
        self._announced: Positions | None = None
        self._next_position: int | None = None

    # ------------------------------------------------------------ where the next tokens go

    @property
    def offset(self) -> int:
        if self._announced is not None:
            return int(self._announced[0])
        return self.positions.end if self._next_position is None else self._next_position

    def set_next_positions(self, positions: Positions) -> None:
        self._announced = positions

    def set_next_position(self, position: int) -> None:
        """Let the next token go to `position`, after every entry."""
        if position < self.positions.end:
            raise ValueError(f"position {position} was already passed")
        self._announced, self._next_position = None, position

    def _positions_of_next(self, count: int) -> Positions:
        if self._announced is not None:
            if len(self._announced) != count:
                raise ValueError(f"{len(self._announced)} positions placed, {count} tokens came")
            return self._announced
        return np.arange(self.offset, self.offset + count, dtype=np.int32)

    # ------------------------------------------------------------ what mlx-lm's models call

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self._announced is None:  # a run, as each token of an answer is
            self.positions = self.positions.with_run(self.offset, self.offset + keys.shape[2])
        else:
            self.positions = self.positions.extended(self._positions_of_next(keys.shape[2]))
        self._announced = self._next_position = None
        fetched: tuple[mx.array, mx.array] = self.inner.update_and_fetch(keys, values)
        return fetched

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        """The mask of the next N tokens over all entries and themselves: bool (N, stored + N),
        or what mlx-lm uses instead of an array. After every entry and without a window, order
        alone decides."""
        if window_size is None and self.offset >= self.positions.end:
            mask: mx.array | str | None = create_attention_mask(
                N, self.inner.offset, return_array, None
            )
            return mask
        return self._mask(N, window_size, return_array, self.positions.array())

    def _mask(
        self, N: int, window: int | None, return_array: bool, stored: Positions
    ) -> mx.array | str | None:
        queries = self._positions_of_next(N)
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

    def covers(self, position: int) -> bool:
        """Whether a token at `position` would find everything here that it may see."""
        return True

    def trim(self, n: int) -> int:
        """Take back the n entries stored last; returns how many there were to take."""
        trimmed = int(self.inner.trim(n))
        if trimmed:
            self.positions = self.positions.without_last(trimmed)
        self._announced = self._next_position = None
        return trimmed

    def evict(self, positions: Positions) -> None:
        """Take back the entries at these positions. What stays may have seen them."""
        self._select_entries(*self.positions.without(positions))

    def rewind(self, position: int) -> int:
        """Take back every entry at or after `position`; returns how many. What stays never saw
        them: nothing sees what comes after it."""
        before, count = self.size(), self.positions.count_below(position)
        if self.positions.ascending:
            return self.trim(before - count)
        self._select_entries(*self.positions.between(0, position))
        return before - count

    def _select_entries(self, positions: PositionRuns, entries: Entries, room: int = 0) -> None:
        """Keep only these entries, in this order, with room for so many in all."""
        self.positions, self._announced, self._next_position = positions, None, None
        self.inner.offset = len(entries)
        if len(entries) == 0:
            self.inner.keys = self.inner.values = None
            return
        index = mx.array(np.pad(entries, (0, max(room - len(entries), 0))))
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
    is recalled later sees the entries before it. A step is given only what one of its tokens sees,
    so that it costs the same either way; what was recalled is put in its place once, by the first
    step that comes after all others.
    """

    slack = 256

    def __init__(
        self, window: int, retain_all: bool = False, positions: PositionRuns | None = None
    ) -> None:
        super().__init__(positions=positions)
        self.window = window
        self.retain_all = retain_all
        self.evicted_below = 0
        """One past the highest position that was dropped."""
        self._fetched: int | Entries | None = None
        """What the last step was given: so many of the last entries, or these; None: all."""

    # What the next step finds is worked out from the state alone, so that the mask, which is made
    # once for all layers of a kind, fits what each of them gives.

    def _positions_when_ready(self, count: int) -> PositionRuns:
        """What is stored when the next `count` tokens come: where these come after all others, in
        order, and without what no later token sees."""
        if self.offset < self.positions.end:
            return self.positions
        ordered = self.positions if self.positions.ascending else self.positions.sorted()[0]
        fallen = self._evictable(count)
        return ordered.without_first(fallen) if fallen else ordered

    def _evictable(self, count: int) -> int:
        if self.retain_all:
            return 0
        fallen = self.positions.count_below(self.offset - self.window + 1)
        return fallen if fallen >= self.slack or count > 1 else 0

    def _make_ready(self, count: int) -> None:
        """Store what is to be stored when the next `count` tokens come."""
        if (ready := self._positions_when_ready(count)) is self.positions:
            return
        placed, sought, offset = self._announced, self._next_position, self.offset
        if not self.positions.ascending:
            ordered, entries = self.positions.sorted()
            self._select_entries(ordered, entries, self.inner.keys.shape[2])
        if fallen := self.size() - len(ready.array()):
            self.evicted_below = self.positions.end_below(offset - self.window + 1)
            self.inner.keys = self.inner.keys[..., fallen : self.size(), :]
            self.inner.values = self.inner.values[..., fallen : self.size(), :]
            self.inner.offset -= fallen
            self.positions = ready
        self._announced, self._next_position = placed, sought

    def _visible(self, stored: PositionRuns, count: int) -> int | Entries:
        """Which entries the next `count` tokens see: so many of the last, or these."""
        if self.offset >= stored.end and stored.ascending:
            return stored.count_from(self.offset - self.window + 1)
        return stored.visible_to(self._positions_of_next(count), self.window)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        count, before = keys.shape[2], 0
        self._make_ready(count)
        seen, before = self._visible(self.positions, count), self.size()
        super().update_and_fetch(keys, values)
        new = np.arange(before, before + count)
        self._fetched = seen + count if isinstance(seen, int) else np.concatenate([seen, new])
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
        seen = self._visible(ready, N)
        if isinstance(seen, int) and N == 1:  # one token after all others
            return mx.ones((1, seen + 1), mx.bool_) if return_array else None
        stored = ready.array()
        stored = stored[len(stored) - seen :] if isinstance(seen, int) else stored[seen]
        return self._mask(N, window_size or self.window, return_array, stored)

    def trim(self, n: int) -> int:
        self._fetched = None
        return super().trim(n)

    def _select_entries(self, positions: PositionRuns, entries: Entries, room: int = 0) -> None:
        self._fetched = None
        super()._select_entries(positions, entries, room)

    def is_trimmable(self) -> bool:
        """What has been dropped cannot come back."""
        return self.retain_all and not self.evicted_below

    def covers(self, position: int) -> bool:
        return not self.evicted_below or position - self.window + 1 >= self.evicted_below

    def copy_at(self, position: int) -> WindowedCache:
        """What this one was after the tokens before `position`, with no more than its window. Only
        where it `reaches` there."""
        first = position - self.window + 1
        twin = copy.copy(self)
        twin.inner, twin.retain_all = copy.copy(self.inner), False
        twin._select_entries(*self.positions.between(first, position))
        if not twin.positions.ascending:
            twin._select_entries(*twin.positions.sorted())
        twin.evicted_below = max(self.evicted_below, self.positions.end_below(first))
        mx.eval(twin.inner.keys, twin.inner.values)  # or all of this one would live as long
        return twin


TRIMMABLE = (KVCache, QuantizedKVCache)
"""mlx-lm's own caches that can take back what comes last."""
Cache = list[Any]
"""One cache per layer, as mlx-lm's models take it."""


def to_positioned(stock: Sequence[Any], retain_all: bool = False) -> Cache:
    """Position-aware twins of a model's own empty caches, layer by layer. With `retains`, more can
    be recalled later, so that windowed layers drop nothing.

    Recurrent layers keep theirs: they have no positions, they see the kept tokens in order.
    Raises UnsupportedCache for kinds that cannot be placed.
    """
    start = PositionRuns()  # one for all, so that every step is worked out once
    return [_to_positioned(cache, retain_all, start) for cache in stock]


def _to_positioned(cache: Any, retains: bool, start: PositionRuns) -> Any:
    kind = type(cache)
    if kind is KVCache:
        return PositionedCache(cache, start)
    if kind is QuantizedKVCache:
        return QuantisedCache(cache, start)
    if kind is RotatingKVCache and cache.keep == 0:
        return WindowedCache(cache.max_size, retains, start)
    if kind is ArraysCache:
        return cache
    if kind is CacheList:
        return CacheList(*(_to_positioned(c, retains, start) for c in cache.caches))
    raise UnsupportedCache(f"its {kind.__name__} layers cannot be read at chosen positions")


class StepWatcher:
    """Says whether every one of `caches` (unfolded) has been given the step that is running."""

    def __init__(self, caches: Iterable[Any]) -> None:
        self._pending = [(cache, _step_state(cache)) for cache in caches][::-1]

    def __call__(self) -> bool:
        while self._pending and _has_changed(*self._pending[-1]):
            self._pending.pop()
        return not self._pending


def _step_state(cache: Any) -> list[Any]:
    """What every step replaces or moves on. Empty for kinds that are not known."""
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


def nbytes(cache: Any) -> int:
    """Of one layer. A quantised one that is empty cannot be asked."""
    empty = isinstance(cache, QuantizedKVCache) and cache.empty()
    return 0 if empty else int(cache.nbytes)


def flatten(cache: Cache) -> list[Any]:
    """All layers' caches, lists unfolded."""
    found: list[Any] = []
    for c in cache:
        found += flatten(c.caches) if isinstance(c, CacheList) else [c]
    return found


def positioned_layers(cache: Cache) -> list[PositionedCache]:
    """Those of them that have positions."""
    return [c for c in flatten(cache) if isinstance(c, PositionedCache)]

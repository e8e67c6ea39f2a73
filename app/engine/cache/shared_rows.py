"""Stores rows that several conversations share only once.

A *row* is the entry of one token in all layers that store every token. `PrefixCache.reads` has the
number of the forward that wrote it: two caches with the same number at a position (one is a fork of
the other) have the same row. Only one of them holds it; in the other it is *absent* until that
cache is used again. Sliding windows and recurrent states are not shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map
from numpy.typing import NDArray

from app.engine.cache.caches import PositionedCache, row_layers, store_of
from app.engine.cache.positions import Positions
from app.engine.cache.prefix_cache import PrefixCache

MIN_SHARED, MAX_REST = 128, 4
"""Rows are released if at least `MIN_SHARED` are shared, and at most `MAX_REST` times as many are
not: those are copied when the others are freed, and again when they are fetched."""
Tokens = NDArray[np.bool_]
"""A mask over the tokens of a conversation, bool (L,)."""


class RowsLost(LookupError):
    """No cache holds the rows of some absent tokens."""


def held_by(holder: PrefixCache, prefix: PrefixCache) -> Tokens:
    """Mask of the tokens of `prefix` whose rows `holder` also holds."""
    size = min(len(holder), len(prefix))
    mine, theirs = prefix.reads[:size], holder.reads[:size]
    same = (mine == theirs) & prefix.cached[:size] & holder.cached[:size] & ~holder.absent[:size]
    return resized(same, len(prefix))


def release(prefix: PrefixCache, holder: PrefixCache) -> None:
    """Free the rows of `prefix` that `holder` also holds, if worth it (see `MIN_SHARED`). If it
    raises, no row has changed."""
    shared = held_by(holder, prefix) & ~prefix.absent
    rest = np.count_nonzero(prefix.cached & ~prefix.absent & ~shared)
    if np.count_nonzero(shared) < max(MIN_SHARED, rest / MAX_REST):
        return
    rows = []
    for layer in row_layers(prefix.cache):
        if store_of(layer).keys is not None:
            held = _held_positions(layer, prefix.absent)
            rows.append((layer, rows_of(layer, np.flatnonzero(~shared[held]))))
    _replace_rows(prefix, rows, prefix.absent | shared, [holder])


def fetch(
    prefix: PrefixCache, holders: Sequence[PrefixCache], tokens: Tokens | None = None
) -> None:
    """Copy the rows of absent tokens (all, or those in `tokens`) from `holders`. Raises RowsLost.
    If it raises, no row has changed and `absent` is still right."""
    wanted = prefix.absent if tokens is None else prefix.absent & tokens
    if not wanted.any():
        return
    sources, missing = [], wanted.copy()
    for holder in holders:
        found = missing & held_by(holder, prefix)
        if found.any():
            sources.append((holder, found))
            missing &= ~found
    if missing.any():
        raise RowsLost(f"{np.count_nonzero(missing):,} tokens are in no cache")
    absent, rows = prefix.absent & ~wanted, []
    theirs = [(row_layers(holder.cache), holder.absent, found) for holder, found in sources]
    for index, layer in enumerate(row_layers(prefix.cache)):
        positions = positions_of(layer)
        if not len(positions):
            continue
        held = _held_positions(layer, prefix.absent)
        parts, places = [], np.full(len(prefix), -1)
        if len(held):
            parts.append(rows_of(layer, np.arange(len(held))))
            places[held] = np.arange(len(held))
        count = len(held)
        for layers, lacking, found in theirs:
            other = _held_positions(layers[index], lacking)
            entries = np.flatnonzero(resized(found, int(other.max(initial=-1)) + 1)[other])
            parts.append(rows_of(layers[index], entries))
            places[other[entries]] = np.arange(count, count + len(entries))
            count += len(entries)
        joined = tree_map(lambda *each: mx.concatenate(list(each), axis=2), *parts)
        rows.append((layer, _take_rows(joined, places[positions[~absent[positions]]])))
    _replace_rows(prefix, rows, absent, holders)


def positions_of(layer: Any) -> Positions:
    """Positions of a layer's entries in storage order, absent ones included."""
    if isinstance(layer, PositionedCache):
        return layer.positions.array()
    return np.arange(layer.offset, dtype=np.int32)


def _held_positions(layer: Any, absent: Tokens) -> Positions:
    """Positions of the rows that a layer holds, in storage order."""
    positions = positions_of(layer)
    return positions[~resized(absent, int(positions.max(initial=-1)) + 1)[positions]]


def rows_of(layer: Any, entries: NDArray[np.int64]) -> Any:
    """(keys, values) of these entries, in this order."""
    store = store_of(layer)
    return _take_rows((store.keys, store.values), entries)


def _take_rows(rows: Any, entries: NDArray[np.int64]) -> Any:
    index = mx.array(entries)
    return tree_map(lambda array: mx.take(array, index, axis=2), rows)


def _replace_rows(
    prefix: PrefixCache,
    rows: Sequence[tuple[Any, Any]],
    absent: Tokens,
    holders: Sequence[PrefixCache],
) -> None:
    """Set the (keys, values) of layers. If evaluation fails, they stay lazy and are evaluated when
    used."""
    stores = [store_of(layer) for layer, _ in rows]
    for store, (_, (keys, values)) in zip(stores, rows, strict=True):
        arrays: Any = tree_flatten(keys)
        store.keys, store.values = (keys, values) if arrays[0][1].shape[2] else (None, None)
    prefix.record_absent(absent, holders)
    for store in stores:  # one by one, so that each frees its old arrays before the next
        if store.keys is not None:
            _compute(store)


def _compute(store: Any) -> None:
    mx.eval(store.keys, store.values)


def resized(tokens: Tokens, length: int) -> Tokens:
    """Cut the mask to `length`, or extend it with False."""
    return np.append(tokens[:length], np.zeros(max(0, length - len(tokens)), bool))

"""What several conversations have read alike is stored once.

A *row* is what a cache stores of one token, in all layers that store every token. The number in
`PrefixCache.reads` says which forward wrote it: two caches with the same number at a position, one
a fork of the other, have the same row. So only one of them has to hold it; in the other it is
*absent*, until that one is used again. Sliding windows and recurrent states are small, and each
cache has its own.
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

FEWEST, MAX_REST = 128, 4
"""Shared tokens that are worth storing once; and how many times as many others a cache may hold:
those are copied when their neighbours are freed, and again when they are fetched."""
Tokens = NDArray[np.bool_]
"""Of a conversation, (L,): whether each of them is meant."""


class RowsLost(LookupError):
    """No cache has the rows of absent tokens."""


def held_by(holder: PrefixCache, prefix: PrefixCache) -> Tokens:
    """Which of the tokens of `prefix` have rows that `holder` has itself, and the same ones."""
    size = min(len(holder), len(prefix))
    mine, theirs = prefix.reads[:size], holder.reads[:size]
    same = (mine == theirs) & prefix.cached[:size] & holder.cached[:size] & ~holder.absent[:size]
    return resized(same, len(prefix))


def release(prefix: PrefixCache, holder: PrefixCache) -> None:
    """Free the rows of `prefix` that `holder` has as well, where that pays. What fails changes no
    row."""
    shared = held_by(holder, prefix) & ~prefix.absent
    rest = np.count_nonzero(prefix.cached & ~prefix.absent & ~shared)
    if np.count_nonzero(shared) < max(FEWEST, rest / MAX_REST):
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
    """Copy the rows of absent tokens, of all or of these, from `holders`. Raises RowsLost. What
    fails changes no row, and `absent` says which ones it has then."""
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
        rows.append((layer, _taken(joined, places[positions[~absent[positions]]])))
    _replace_rows(prefix, rows, absent, holders)


def positions_of(layer: Any) -> Positions:
    """Of a layer's entries, in the order of storage, whether it holds them or not."""
    if isinstance(layer, PositionedCache):
        return layer.positions.array()
    return np.arange(layer.offset, dtype=np.int32)


def _held_positions(layer: Any, absent: Tokens) -> Positions:
    """Of the rows that a layer holds, in the order of storage."""
    positions = positions_of(layer)
    return positions[~resized(absent, int(positions.max(initial=-1)) + 1)[positions]]


def rows_of(layer: Any, entries: NDArray[np.int64]) -> Any:
    """Keys and values of these entries, in this order."""
    store = store_of(layer)
    return _taken((store.keys, store.values), entries)


def _taken(rows: Any, entries: NDArray[np.int64]) -> Any:
    index = mx.array(entries)
    return tree_map(lambda array: mx.take(array, index, axis=2), rows)


def _replace_rows(
    prefix: PrefixCache,
    rows: Sequence[tuple[Any, Any]],
    absent: Tokens,
    holders: Sequence[PrefixCache],
) -> None:
    """Let each layer hold these keys and values. Where computing them fails, they are computed when
    they are used."""
    stores = [store_of(layer) for layer, _ in rows]
    for store, (_, (keys, values)) in zip(stores, rows, strict=True):
        arrays: Any = tree_flatten(keys)
        store.keys, store.values = (keys, values) if arrays[0][1].shape[2] else (None, None)
    prefix.record_absent(absent, holders)
    for store in stores:  # one after another: what it held is freed before the next
        if store.keys is not None:
            _compute(store)


def _compute(store: Any) -> None:
    mx.eval(store.keys, store.values)


def resized(tokens: Tokens, length: int) -> Tokens:
    """Cut, or with more tokens that are not meant."""
    return np.append(tokens[:length], np.zeros(max(0, length - len(tokens)), bool))

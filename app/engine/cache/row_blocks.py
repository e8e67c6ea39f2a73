"""The rows of a cache, cut into blocks of consecutive tokens for snapshots.

A block is named after what it holds: which forward read each of its tokens. Blocks of the same name
hold the same rows, so one file serves every conversation that goes on from the same reading, and a
later snapshot of a conversation writes only the blocks that have changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

from app.engine.cache.caches import PositionedCache, row_layers, store_of
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.cache.shared_rows import positions_of, rows_of

BLOCK = 1024
"""Tokens. Those after the last whole block that two conversations share are stored twice."""
Rows = list[Any]
"""Keys and values of each layer that stores rows, in the order of the tokens; () for those that
hold nothing."""


class Block(NamedTuple):
    """The tokens from `start` up to `end`."""

    digest: str
    start: int
    end: int


def blocks_of(prefix: PrefixCache) -> list[Block]:
    """Those with cached tokens."""
    layers = [store_of(layer) for layer in row_layers(prefix.cache)]
    about = [(type(s).__name__, getattr(s, "bits", 0), getattr(s, "group_size", 0)) for s in layers]
    reads = np.where(prefix.cached, prefix.reads, 0)
    found = []
    for start in range(0, len(prefix), BLOCK) if layers else ():
        end = min(start + BLOCK, len(prefix))
        if prefix.cached[start:end].any():
            digest = hashlib.sha256(repr((about, start, end)).encode())
            digest.update(prefix.cached[start:end].tobytes() + reads[start:end].tobytes())
            found.append(Block(digest.hexdigest()[:32], start, end))
    return found


def block_rows(prefix: PrefixCache, block: Block) -> Rows:
    """Of a cache that has all of its rows."""
    found: Rows = []
    for layer in row_layers(prefix.cache):
        positions = positions_of(layer)
        entries = np.flatnonzero((positions >= block.start) & (positions < block.end))
        ordered = entries[np.argsort(positions[entries])]
        if len(ordered) == 0:
            found.append(())
        elif (np.diff(ordered) == 1).all():
            found.append(_slice(store_of(layer), int(ordered[0]), int(ordered[-1]) + 1))
        else:
            found.append(rows_of(layer, ordered))
    return found


def _slice(store: Any, start: int, end: int) -> Any:
    """The entries from `start` up to `end`: twice as fast as picking each of them."""

    def part(array: mx.array) -> mx.array:
        return mx.contiguous(array[..., start:end, :])

    return tree_map(part, (store.keys, store.values))


def restore_rows(prefix: PrefixCache, blocks: Sequence[tuple[Block, Rows]]) -> None:
    """Give these rows to the layers of `prefix`, whose positions are known and whose rows are
    absent: those of the blocks with its tokens, in their order, of which the last may have more.
    Empties the Rows on the way. Raises ValueError if they do not fit."""
    for index, layer in enumerate(row_layers(prefix.cache)):
        store, parts = store_of(layer), list[Any]()
        for block, rows in blocks:
            if index < len(rows) and rows[index]:
                wanted = int(np.count_nonzero(prefix.cached[block.start : block.end]))
                parts.append(_first(rows[index], wanted, exactly=block.end <= len(prefix)))
                rows[index] = ()
        if not parts:
            if store.offset:
                raise ValueError(f"no rows of {store.offset} tokens")
            continue
        joined: Any = tree_map(lambda *each: mx.concatenate(list(each), axis=2), *parts)
        named: Any = tree_flatten(joined)
        store.keys, store.values = joined
        if (count := int(named[0][1].shape[2])) != len(positions_of(layer)):
            raise ValueError(f"{count} rows of {len(positions_of(layer))} tokens")
        if isinstance(layer, PositionedCache) and not layer.positions.ascending:
            places = np.argsort(np.argsort(layer.positions.array()))
            store.keys, store.values = rows_of(layer, places)
        mx.eval(store.keys, store.values)
    prefix.absent = np.zeros(len(prefix), bool)


def _first(rows: Any, count: int, exactly: bool) -> Any:
    """The rows of the first `count` tokens; of all there are, if `exactly`. Raises ValueError."""

    def part(array: mx.array) -> mx.array:
        if array.shape[2] < count or (exactly and array.shape[2] > count):
            raise ValueError(f"{array.shape[2]} rows of {count} tokens")
        return array[..., :count, :]

    return tree_map(part, rows)

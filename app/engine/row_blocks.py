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

from app.engine.caches import PositionedCache
from app.engine.prefix_cache import PrefixCache
from app.engine.shared_rows import positions_of, row_layers, rows_of, store_of

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
    layers = [store_of(layer) for layer in row_layers(prefix)]
    about = [(type(s).__name__, getattr(s, "bits", 0), getattr(s, "group_size", 0)) for s in layers]
    reads = np.where(prefix.cached, prefix.reads, 0)
    found = []
    for start in range(0, len(prefix), BLOCK) if layers else ():
        end = min(start + BLOCK, len(prefix))
        if prefix.cached[start:end].any():
            digest = hashlib.sha256(repr((about, prefix.num_layers, start, end)).encode())
            digest.update(prefix.cached[start:end].tobytes() + reads[start:end].tobytes())
            found.append(Block(digest.hexdigest()[:32], start, end))
    return found


def block_rows(prefix: PrefixCache, block: Block) -> Rows:
    """Of a cache that has all of its rows."""
    found: Rows = []
    for layer in row_layers(prefix):
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


def restore_rows(prefix: PrefixCache, blocks: Sequence[Rows]) -> None:
    """Give these rows, of blocks in the order of the tokens, to the layers of `prefix`, whose
    positions are known. Empties `blocks` on the way. Raises ValueError if they do not fit."""
    for index, layer in enumerate(row_layers(prefix)):
        used = [block for block in blocks if index < len(block) and block[index]]
        if not used:
            continue
        parts = [block[index] for block in used]
        joined: Any = tree_map(lambda *each: mx.concatenate(list(each), axis=2), *parts)
        for block in used:
            block[index] = ()
        named: Any = tree_flatten(joined)
        store, count = store_of(layer), int(named[0][1].shape[2])
        (store.keys, store.values), store.offset = joined, count
        if isinstance(layer, PositionedCache):
            positions = layer.positions.array()
            if len(positions) != count:
                raise ValueError(f"{count} rows at {len(positions)} positions")
            if not layer.positions.ascending:
                places = np.argsort(np.argsort(positions))
                store.keys, store.values = rows_of(layer, places)
        mx.eval(store.keys, store.values)

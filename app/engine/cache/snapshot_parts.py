"""The parts of a snapshot: what is in its files, and how a cache is made from them again.

For each model: its tokens, the layers that store no rows (sliding windows, recurrent states) and
their copies at checkpoints, each in mlx-lm's own format; then the rows, in blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import ArraysCache, load_prompt_cache, save_prompt_cache

from app.engine.cache.caches import PositionedCache, WindowedCache, flatten, store_of, stores_rows
from app.engine.cache.positions import PositionRuns
from app.engine.cache.prefix_cache import Checkpoint, PrefixCache
from app.engine.cache.row_blocks import Block, block_rows, blocks_of
from app.engine.cache.snapshot_manifest import SnapshotError, block_digest


def metadata_of(prefix: PrefixCache) -> dict[str, Any]:
    """What the manifest says about one model's caches, other than their arrays."""
    return {
        "dense_prefix_len": prefix.dense_prefix_len,
        "layers": [_layer_metadata(c) for c in flatten(prefix.cache)],
        "checkpoints": [
            {
                "position": checkpoint.position,
                "states": {str(i): _layer_metadata(c) for i, c in checkpoint.states.items()},
            }
            for checkpoint in prefix.checkpoints
        ],
    }


def _layer_metadata(cache: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"kind": type(cache).__name__}
    if stores_rows(cache):
        metadata["entries"] = store_of(cache).offset
    if isinstance(cache, PositionedCache):
        metadata["runs"] = cache.positions.runs
    if isinstance(cache, WindowedCache):
        metadata |= {"retain_all": cache.retain_all, "evicted_below": cache.evicted_below}
    return metadata


class Part(NamedTuple):
    """A file of a snapshot: its name, without number and extension, and what writes it to a path
    and returns what is in it."""

    name: str
    write: Callable[[Path], Any]


def parts_of(model: str, prefix: PrefixCache) -> Iterator[Part]:
    """The tokens, the layers that store no rows, the checkpoints' layers, and the rows."""
    for index, layer in enumerate(_layers_without_rows(prefix)):
        yield Part(f"{model}-{index}", partial(_write_layer, layer))
    for block in blocks_of(prefix):
        yield Part(f"{model}-rows-{block.digest}", partial(_write_rows, prefix, block))


def _layers_without_rows(prefix: PrefixCache) -> Iterator[Any]:
    """Stock caches: the tokens, the layers that store no rows, then the checkpoints' layers."""
    tokens = ArraysCache(3)
    tokens[0], tokens[1] = mx.array(prefix.ids), mx.array(prefix.cached.astype(np.uint8))
    tokens[2] = mx.array(prefix.reads)
    yield tokens
    layers = [cache for cache in flatten(prefix.cache) if not stores_rows(cache)]
    copies = [cache for point in prefix.checkpoints for cache in point.states.values()]
    for cache in [*layers, *copies]:
        yield cache.inner if isinstance(cache, PositionedCache) else cache


def _write_layer(layer: Any, path: Path) -> Any:
    save_prompt_cache(str(path), [layer])
    return layer


def _write_rows(prefix: PrefixCache, block: Block, path: Path) -> Any:
    rows = block_rows(prefix, block)
    named: Any = tree_flatten(rows)
    mx.save_safetensors(str(path), dict(named))
    return rows


def read_part(path: Path) -> Any:
    """A stock cache, or the Rows of a block. Not evaluated yet."""
    if block_digest(path.name) is None:
        return load_prompt_cache(str(path))[0]
    arrays: Any = mx.load(str(path))
    return tree_unflatten(list(arrays.items()))


def restore(prefix: PrefixCache, metadata: dict[str, Any], stored: list[Any]) -> None:
    """Fills an empty `prefix`, but for the rows: they are absent. Raises SnapshotError when
    metadata and caches do not agree."""
    tokens, *rest = stored
    inner, layers = iter(rest), flatten(prefix.cache)
    positions: dict[object, PositionRuns] = {}
    for cache, about in zip(layers, metadata["layers"], strict=True):
        _restore_layer(cache, about, inner, positions)
    prefix.ids = np.array(tokens[0], dtype=np.int32)
    prefix.cached = np.array(tokens[1]).astype(bool)
    prefix.absent = prefix.cached.copy()
    prefix.reads = np.array(tokens[2])
    prefix.dense_prefix_len = int(metadata["dense_prefix_len"])
    for checkpoint in metadata["checkpoints"]:
        states = {int(index): _empty_like(layers[int(index)]) for index in checkpoint["states"]}
        for state, about in zip(states.values(), checkpoint["states"].values(), strict=True):
            _restore_layer(state, about, inner, positions)
        prefix.checkpoints.append(Checkpoint(int(checkpoint["position"]), states))
    prefix.record_states()


def _empty_like(cache: Any) -> Any:
    """An empty cache of the same kind."""
    if isinstance(cache, WindowedCache):
        return WindowedCache(cache.window)
    if isinstance(cache, PositionedCache):
        return PositionedCache()
    return copy.copy(cache)


def _restore_layer(
    cache: Any,
    metadata: dict[str, Any],
    stored: Iterator[Any],
    positions: dict[object, PositionRuns],
) -> None:
    """From the next one of `stored`, unless it stores rows. `positions` are those of earlier
    layers: layers with equal ones share one object."""
    if type(cache).__name__ != metadata["kind"]:
        raise SnapshotError("its layers are of other kinds")
    if stores_rows(cache):
        store_of(cache).offset = int(metadata["entries"])
    else:
        own = cache.inner if isinstance(cache, PositionedCache) else cache
        own.__dict__.update(next(stored).__dict__)
    if not isinstance(cache, PositionedCache):
        return
    runs = tuple((start, end) for start, end in metadata["runs"])
    cache.positions = positions.setdefault(runs, PositionRuns(runs))
    if isinstance(cache, WindowedCache):
        cache.retain_all = bool(metadata["retain_all"])
        cache.evicted_below = int(metadata["evicted_below"])


def contents_of(part: Any) -> Any:
    """Arrays and numbers of a stock cache, or of Rows."""
    return part if isinstance(part, list) else part.state

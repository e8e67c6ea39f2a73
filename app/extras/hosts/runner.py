"""One rank of a sharded target: its shard of the weights and caches, and the operations on them,
which the engine's process sends (`model.py`).

All ranks run the same operations in the same order, because their layers wait for each other. A
rank receives token ids and positions, but no text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedLinear
from numpy.typing import NDArray

from app.engine.backend import memory
from app.engine.cache.caches import drop_last, reserve_capacity
from app.engine.cache.positions import Positions
from app.engine.cache.prefill import forward, make_positioned_cache, make_stock_cache, prefill_step
from app.engine.cache.prefix_cache import PrefixCache, find_mismatch
from app.engine.cache.shared_rows import fetch, release
from app.engine.cache.snapshot import SnapshotError, Snapshots
from app.engine.cache.snapshot_folder import disk_limit, keep_only, parts_folders, remove_snapshot
from app.engine.model.loader import LoadedModel, load_one
from app.engine.progress import LoadError, TurnCancelled
from app.extras.hosts.sharded import contents_digest
from app.protocol.reasons import FailureKind

COUNTS = (
    ("n_heads", "n_kv_heads"),
    ("num_attention_heads", "num_key_value_heads"),
    ("num_heads", "num_kv_heads"),
    ("num_heads", "num_key_value_heads"),
)
"""Names of the numbers of query heads and of key/value heads in mlx-lm's attention layers."""


class Indivisible(ValueError):
    """Why a model's heads cannot be divided among the ranks, as a clause."""


def pad_heads(model: Any, ranks: int) -> None:
    """Pad attention layers with zero heads until the number of heads is divisible by `ranks`, as
    mlx-lm requires (SmolLM2 has 3 key heads). Zero heads do not change the output. Raises
    Indivisible."""
    for layer in model.layers:
        if (attention := getattr(layer, "self_attn", None)) is not None:
            _pad_layer(attention, ranks)


def _pad_layer(attention: Any, ranks: int) -> None:
    names = next((pair for pair in COUNTS if all(hasattr(attention, n) for n in pair)), None)
    if names is None:
        heads = int(getattr(attention, "num_heads", ranks))
        if heads % ranks:
            raise Indivisible(f"it has {heads} heads")
        return
    queries, keys = (int(getattr(attention, name)) for name in names)
    if keys % ranks == 0:
        return
    parts = [getattr(attention, f"{name}_proj", None) for name in "qkvo"]
    if any(not isinstance(part, Linear | QuantizedLinear) for part in parts):
        raise Indivisible(f"it has {keys} heads of keys")
    added = -keys % ranks
    extra = added * queries // keys
    q, k, v, o = (part for part in parts if part is not None)
    norm: Any = getattr(attention, "q_norm", None)
    if norm is not None and norm.weight.shape[0] != q.weight.shape[0] // queries:
        raise Indivisible("it normalises all of its heads together")
    _pad_rows(q, queries, extra)
    _pad_rows(k, keys, added)
    _pad_rows(v, keys, added)
    _pad_columns(o, queries, extra)
    if (sinks := getattr(attention, "sinks", None)) is not None:
        attention.sinks = mx.pad(sinks, (0, extra))
    setattr(attention, names[0], queries + extra)
    setattr(attention, names[1], keys + added)


def _pad_rows(linear: Any, heads: int, extra: int) -> None:
    """Pad the outputs (heads * width, ...) by `extra` heads."""
    for name in ("weight", "scales", "biases", "bias"):
        if (array := linear.get(name)) is not None:
            rows = array.shape[0] // heads * extra
            setattr(linear, name, mx.pad(array, [(0, rows)] + [(0, 0)] * (array.ndim - 1)))


def _pad_columns(linear: Any, heads: int, extra: int) -> None:
    """Pad the inputs (..., heads * width) by `extra` heads. Raises Indivisible."""
    for name in ("weight", "scales", "biases"):
        if (array := linear.get(name)) is not None:
            if array.shape[1] % heads:
                raise Indivisible("groups of its quantised weights span heads")
            setattr(linear, name, mx.pad(array, [(0, 0), (0, array.shape[1] // heads * extra)]))


Reply = dict[str, Any]
"""Plain values and NumPy arrays."""


_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TargetCache:
    """A rank's cache of a conversation in the form that `Snapshots` expects; there is no draft."""

    target: PrefixCache
    draft: PrefixCache | None = None

    @property
    def nbytes(self) -> int:
        return self.target.nbytes


class ShardRunner:
    """Runs operations: methods by name, whose first argument is the number of a cache."""

    def __init__(self, model: LoadedModel, rank: int, snapshots: Path | None = None) -> None:
        """`snapshots`: folder for this rank's shards of snapshots; None: they are not saved."""
        self._model, self._rank = model, rank
        self._folder = snapshots
        self._saving: Generator[tuple[int, int], None, None] | None = None
        self._snapshots: Snapshots | None = None
        if snapshots is not None:
            limit = disk_limit(0, snapshots, model.info.weight_bytes)
            self._snapshots = Snapshots(snapshots, limit, {"target": model.fingerprint})
        self._caches: dict[int, PrefixCache] = {}
        self._reserved: dict[int, AbstractContextManager[None]] = {}
        self._undos: dict[int, Callable[[int], None] | None] = {}
        self.operations: dict[str, Callable[..., Reply | None]] = {
            method.__name__: method
            for method in (
                self.new,
                self.fork,
                self.forget,
                self.clear,
                self.mark,
                self.extend,
                self.evict,
                self.retain_all,
                self.add_checkpoint,
                self.rewind,
                self.trim,
                self.prepare_undo,
                self.undo,
                self.release,
                self.fetch,
                self.check,
                self.reserve,
                self.end_reserve,
                self.start_saving,
                self.save_part,
                self.stop_saving,
                self.load,
                self.delete_snapshot,
                self.keep_snapshots,
                self.fill,
                self.forward,
            )
        }

    # ------------------------------------------------------------------ caches

    def new(self, cache: int, positioned: bool) -> None:
        make = make_positioned_cache if positioned else make_stock_cache
        self._caches[cache] = PrefixCache(partial(make, self._model.caches))

    def fork(self, cache: int, twin: int, position: int | None) -> None:
        self._caches[twin] = self._caches[cache].fork(position)

    def forget(self, cache: int) -> None:
        self._caches.pop(cache, None)
        self._undos.pop(cache, None)

    def clear(self, cache: int) -> None:
        self._caches[cache].clear()

    def mark(self, cache: int, end: int, positions: Positions, read: int) -> None:
        """Record that the tokens at `positions` were read; the cache then has `end` tokens. Ranks
        do not know the ids of skipped tokens, so all ids are 0."""
        self._undos.pop(cache, None)
        self._caches[cache].mark_cached(np.zeros(end, np.int32), positions, read)

    def extend(self, cache: int, end: int) -> None:
        """Record that the tokens after those recorded so far, up to `end`, are skipped."""
        self._caches[cache].extend(np.zeros(end, np.int32))

    def evict(self, cache: int, positions: Positions) -> None:
        self._caches[cache].evict(positions)

    def retain_all(self, cache: int, retain_all: bool) -> None:
        self._caches[cache].set_retain_all(retain_all)

    def add_checkpoint(self, cache: int, limit: int, lasting: bool) -> None:
        self._caches[cache].add_checkpoint(limit, lasting)

    def rewind(self, cache: int, position: int) -> None:
        self._caches[cache].rewind(position)

    def trim(self, cache: int, count: int) -> None:
        drop_last(self._caches[cache].cache, count)

    def prepare_undo(self, cache: int) -> None:
        """Let `undo` restore the current state, until the next `prepare_undo` or `mark`."""
        self._undos[cache] = self._caches[cache].step_undo()

    def undo(self, cache: int, count: int) -> None:
        """Undo the last step, of `count` tokens."""
        if (undo := self._undos.pop(cache, None)) is not None:
            undo(count)

    def release(self, cache: int, holder: int) -> None:
        release(self._caches[cache], self._caches[holder])

    def fetch(self, cache: int, holders: list[int], tokens: Positions) -> None:
        prefix = self._caches[cache]
        wanted = np.zeros(len(prefix), bool)
        wanted[tokens] = True
        fetch(prefix, [self._caches[each] for each in holders], wanted)

    def check(self, cache: int) -> Reply:
        """How the cache differs from its recorded tokens, as a clause, or None."""
        return {"problem": find_mismatch(self._caches[cache])}

    def reserve(self, cache: int, count: int) -> None:
        """Enter `reserve_capacity` for `count` tokens, until `end_reserve`."""
        reserved = reserve_capacity(self._caches[cache].cache, count)
        reserved.__enter__()
        self._reserved[cache] = reserved

    def end_reserve(self, cache: int, cancelled: bool) -> None:
        if (reserved := self._reserved.pop(cache, None)) is None:
            return
        with suppress(TurnCancelled):
            error = TurnCancelled() if cancelled else None
            reserved.__exit__(type(error) if error else None, error, None)

    # ------------------------------------------------------------------ snapshots

    def start_saving(self, cache: int, conversation: str) -> None:
        if self._snapshots is not None:
            part = TargetCache(self._caches[cache])
            self._saving = self._snapshots.save(conversation, part)

    def save_part(self, cache: int) -> Reply:
        """Write the next file. If that fails, saving ends; loading will find a part missing."""
        try:
            done, total = (1, 1) if self._saving is None else next(self._saving)
        except Exception as error:  # MLX raises any type
            memory.reraise_gpu_lost(error)
            _log.warning("a part of a snapshot was not saved", exc_info=error)
            done = total = 1
        return {"done": done == total}

    def stop_saving(self, cache: int) -> None:
        if self._saving is not None:
            self._saving.close()
            self._saving = None

    def load(self, cache: int, conversation: str, wanted: int) -> Reply:
        """Restore the first `wanted` tokens. Replies with the `contents_digest`, "" on failure."""
        loaded = None
        try:
            if self._snapshots is not None:
                empty = self._caches[cache]
                loaded = self._snapshots.load(
                    conversation, lambda: TargetCache(empty), wanted=lambda *_: wanted
                )
        except SnapshotError as error:
            _log.warning("a part of a snapshot cannot be used: %s", error)
        return {"contents": "" if loaded is None else contents_digest(loaded.target)}

    def delete_snapshot(self, cache: int, conversation: str) -> None:
        """Delete a conversation's shards for all models and numbers of machines."""
        for folder in self._parts:
            remove_snapshot(folder, conversation)

    def keep_snapshots(self, cache: int, names: list[str]) -> None:
        """Delete all snapshot folders except those with these names."""
        for folder in self._parts:
            keep_only(folder, names)

    @property
    def _parts(self) -> list[Path]:
        return [] if self._folder is None else parts_folders(self._folder.parent)

    # ------------------------------------------------------------------ forwards

    def fill(
        self, cache: int, ids: NDArray[np.int32], positions: Positions | None, forced: bool
    ) -> None:
        layers, backend = self._caches[cache].cache, self._model.step.backend
        prefill_step(self._model.model, layers, ids, positions, backend, forced=forced)
        memory.trim_buffer_cache()

    def forward(
        self, cache: int, ids: NDArray[np.int32], positions: Positions | None
    ) -> Reply | None:
        """Feed token ids (n,). Rank 0 replies with the logits, float32 (n, vocabulary)."""
        layers = self._caches[cache].cache
        logits = forward(self._model.model, layers, ids, positions)[0].astype(mx.float32)
        mx.eval(logits, [c.state for c in layers])
        return {"logits": np.array(logits)} if self._rank == 0 else None


def load_shard(
    folder: str,
    name: str,
    group: mx.distributed.Group,
    step: int | None,
    kv_bits: int | None,
) -> tuple[LoadedModel, Reply]:
    """Load a rank's shard of every layer, and describe it for the engine's process. All ranks must
    call it at the same time. Raises LoadError or NotEnoughMemory."""
    shard = partial(shard_layers, name=name, group=group)
    model = load_one(folder, name, step, kv_bits, shard=shard, probes=True)
    described: Reply = {
        "dense_only": [] if model.dense_only is None else [model.dense_only.to_plain()],
        "cache_size": asdict(model.cache_size),
        "transient": asdict(model.transient) | {"heads": -(-model.transient.heads // group.size())},
        "weight_bytes": model.info.weight_bytes,
        "ranks": group.size(),
        "layers": len(model.model.layers),
    }
    return model, described


def shard_layers(model: Any, name: str, group: mx.distributed.Group) -> None:
    """Reduce `model` to a rank's shard with mlx-lm's `shard`. Raises LoadError."""
    ranks, layers = group.size(), len(model.layers)
    if not hasattr(model, "shard"):
        raise LoadError(FailureKind.NO_SHARDING, {"model": name})
    try:
        pad_heads(model, ranks)
        model.shard(group)
    except Exception as error:  # MLX raises different types for indivisible sizes
        data = {"model": name, "machines": ranks}
        if isinstance(error, Indivisible):
            data |= {"error": str(error)}
        raise LoadError(FailureKind.LAYERS_INDIVISIBLE, data) from error
    if len(model.layers) != layers or any(layer is None for layer in model.layers):
        raise LoadError(FailureKind.LAYERS_LOST, {"model": name})

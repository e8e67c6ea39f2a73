"""A target that is sharded over several processes, as seen by the engine's process.

Each process (a *rank*) holds a shard of every layer's weights and caches. The engine's process has
only an *outline* of the caches: one cache with one number per token for each kind of layer, which
has the positions. The same code as for a local model makes all decisions on the outline, and every
change is sent to the ranks, which repeat it on their shards (`runner.py`).
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache
from numpy.typing import NDArray

from app.engine.backend.device import Backend
from app.engine.cache.caches import Cache, DequantisedCache, PositionedCache, flatten
from app.engine.cache.positions import Positions
from app.engine.cache.prefill import OnStep, StepInParts, announce, make_stock_cache
from app.engine.cache.prefix_cache import PrefixCache, find_mismatch, next_read
from app.engine.cache.sizes import CacheSize
from app.engine.cache.snapshot import C, Caches, SnapshotError, Snapshots, Wanted
from app.engine.cache.snapshot_folder import folder_names
from app.engine.model.loader import LoadedModel
from app.estimate.memory import BUDGET_SHARE, MIN_CHECKPOINTS
from app.extras.hosts.recovery import LoadAlone
from app.protocol.reasons import Failure

_numbers = itertools.count(1)
"""Numbers of caches."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of `ShardRunner` that every rank calls on the cache with this number. Arguments are
    plain values and NumPy arrays."""

    name: str
    cache: int
    arguments: dict[str, Any] = field(default_factory=dict)


class Shards(Protocol):
    """The ranks of one target. Once one is lost, `run` raises TargetLost, and `send` does
    nothing."""

    described: dict[str, Any]
    """The description by `load_shard` for the largest shard, and the number of `ranks`."""
    on_lost: Callable[[], None]
    """Called once a rank is lost, on any thread."""

    @property
    def lost(self) -> Failure | None: ...

    def send(self, operation: Operation) -> None:
        """Send an operation to every rank, without waiting. Ranks keep the order."""
        ...

    def run(self, operation: Operation) -> list[dict[str, Any]]:
        """Send an operation and wait for all ranks. Returns their replies in rank order."""
        ...

    def forget(self, cache: int) -> None:
        """Drop a cache on every rank together with the next operation. Thread-safe."""
        ...

    def free(self, share: float) -> float:
        """Bytes free below this share of the memory ceiling, on the machine that has least."""
        ...

    def close(self) -> None:
        """End all ranks."""
        ...


class RankCaches:
    """Handle of the caches on all ranks that belong to one outline. They are dropped when it is
    garbage collected."""

    def __init__(self, shards: Shards) -> None:
        self._shards, self.number = shards, next(_numbers)
        weakref.finalize(self, shards.forget, self.number)

    def send(self, name: str, **arguments: Any) -> None:
        self._shards.send(Operation(name, self.number, arguments))

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Like `reserve_capacity`, on every rank."""
        self.send("reserve", count=count)
        cancelled = True
        try:
            yield
            cancelled = False
        finally:
            self.send("end_reserve", cancelled=cancelled)

    def check(self) -> str | None:
        """How a rank's cache differs from its recorded tokens, as a clause; None if none does."""
        replies = self._shards.run(Operation("check", self.number))
        return next((reply["problem"] for reply in replies if reply["problem"]), None)


class OutlineCache(list[Any]):
    """An outline: a list of caches, as models expect it, and the handle `ranks`."""

    ranks: RankCaches

    def add(self, count: int) -> Positions | None:
        """Add the next `count` tokens. Returns their positions; None for stock caches."""
        positioned = next((c for c in self if isinstance(c, PositionedCache)), None)
        positions = None if positioned is None else positioned.positions_of_next(count)
        entries = mx.zeros((1, 1, count, 1), mx.uint8)
        for layer in self:
            if isinstance(layer, ArraysCache):
                layer.cache = [mx.zeros(1) for _ in layer.cache]  # compared by identity
            else:
                layer.update_and_fetch(entries, entries)
        return positions

    def __deepcopy__(self, memo: dict[int, Any]) -> OutlineCache:
        """The copy has no `ranks`: the ranks' caches have to be forked, too."""
        return OutlineCache(copy.deepcopy(layer, memo) for layer in self)


class ShardedModel:
    """Callable like mlx-lm's models, with an outline as cache. `skeleton`: the model with lazy
    weights, of which only the input embeddings are evaluated."""

    def __init__(self, skeleton: Any, shards: Shards) -> None:
        self._shards = shards
        self._stock = _outline_of(make_stock_cache(skeleton))
        self._skeleton = skeleton

    def __call__(self, tokens: mx.array, cache: OutlineCache) -> mx.array:
        """Feed token ids (1, n). Returns logits, float32 (1, n, vocabulary)."""
        replies = self._run("forward", cache, np.array(tokens[0]).astype(np.int32))
        return mx.array(replies[0]["logits"])[None]

    def fill(self, cache: OutlineCache, ids: NDArray[np.int32], forced: bool) -> None:
        """Feed token ids (n,) without computing logits. `forced`: see `prefill_step`."""
        self._run("fill", cache, ids, forced=forced)

    def _run(
        self, name: str, cache: OutlineCache, ids: NDArray[np.int32], **more: Any
    ) -> list[dict[str, Any]]:
        arguments = {"ids": ids, "positions": cache.add(len(ids)), **more}
        return self._shards.run(Operation(name, cache.ranks.number, arguments))

    def make_cache(self) -> Cache:
        """Empty stock caches of an outline."""
        return copy.deepcopy(self._stock)

    def named_modules(self) -> Any:
        """For finding the input embeddings."""
        return self._skeleton.named_modules()


def _outline_of(stock: Cache) -> Cache:
    """One stock cache for each kind of layer."""
    kinds: dict[object, Any] = {}
    for layer in flatten(stock):
        quantised = isinstance(layer, QuantizedKVCache | DequantisedCache)
        plain = KVCache() if quantised else layer
        kinds.setdefault((type(plain), getattr(plain, "max_size", None)), plain)
    return list(kinds.values())


def _as_outline(layers: Cache, ranks: RankCaches) -> OutlineCache:
    cache = OutlineCache(layers)
    cache.ranks = ranks
    return cache


class ShardedPrefixCache(PrefixCache):
    """A prefix cache whose values are on the ranks. Each change of the outline is sent to them."""

    is_remote = True

    def __init__(
        self, make_layers: Callable[[], Cache], shards: Shards, ranks: RankCaches | None = None
    ) -> None:
        self._make_layers, self._shards = make_layers, shards
        self._repeating = False
        """Whether the current change of the outline is already covered by an operation."""
        self.ranks = ranks or RankCaches(shards)
        if ranks is None:
            positioned = any(isinstance(c, PositionedCache) for c in make_layers())
            self.ranks.send("new", positioned=positioned)
        with self._repeated():  # the lambda must not refer to self: that would be a reference cycle
            ranks = self.ranks
            super().__init__(lambda: _as_outline(make_layers(), ranks))

    @contextmanager
    def _repeated(self, name: str = "", **arguments: Any) -> Iterator[None]:
        """Context manager for a change of the outline: sends it to the ranks as one operation,
        after the operations of other caches that it triggers."""
        outer, self._repeating = self._repeating, True
        try:
            yield
        finally:
            self._repeating = outer
        if name and not outer:
            self.ranks.send(name, **arguments)

    def clear(self) -> None:
        with self._repeated("clear"):
            super().clear()

    def fork(self, position: int | None = None) -> PrefixCache:
        ranks = RankCaches(self._shards)
        position = None if position is None else self.rewind_target(position)
        self.ranks.send("fork", twin=ranks.number, position=position)
        twin = ShardedPrefixCache(self._make_layers, self._shards, ranks)
        with twin._repeated():
            self._copy_to(twin, position)
        twin.cache = _as_outline(twin.cache, ranks)
        return twin

    def mark_cached(
        self, ids: NDArray[np.int32], positions: Positions, read: int | None = None
    ) -> None:
        if not len(positions):
            return
        read = next_read() if read is None else read
        with self._repeated("mark", end=int(positions[-1]) + 1, positions=positions, read=read):
            super().mark_cached(ids, positions, read)

    def extend(self, ids: NDArray[np.int32]) -> None:
        with self._repeated("extend", end=len(ids)):
            super().extend(ids)

    def evict(self, positions: Positions) -> None:
        with self._repeated("evict", positions=positions):
            super().evict(positions)

    def set_retain_all(self, retain_all: bool) -> None:
        if retain_all != self.retain_all:
            with self._repeated("retain_all", retain_all=retain_all):
                super().set_retain_all(retain_all)

    def add_checkpoint(self, limit: int = MIN_CHECKPOINTS, lasting: bool = False) -> None:
        with self._repeated("add_checkpoint", limit=limit, lasting=lasting):
            super().add_checkpoint(limit, lasting)

    @property
    def nbytes(self) -> int:
        """Bytes on the rank with the largest shard."""
        size = CacheSize(**self._shards.described["cache_size"])
        return int(size.bytes(int((self.cached & ~self.absent).sum()), self.retain_all))

    def rewind(self, position: int) -> int:
        position = self.rewind_target(position)  # a rank may not have the layer that limits it
        with self._repeated("rewind", position=position):
            return super().rewind(position)

    def record_absent(self, absent: NDArray[np.bool_], holders: Sequence[PrefixCache]) -> None:
        numbers = [each.ranks.number for each in holders if isinstance(each, ShardedPrefixCache)]
        copied = np.flatnonzero(self.absent & ~absent).astype(np.int32)
        if len(copied):
            self.ranks.send("fetch", holders=numbers, tokens=copied)
        else:
            self.ranks.send("release", holder=numbers[0])
        super().record_absent(absent, holders)

    def reserved(self, count: int) -> AbstractContextManager[None]:
        return self.ranks.reserved(count)

    def drop_last(self, count: int) -> None:
        self.ranks.send("trim", count=count)
        super().drop_last(count)

    def step_undo(self) -> Callable[[int], None] | None:
        if (undo := super().step_undo()) is None:
            return None
        self.ranks.send("prepare_undo")

        def undo_everywhere(count: int) -> None:
            undo(count)
            self.ranks.send("undo", count=count)

        return undo_everywhere

    def _fill(
        self,
        model: ShardedModel,
        cache: Cache,
        ids: NDArray[np.int32],
        positions: Positions | None,
        backend: Backend,
        forced: bool,
        parts: StepInParts | None,
    ) -> None:
        assert isinstance(cache, OutlineCache)
        if positions is not None:
            announce(cache, positions)
        model.fill(cache, ids, forced)


class ShardedSnapshots(Snapshots):
    def __init__(self, folder: Path, budget: int, identity: dict[str, str], shards: Shards) -> None:
        super().__init__(folder, budget, identity)
        self._shards = shards
        shards.send(Operation("keep_snapshots", 0, {"names": folder_names(folder)}))

    def save(self, conversation: str, cache: Caches) -> Generator[tuple[int, int], None, None]:
        number = _number(cache.target)
        self._do("start_saving", number, conversation=conversation)
        done = False
        try:
            while not done:
                replies = self._shards.run(Operation("save_part", number))
                done = all(reply["done"] for reply in replies)
                yield 0, 1
            yield from super().save(conversation, cache)
        finally:
            self._do("stop_saving", number)

    def load(
        self,
        conversation: str,
        fresh: Callable[[], C],
        report: Callable[[int], OnStep] = lambda total: lambda done: None,
        wanted: Wanted | None = None,
    ) -> C | None:
        loaded = super().load(conversation, fresh, report, wanted)
        if loaded is None:
            return None
        arguments = {"conversation": conversation, "wanted": len(loaded.target)}
        replies = self._shards.run(Operation("load", _number(loaded.target), arguments))
        if any(reply["contents"] != contents_digest(loaded.target) for reply in replies):
            self.delete(conversation)
            raise SnapshotError("a machine has lost its part of it")
        return loaded

    def delete(self, conversation: str) -> None:
        super().delete(conversation)
        self._do("delete_snapshot", 0, conversation=conversation)

    def _do(self, name: str, number: int, **arguments: str) -> None:
        self._shards.send(Operation(name, number, dict(arguments)))


def contents_digest(prefix: PrefixCache) -> str:
    """A digest of which tokens are cached and which forwards read them."""
    return hashlib.sha256(prefix.cached.tobytes() + prefix.reads.tobytes()).hexdigest()


def _number(prefix: PrefixCache) -> int:
    assert isinstance(prefix, ShardedPrefixCache)
    return prefix.ranks.number


@dataclass(eq=False)
class ShardedTarget(LoadedModel):
    """A target on several ranks. `model` is a `ShardedModel`; this process holds the tokenizer, the
    input embeddings and an outline of the caches."""

    shards: Shards = field(kw_only=True)

    def make_prefix(self, positioned: bool) -> PrefixCache:
        return ShardedPrefixCache(self.layer_maker(positioned), self.shards)

    def free_memory(self, share: float | None = None) -> float:
        return self.shards.free(BUDGET_SHARE if share is None else share)

    def find_mismatch(self, prefix: PrefixCache) -> str | None:
        assert isinstance(prefix, ShardedPrefixCache)
        if (problem := find_mismatch(prefix)) is not None or not len(prefix):
            return problem
        return prefix.ranks.check()

    def make_snapshots(self, folder: Path, budget: int, identity: dict[str, str]) -> Snapshots:
        return ShardedSnapshots(folder, budget, identity, self.shards)

    def delete_snapshots_elsewhere(self, conversation: str) -> None:
        self.shards.send(Operation("delete_snapshot", 0, {"conversation": conversation}))

    @property
    def processes(self) -> int:
        return int(self.shards.described["ranks"])

    @property
    def recovery(self) -> LoadAlone | None:
        lost = self.shards.lost
        return None if lost is None else LoadAlone(lost, self.info.name)

    def watch(self, on_lost: Callable[[], None]) -> None:
        self.shards.on_lost = on_lost
        if self.shards.lost is not None:
            on_lost()

    def close(self) -> None:
        self.shards.close()

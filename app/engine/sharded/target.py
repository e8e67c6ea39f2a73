"""A target in several processes, as turns, memory and the engine use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from app.engine.cache.check import find_mismatch
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.cache.snapshot import Snapshots
from app.engine.model.loader import LoadedModel, ShardsLost
from app.engine.sharded.model import Operation, ShardedPrefixCache, Shards
from app.engine.sharded.snapshots import ShardedSnapshots
from app.estimate.memory import BUDGET_SHARE


@dataclass(eq=False)
class ShardedTarget(LoadedModel):
    """Its `model` is a `ShardedModel` of the same shards; in this process it has the tokenizer, the
    input embeddings, and an outline of the caches."""

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
    def lost(self) -> ShardsLost | None:
        return self.shards.lost

    def watch(self, on_lost: Callable[[], None]) -> None:
        self.shards.on_lost = on_lost
        if self.shards.lost is not None:
            on_lost()

    def close(self) -> None:
        self.shards.close()

"""Snapshots of a target that is spread over ranks: each rank saves its part on its own disk, and
this process the outline. The outline comes last, so that where there is one, there are the parts.

A rank knows conversations by name only. Parts whose outline was deleted while the ranks were not
there are deleted when they are next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from pathlib import Path

from app.engine.cache.prefill import OnStep
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.cache.snapshot import C, Caches, Snapshots, Wanted
from app.engine.cache.snapshot_folder import folder_names
from app.engine.cache.snapshot_manifest import SnapshotError
from app.engine.sharded.model import Operation, ShardedPrefixCache, Shards


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
    """Of which tokens a cache has, and which forwards read them."""
    return hashlib.sha256(prefix.cached.tobytes() + prefix.reads.tobytes()).hexdigest()


def _number(prefix: PrefixCache) -> int:
    assert isinstance(prefix, ShardedPrefixCache)
    return prefix.ranks.number

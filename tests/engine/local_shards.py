"""One rank in this process: what the engine sends, without other processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import mlx.core as mx

from app.engine.model.loader import LoadedModel, ShardsLost
from app.engine.sharded.model import Operation, ShardedTarget, Shards
from app.engine.sharded.runner import ShardRunner, load_shard
from app.protocol.commands import Load
from app.protocol.reasons import FailureKind


def gone() -> ShardsLost:
    """The other machine is silent."""
    return ShardsLost(FailureKind.MACHINE_LOST, {"machine": "other", "error": "gone"})


class LocalShards:
    """`fail_at` counts operations down to the one at which the machine is gone."""

    def __init__(self, command: Load, snapshots: Path | None = None) -> None:
        group = mx.distributed.init()
        model, self.described = load_shard(
            command.target, command.names[0], group, None, command.kv_bits
        )
        self.runner = ShardRunner(model, 0, snapshots)
        self.fail_at: int | None = None
        self.lost: ShardsLost | None = None
        self.on_lost: Callable[[], None] = lambda: None
        self.closed = False
        self._forgotten: list[int] = []

    def send(self, operation: Operation) -> None:
        if self.lost is None:
            self._do(operation)

    def run(self, operation: Operation) -> list[dict[str, Any]]:
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.lost = self.lost or gone()
        if self.lost is not None:
            raise self.lost
        return [self._do(operation)]

    def _forget_dropped(self) -> None:
        while self._forgotten:
            self.runner.forget(self._forgotten.pop())

    def _do(self, operation: Operation) -> dict[str, Any]:
        self._forget_dropped()
        run = self.runner.operations[operation.name]
        return run(operation.cache, **operation.arguments) or {}

    def forget(self, cache: int) -> None:
        self._forgotten.append(cache)

    def free(self, share: float) -> float:
        return 1e12

    def close(self) -> None:
        self.closed = True


def spread_over(shards: Shards, model: LoadedModel) -> ShardedTarget:
    """The same target, whose caches are on these shards."""
    values = {each.name: getattr(model, each.name) for each in fields(LoadedModel) if each.init}
    return ShardedTarget(**values, shards=shards)


def connect(command: Load, stopped: Callable[[], bool]) -> LocalShards:
    return LocalShards(command)

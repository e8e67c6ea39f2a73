"""A sharded target with one rank in this process, which can be lost at an exact point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from app.engine.model.loader import LoadedModel
from app.engine.recovery import TargetLost
from app.engine.turn.decode import Decoder
from app.extras.hosts.runner import ShardRunner, load_shard
from app.extras.hosts.sharded import Operation, ShardedTarget, Shards
from app.protocol.commands import CachePolicy, Load
from app.protocol.events import (
    Event,
    Loaded,
)
from app.protocol.hosts import Host, Hosts
from app.protocol.options import BackgroundPolicy
from app.protocol.reasons import Failure, FailureKind
from tests.engine.driver import Driver


def gone() -> Failure:
    return Failure(FailureKind.MACHINE_LOST, {"machine": "other", "error": "gone"})


class LocalShards:
    """`fail_at` counts down the operations until the machine is lost."""

    def __init__(self, command: Load, snapshots: Path | None = None) -> None:
        group = mx.distributed.init()
        model, self.described = load_shard(
            command.target, command.names[0], group, None, command.kv_bits
        )
        self.runner = ShardRunner(model, 0, snapshots)
        self.fail_at: int | None = None
        self.lost: Failure | None = None
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
            raise TargetLost(self.lost.kind, self.lost.data)
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
    """A target whose caches are on these shards."""
    values = {each.name: getattr(model, each.name) for each in fields(LoadedModel) if each.init}
    return ShardedTarget(**values, shards=shards)


def connect(command: Load, stopped: Callable[[], bool]) -> LocalShards:
    return LocalShards(command)


HOSTS = Hosts((Host("other"),))


class Rank(LocalShards):
    """Calls `on_lost` when the machine is lost, as a real cluster does."""

    def run(self, operation: Operation) -> list[dict[str, Any]]:
        was_lost = self.lost
        try:
            return super().run(operation)
        finally:
            if self.lost is not None and was_lost is None:
                self.on_lost()


class Spread:
    """A driver with a sharded target that has one rank in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lost_while_loading = False
        self.shards: list[LocalShards] = []
        self.driver = Driver(connect=self._connect)
        self.driver.engine.send(CachePolicy(BackgroundPolicy.OFF))

    def _connect(self, command: Load, stopped: Callable[[], bool]) -> LocalShards:
        self.shards.append(Rank(command))
        if self.lost_while_loading:
            self.shards[-1].lost = gone()
        return self.shards[-1]

    def load(self) -> Loaded:
        loaded = self.driver.load(self.folder, hosts=HOSTS)
        assert isinstance(loaded, Loaded), loaded
        return loaded

    def lose_now(self) -> None:
        """Lose the machine between turns."""
        self.shards[-1].lost = gone()
        self.shards[-1].on_lost()

    def lose_at(self, operation: int) -> None:
        self.shards[-1].fail_at = operation

    def lose_when(self, wanted: Callable[[Event], bool]) -> None:
        """Lose the machine at the operation after the first matching event."""

        def act(event: Event) -> None:
            if wanted(event) and self.shards[-1].fail_at is None:
                self.lose_at(0)

        self.driver.on_event = act


def lose_after(spread: Spread, patch: pytest.MonkeyPatch, last: Callable[[Decoder], bool]) -> None:
    """Lose the machine at the operation after this token."""
    record = Decoder._record

    def record_and_lose(self: Decoder, token: int) -> None:
        record(self, token)
        if last(self) and spread.shards[-1].lost is None:
            spread.lose_at(0)

    patch.setattr(Decoder, "_record", record_and_lose)

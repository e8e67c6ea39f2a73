"""A target that is spread over one rank in this process, which can be lost at an exact point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.engine.sharded.model import Operation
from app.engine.turn.decode import Decoder
from app.protocol.commands import CachePolicy, Load
from app.protocol.events import (
    Event,
    Loaded,
)
from app.protocol.hosts import Host, Hosts
from app.protocol.options import BackgroundPolicy
from tests.engine.driver import Driver
from tests.engine.local_shards import LocalShards, gone

HOSTS = Hosts((Host("other"),))


class Rank(LocalShards):
    """Says when it is lost, as machines do."""

    def run(self, operation: Operation) -> list[dict[str, Any]]:
        was_lost = self.lost
        try:
            return super().run(operation)
        finally:
            if self.lost is not None and was_lost is None:
                self.on_lost()


class Spread:
    """A driver with a target that is spread over one rank in this process."""

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
        """Between two questions."""
        self.shards[-1].lost = gone()
        self.shards[-1].on_lost()

    def lose_at(self, operation: int) -> None:
        self.shards[-1].fail_at = operation

    def lose_when(self, wanted: Callable[[Event], bool]) -> None:
        """With the operation after the first such event."""

        def act(event: Event) -> None:
            if wanted(event) and self.shards[-1].fail_at is None:
                self.lose_at(0)

        self.driver.on_event = act


def lose_after(spread: Spread, patch: pytest.MonkeyPatch, last: Callable[[Decoder], bool]) -> None:
    """Lose the machine with the operation after this token."""
    record = Decoder._record

    def record_and_lose(self: Decoder, token: int) -> None:
        record(self, token)
        if last(self) and spread.shards[-1].lost is None:
            spread.lose_at(0)

    patch.setattr(Decoder, "_record", record_and_lose)

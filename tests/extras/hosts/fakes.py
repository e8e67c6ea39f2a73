"""Stands for the processes of ranks: threads without MLX."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.extras.hosts import cluster, worker
from app.extras.hosts.wire import Connection, Message, WireError
from tests.patience import PATIENCE

DESCRIBED: dict[str, Any] = {
    "dense_only": False,
    "cache_size": {"bytes_per_token": 8.0, "max_window_bytes": 0.0},
    "transient": {"heads": 4, "on_cpu": False},
    "weight_bytes": 100,
    "ranks": 2,
    "layers": 3,
}


class FakeShard:
    """Meets `ShardProcess`. Does what a rank does until it has loaded, unless changed."""

    def __init__(self, connection: Connection, rank: int, ring: str, model: Path) -> None:
        self.rank, self.model, self.ended = rank, model, threading.Event()
        self.connection = Connection(connection.socket.dup(), connection.seals)
        self.got = list[Message]()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.work()
            self.ended.wait()
        except WireError:
            self.ended.set()

    def work(self) -> None:
        self.ready()
        self.until("name")
        self.connection.send({"joined": True})
        self.connection.send({"described": DESCRIBED})

    def ready(self) -> None:
        self.connection.send({"ready": True})

    def until(self, key: str) -> None:
        """The message that has this."""
        while key not in (message := self.connection.receive(10)):
            pass
        self.got.append(message)

    def wait(self) -> None:
        self.ended.wait()

    def kill(self) -> None:
        self.ended.set()
        self.connection.close()


def use(monkeypatch: pytest.MonkeyPatch, kind: type[FakeShard] = FakeShard) -> list[FakeShard]:
    """Start these instead of processes, here and at workers of this process. Returns those that
    were started."""
    started = list[FakeShard]()

    def start(*arguments: Any) -> FakeShard:
        started.append(kind(*arguments))
        return started[-1]

    monkeypatch.setattr(cluster, "ShardProcess", start)
    monkeypatch.setattr(worker, "ShardProcess", start)
    return started


def wait_until(true: Callable[[], object], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds * PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)

"""Workers on this machine, as if they were on others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from app.extras.hosts.cluster import Cluster
from app.extras.hosts.worker import Worker
from app.protocol.commands import Load
from app.protocol.hosts import Host, Hosts

KEY = "specchat-test"
LOOPBACK = "127.0.0.1"


@contextmanager
def workers(count: int = 1, said: list[str] | None = None) -> Iterator[Hosts]:
    """That many on loopback; what they say goes into `said`."""
    lines: list[str] = [] if said is None else said
    running = [Worker(LOOPBACK, 0, KEY, lines.append) for _ in range(count)]
    for worker in running:
        threading.Thread(target=worker.run, daemon=True).start()
    try:
        yield Hosts(tuple(Host(LOOPBACK, worker.port, KEY) for worker in running))
    finally:
        for worker in running:
            worker.close()


@contextmanager
def cluster(folder: Path, ranks: int = 2, kv_bits: int | None = None) -> Iterator[Cluster]:
    """A model in this folder, spread over `ranks` processes. They may be silent for long, because
    other tests keep the cores busy."""
    patient = mock.patch("app.extras.hosts.cluster.LOST_SECONDS", 60.0)
    with patient, workers(ranks - 1) as hosts:
        loaded = Cluster(Load(str(folder), kv_bits=kv_bits, hosts=hosts), lambda: False)
        try:
            yield loaded
        finally:
            loaded.close()

"""The machines that a target is spread over."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PORT = 65_535
WORKER_PORT = 8322
"""Default port of `specchat worker`."""


@dataclass(frozen=True, slots=True)
class Host:
    """Another machine that runs `specchat worker`: the address on which it listens, and its key."""

    address: str
    port: int = WORKER_PORT
    key: str = ""

    @property
    def name(self) -> str:
        return self.address if self.port == WORKER_PORT else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Hosts:
    """All machines except this one, which has rank 0. `model` is the target's name on them."""

    others: tuple[Host, ...]
    model: str = ""

    @property
    def size(self) -> int:
        """Number of machines, including this one."""
        return len(self.others) + 1


@dataclass(frozen=True, slots=True)
class HostMachine:
    """A machine: its memory in bytes, and its link from this machine (latency in seconds one way,
    rate in bytes a second), which is None for this machine itself. `problem` is a clause that says
    why the machine cannot be used."""

    name: str
    processor: str = ""
    total: int = 0
    free: float = 0.0
    latency: float | None = None
    rate: float | None = None
    problem: str = ""

"""The machines that a target is spread over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MAX_PORT = 65_535
WORKER_PORT = 8322
"""Default port of `specchat worker`."""


@dataclass(frozen=True, slots=True)
class Host:
    """Another machine, on which `specchat worker` runs. `address` is where it listens, `key` what
    it asks for."""

    address: str
    port: int = WORKER_PORT
    key: str = ""

    @property
    def name(self) -> str:
        return self.address if self.port == WORKER_PORT else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Hosts:
    """All machines but this one, which has rank 0. `model` is the target's name there."""

    others: tuple[Host, ...]
    model: str = ""

    @property
    def size(self) -> int:
        """Number of machines, including this one."""
        return len(self.others) + 1


@dataclass(frozen=True, slots=True)
class HostMachine:
    """What is known of a machine: its memory in bytes, and its link from here, seconds one way and
    bytes a second; None for this machine itself. A `problem` is why it cannot be used, a clause."""

    name: str
    processor: str = ""
    total: int = 0
    free: float = 0.0
    latency: float | None = None
    rate: float | None = None
    problem: str = ""


class Machines(Protocol):
    """Finds out about the machines of `--hosts`."""

    hosts: Hosts

    def look(self) -> list[HostMachine]:
        """This machine first. Takes seconds."""
        ...

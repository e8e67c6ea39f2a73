"""The machines that a target is spread over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

MAX_PORT = 65_535
WORKER_PORT = 8322
"""Default port of `specchat worker`."""


class Link(StrEnum):
    """MLX's backend for the exchange between the layers of the machines."""

    RING = "ring"
    """TCP, over Ethernet or Thunderbolt."""
    JACCL = "jaccl"
    """RDMA over Thunderbolt 5."""


MLX_VARIABLES = frozenset(
    (
        *("MLX_RANK", "MLX_JACCL_COORDINATOR", "MLX_JACCL_RING", "MLX_RING_VERBOSE"),
        *("MLX_METAL_FAST_SYNCH", "MLX_MAX_OPS_PER_BUFFER", "MLX_MAX_MB_PER_BUFFER"),
        *("MLX_ENABLE_TF32", "MLX_DISABLE_COMPILE", "MLX_BFS_MAX_WIDTH"),
    )
)
"""Variables that one machine may set in the process of another. Others name libraries to load."""
MLX_FILES = frozenset(("MLX_HOSTFILE", "MLX_IBV_DEVICES"))
"""Variables that name a file. The contents of the file are sent."""


@dataclass(frozen=True, slots=True)
class Host:
    """Another machine, on which `specchat worker` runs. `address` is where it listens, `key` what
    it asks for. The layers' data go over `ips`, or over `address` if there are none."""

    address: str
    port: int = WORKER_PORT
    key: str = ""
    ips: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.address if self.port == WORKER_PORT else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Hosts:
    """All machines but this one, which has rank 0; `own_ips` are its addresses that they reach it
    at, found out where there are none. `variables` of the environment are for MLX. `model` is the
    target's name there."""

    others: tuple[Host, ...]
    own_ips: tuple[str, ...] = ()
    link: Link = Link.RING
    rdma: str = ""
    """RDMA devices that lead from each machine to each, as JSON for MLX."""
    variables: tuple[tuple[str, str], ...] = ()
    model: str = ""
    split: tuple[int, ...] = ()
    """How many layers each machine has, this one first; without it each has a part of every
    layer."""

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

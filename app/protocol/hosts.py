"""The machines that a target is spread over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WORKER_PORT = 8322
"""Where `specchat worker` listens."""


class Link(StrEnum):
    """How the machines exchange what the layers compute: MLX's own backends."""

    RING = "ring"
    """TCP, over Ethernet or Thunderbolt."""
    JACCL = "jaccl"
    """RDMA over Thunderbolt 5."""


@dataclass(frozen=True, slots=True)
class Host:
    """Another machine, on which `specchat worker` runs. `address` is where it listens, `key` what
    it asks for. The layers' data go over `ips`, or over `address` if there are none; with RDMA over
    the device of `rdma` that leads to each machine, in order of the ranks."""

    address: str
    port: int = WORKER_PORT
    key: str = ""
    ips: tuple[str, ...] = ()
    rdma: tuple[str | None, ...] = ()

    @property
    def name(self) -> str:
        return self.address if self.port == WORKER_PORT else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Hosts:
    """All machines but this one, which has rank 0; `own_ips` are its addresses that they reach it
    at, found out where there are none. `variables` of the environment are for MLX."""

    others: tuple[Host, ...]
    own_ips: tuple[str, ...] = ()
    own_rdma: tuple[str | None, ...] = ()
    link: Link = Link.RING
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        """How many machines there are."""
        return len(self.others) + 1

"""`--hosts`: the machines that the target of a command is spread over."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from app.cli.status import HOSTS_VARIABLE
from app.extras import HOSTS

if TYPE_CHECKING:
    from app.engine.sharded.model import Shards
    from app.models.machines import Machines
    from app.protocol.commands import Load
    from app.protocol.hosts import Hosts


class Spreading(Protocol):
    def chosen(self, text: str | None) -> Hosts:
        """The machines named by `text`, or else by the environment. Raises UserError."""
        ...

    def connect(self, command: Load, stopped: Callable[[], bool]) -> Shards:
        """Load a shard on each machine. Raises LoadError."""
        ...

    def machines(self, hosts: Hosts) -> Machines: ...


def chosen_hosts(text: str | None) -> Hosts | None:
    """The machines named by `--hosts`, or else by the environment. Raises UserError."""
    if text is None and HOSTS_VARIABLE not in os.environ:
        return None
    return _spreading().chosen(text)


def connect(command: Load, stopped: Callable[[], bool]) -> Shards:
    """Implements the engine's `Connect`."""
    return _spreading().connect(command, stopped)


def machines(hosts: Hosts | None) -> Machines | None:
    return None if hosts is None else _spreading().machines(hosts)


def _spreading() -> Spreading:
    found: Spreading = HOSTS.open()
    return found

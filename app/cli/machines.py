"""`--hosts`: the machines that the target of a command is spread over."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from app.cli.status import HOSTS_VARIABLE
from app.extras import HOSTS

if TYPE_CHECKING:
    from app.engine.cache.prefill import StepSize
    from app.engine.model.loader import LoadedModel
    from app.models.machines import Machines
    from app.protocol.commands import Load
    from app.protocol.hosts import Hosts
    from app.sandbox.process import TextProcess


class Spreading(Protocol):
    def chosen(self, text: str | None) -> Hosts:
        """The machines named by `text`, or else by the environment. Raises UserError."""
        ...

    def load_spread(
        self, command: Load, step: StepSize, stopped: Callable[[], bool], texts: TextProcess
    ) -> LoadedModel:
        """Implements the engine's `LoadSpread`."""
        ...

    def machines(self, hosts: Hosts) -> Machines: ...


def chosen_hosts(text: str | None) -> Hosts | None:
    """The machines named by `--hosts`, or else by the environment. Raises UserError."""
    if text is None and HOSTS_VARIABLE not in os.environ:
        return None
    return _spreading().chosen(text)


def load_spread(
    command: Load, step: StepSize, stopped: Callable[[], bool], texts: TextProcess
) -> LoadedModel:
    """Implements the engine's `LoadSpread`."""
    return _spreading().load_spread(command, step, stopped, texts)


def machines(hosts: Hosts | None) -> Machines | None:
    return None if hosts is None else _spreading().machines(hosts)


def _spreading() -> Spreading:
    found: Spreading = HOSTS.open()
    return found

"""What the app uses of this extra. Packages are imported when they are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.cli.machines import Spreading
from app.cli.status import HOSTS_VARIABLE
from app.models.machines import FitAcross, Machines
from app.protocol.hosts import HostMachine, Hosts

if TYPE_CHECKING:
    from app.engine.cache.prefill import StepSize
    from app.engine.model.loader import LoadedModel
    from app.models.architecture import Config
    from app.models.fit import ModelSize
    from app.protocol.commands import Load
    from app.sandbox.process import TextProcess


class MeasuredMachines(Machines):
    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    @property
    def hosts(self) -> Hosts:
        return self._hosts

    def look(self) -> list[HostMachine]:
        from app.extras.hosts.control import look_at_hosts

        return look_at_hosts(self._hosts)

    def fit(
        self,
        config: Config,
        target: ModelSize,
        draft: ModelSize | None,
        machines: Sequence[HostMachine],
    ) -> FitAcross:
        from app.extras.hosts.across import fit_across

        return fit_across(config, target, draft, machines)


class ClusterSpreading(Spreading):
    def chosen(self, text: str | None) -> Hosts:
        from app.extras.hosts.hostfile import refuse_keys, requested_hosts

        if text is not None:
            refuse_keys(text)
        return requested_hosts(os.environ[HOSTS_VARIABLE] if text is None else text)

    def load_spread(
        self, command: Load, step: StepSize, stopped: Callable[[], bool], texts: TextProcess
    ) -> LoadedModel:
        from app.extras.hosts.cluster import Cluster
        from app.extras.hosts.loading import load_sharded

        return load_sharded(Cluster, command, step, stopped, texts)

    def machines(self, hosts: Hosts) -> Machines:
        return MeasuredMachines(hosts)


SPREADING = ClusterSpreading()

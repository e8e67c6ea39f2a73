"""The machines that a target may be spread over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from app.protocol.hosts import HostMachine, Hosts

if TYPE_CHECKING:
    from app.models.architecture import Config
    from app.models.fit import ModelSize


@dataclass(frozen=True, slots=True)
class FitAcross:
    """A target on `ranks` machines, with the draft on the first. `max_tokens` is the longest prompt
    that can be read in full, `max_sparse_tokens` the longest that can be read sparsely; 0 if the
    target does not fit. `problem` is a clause that says why it cannot be spread."""

    ranks: int
    weight_bytes: int
    """On each machine."""
    max_tokens: int
    max_sparse_tokens: int
    problem: str = ""


class Machines(Protocol):
    """The machines of `--hosts`."""

    @property
    def hosts(self) -> Hosts: ...

    def look(self) -> list[HostMachine]:
        """Measure all machines; this one comes first. Takes seconds."""
        ...

    def fit(
        self,
        config: Config,
        target: ModelSize,
        draft: ModelSize | None,
        machines: Sequence[HostMachine],
    ) -> FitAcross:
        """Estimate a pair over all measured `machines`, from the target's `config.json`."""
        ...

"""Which keys block-sparse attention attends to, in plain numbers: screens reckon, too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Blocks:
    """How many keys a block has, and how many blocks a block of queries attends to: `sinks` first
    ones, `recent` ones before the queries' own, and the `top` ones between."""

    size: int = 128
    sinks: int = 1
    recent: int = 4
    top: int = 19

    @property
    def keys(self) -> int:
        """What a block of queries attends to at most, beside its own keys."""
        return self.size * (self.sinks + self.recent + self.top)

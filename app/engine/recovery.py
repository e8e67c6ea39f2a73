"""What the engine does if the target is lost: it loads another one, and continues the turn on it.

Only a target in several processes can be lost. How it is replaced is its own matter: the engine
asks `LoadedModel.recovery`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.protocol.commands import Ask, Load
from app.protocol.events import Event, Finished, PairLost
from app.protocol.reasons import Data, EngineFailure


@dataclass(frozen=True, slots=True)
class UnfinishedAnswer:
    """An answer during which the target was lost. `ask`: with the documents that were chosen.
    `written`: what was written, as if the turn had been cancelled then."""

    ask: Ask
    written: Finished


class TargetLost(EngineFailure):
    """The target no longer works, because it lost one of its processes. The caches in this process
    are consistent."""

    answer: UnfinishedAnswer | None = None
    """What was written; None if the turn had not started to read its prompt."""


class Recovery(Protocol):
    """How a lost target is replaced."""

    @property
    def started(self) -> Event:
        """Emitted before the other target is loaded."""
        ...

    @property
    def done(self) -> Event:
        """Emitted once it is loaded."""
        ...

    def failed(self, cause: Data) -> PairLost:
        """Emitted if it cannot be loaded."""
        ...

    def load(self, lost: Load) -> Load:
        """The command that loads it. `lost`: the command that loaded the lost one."""
        ...

    def rest(self, answer: UnfinishedAnswer) -> Ask:
        """The `Ask` that continues an answer."""
        ...

    def whole(self, answer: UnfinishedAnswer, rest: Finished) -> Finished:
        """The event that ends an answer and its `rest`."""
        ...

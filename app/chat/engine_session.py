"""One engine and one turn at a time, as an iterator of events: for programs without a screen."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from app.chat import wording
from app.engine.engine import MlxEngine
from app.errors import UserError
from app.protocol.commands import Ask, CachePolicy, CalibrateCosts, Close, Load
from app.protocol.cost_model import Costs
from app.protocol.engine import Engine, TurnHandle
from app.protocol.events import (
    CommandFailed,
    CostsUpdated,
    Event,
    Failed,
    Finished,
    Loaded,
    Selected,
)
from app.protocol.reasons import Failure


class EngineError(UserError):
    """The engine reported `Failed`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(*wording.failure(failure))
        self.failure = failure


class EngineSession:
    """A context manager that ends the engine thread."""

    def __init__(self, engine: Engine | None = None, upkeep: CachePolicy | None = None) -> None:
        self._engine = engine or MlxEngine()
        self._events: queue.Queue[Event] = queue.Queue()
        self._engine.listen(self._events.put)
        self._turn: TurnHandle | None = None
        self._saves = False
        if upkeep is not None:
            self.set_policy(upkeep)

    def __enter__(self) -> EngineSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._engine.send(Close())
        if kind is not KeyboardInterrupt:
            # A step ends soon, but writing a large snapshot may take long.
            self._engine.join(timeout=None if self._saves else 30)

    def load(self, command: Load) -> Loaded:
        """Load a pair. Raises EngineError."""
        self._engine.send(command)
        *_, event = self._events_until(Loaded, CommandFailed)
        if isinstance(event, CommandFailed):
            raise EngineError(event.failure)
        assert isinstance(event, Loaded)
        return event

    def calibrate(self) -> Costs:
        """Measure the costs of the loaded pair. Raises EngineError."""
        self._engine.send(CalibrateCosts())
        for event in self._events_until(CommandFailed):
            if isinstance(event, CostsUpdated) and event.requested:
                return event.costs
        assert isinstance(event, CommandFailed)
        raise EngineError(event.failure)

    def set_policy(self, upkeep: CachePolicy) -> None:
        """Set what happens to conversations' caches between turns from now on."""
        self._saves = upkeep.snapshot_folder is not None
        self._engine.send(upkeep)

    def run(self, ask: Ask) -> Iterator[Event]:
        """The events of a turn and all others meanwhile; the last is `Finished` or `Failed`."""
        self._turn = self._engine.ask(ask, self._events.put)
        return self._events_until(Finished, Failed)

    def reselect(self, keep_ratio: float) -> Selected:
        """What the last turn would have selected; it must have scored its prompt."""
        assert self._turn is not None
        self._engine.reselect(self._turn, keep_ratio)
        *_, event = self._events_until(Selected, CommandFailed)
        assert isinstance(event, Selected)
        return event

    def cancel(self) -> None:
        """Stop the running turn. Safe in a signal handler."""
        if self._turn is not None:
            self._turn.cancel()

    def drain(self) -> list[Event]:
        """Events that came outside of a turn, including those of closing."""
        events = []
        while not self._events.empty():
            events.append(self._events.get())
        return events

    def _events_until(self, *last: type[Event]) -> Iterator[Event]:
        while True:
            event = self._events.get()
            yield event
            if isinstance(event, last):
                return

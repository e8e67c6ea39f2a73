"""One engine and one turn at a time, as an iterator of events: for programs without a screen."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from app.engine.engine import MlxEngine
from app.engine.messages import (
    Ask,
    Cancel,
    Close,
    Command,
    Engine,
    Event,
    Failed,
    Finished,
    Load,
    Loaded,
)
from app.errors import UserError


class EngineError(UserError):
    """What the engine answered with `Failed`."""


class Session:
    """Use as a context manager: leaving it ends the engine thread.

    Waiting for events lets signals through, so that Ctrl-C reaches the caller at once.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = engine or MlxEngine()
        self._events: queue.Queue[Event] = queue.Queue()
        self._engine.listen(self._events.put)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.send(Close())
        self._engine.join(timeout=30)

    def load(self, command: Load) -> Loaded:
        """Load a pair. Raises EngineError."""
        for event in self._until(command, Loaded):
            if isinstance(event, Loaded):
                return event
        raise AssertionError("the engine answers every Load")

    def run(self, command: Ask) -> Iterator[Event]:
        """The events of a turn, the last of which is `Finished`. Raises EngineError."""
        yield from self._until(command, Finished)

    def cancel(self, turn: int) -> None:
        self._engine.send(Cancel(turn))

    def drain(self) -> Iterator[Event]:
        """Go on with the events of a turn whose iteration was interrupted."""
        yield from self._until(None, Finished)

    def _until(self, command: Command | None, last: type[Event]) -> Iterator[Event]:
        if command is not None:
            self._engine.send(command)
        while True:
            try:
                event = self._events.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(event, Failed):
                raise EngineError(event.problem, event.advice)
            yield event
            if isinstance(event, last):
                return

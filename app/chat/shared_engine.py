"""One engine for the app and for other programs' requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from app.protocol.commands import Ask, Cancel, Command, Load
from app.protocol.engine import Engine
from app.protocol.events import Event, Failed, Finished, Listener, Loaded, PhaseProgress
from app.protocol.server import OnAnswered

GUEST_TURNS = 1 << 40
"""Turns of requests are numbered from here on; the app counts its own from 1."""


def _ignore(event: Event) -> None:
    """Until somebody listens."""


class SharedEngine:
    """Meets the `Engine` protocol for the app, and `guest` does for requests: each gets the events
    of its own turns, and the app all others, too. What a guest asks is never saved to disk."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listener: Listener = _ignore
        self._loads: list[Load] = []
        self.guest = Guest(engine)
        self.pair: tuple[Load, Loaded] | None = None
        """What is loaded."""
        self.on_pair: Callable[[], None] = lambda: None
        """Called on the engine's thread when another pair is loaded."""
        engine.listen(self._deliver)

    def send(self, command: Command) -> None:
        if isinstance(command, Load):
            self._loads.append(command)
        self._engine.send(command)

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def join(self, timeout: float | None = None) -> None:
        self._engine.join(timeout)

    def _deliver(self, event: Event) -> None:
        turn = getattr(event, "turn", None)
        if turn is not None and turn >= GUEST_TURNS:
            self.guest.deliver(event, turn - GUEST_TURNS)
            return
        if isinstance(event, Loaded):
            self.pair = self._loads[-1], event
            self.on_pair()
        self._listener(event)


class Guest:
    """The engine as requests see it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listener: Listener = _ignore
        self._turns: dict[int, tuple[Ask, list[Event]]] = {}
        """What runs or waits, by turn, and the events so far."""
        self.on_answered: OnAnswered = lambda ask, events: None
        """Called on the engine's thread."""

    @property
    def busy(self) -> bool:
        """Whether a turn runs or waits."""
        return bool(self._turns)

    def send(self, command: Command) -> None:
        if isinstance(command, Ask):
            self._turns[command.turn] = command, []
            command = replace(command, turn=command.turn + GUEST_TURNS, on_disk=False)
        elif isinstance(command, Cancel):
            command = Cancel(command.turn + GUEST_TURNS)
        self._engine.send(command)

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def join(self, timeout: float | None = None) -> None:
        self._engine.join(timeout)

    def deliver(self, event: Any, turn: int) -> None:
        """An event of one of its turns, under the number that it has here."""
        event = replace(event, turn=turn)
        ask, events = self._turns[turn]
        if not isinstance(event, PhaseProgress):
            events.append(event)
        if isinstance(event, Finished | Failed):
            del self._turns[turn]
        self._listener(event)
        if isinstance(event, Finished):
            self.on_answered(ask, events)

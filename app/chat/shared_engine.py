"""One engine for the app and for other programs' requests."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from app.protocol.commands import Ask, Cancel, Command, Load
from app.protocol.engine import Engine
from app.protocol.events import Event, Failed, Finished, HostsLost, Listener, Loaded, PairLost

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
        self._sending = threading.RLock()  # as the engine's own
        self.guest = Guest(self._send_for_guest)
        self.pair: tuple[Load, Loaded] | None = None
        """What is loaded."""
        self._known_pair: Load | None = None
        """The same, once `on_pair` has returned."""
        self.on_pair: Callable[[], None] = lambda: None
        """Called on the engine's thread when another pair is loaded."""
        engine.listen(self._deliver)

    def send(self, command: Command) -> None:
        with self._sending:
            if isinstance(command, Load):
                self._loads.append(command)
            self._engine.send(command)

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def join(self, timeout: float | None = None) -> None:
        self._engine.join(timeout)

    def _send_for_guest(self, command: Command) -> None:
        """A question that runs on another pair than its messages' ids are of goes without them."""
        with self._sending:
            if isinstance(command, Ask) and self._loads and self._loads[-1] is not self._known_pair:
                plain = tuple(replace(each, token_ids=None) for each in command.messages)
                command = replace(command, messages=plain)
            self._engine.send(command)

    def _deliver(self, event: Event) -> None:
        if isinstance(event, HostsLost):  # whoever asked when it happened
            self._listener(event)
            return
        turn = getattr(event, "turn", None)
        if turn is not None and turn >= GUEST_TURNS:
            self.guest.deliver(event, turn)
            return
        if isinstance(event, Loaded):
            self.pair = loaded, _ = self._loads[-1], event
            self.on_pair()
            self._known_pair = loaded
        elif isinstance(event, PairLost):
            self.pair = None
        self._listener(event)


@dataclass
class _GuestTurn:
    """A turn that runs or waits, by the guest's own number, and whether it still wants it."""

    number: int
    wanted: bool = True


class Guest:
    """The engine as requests see it. The numbers that it gives to turns are used once."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._listener: Listener = _ignore
        self._numbers = itertools.count(GUEST_TURNS)
        self._lock = threading.Lock()
        self._turns: dict[int, _GuestTurn] = {}
        """By the engine's numbers."""

    @property
    def busy(self) -> bool:
        """Whether a turn runs or waits."""
        return bool(self._turns)

    def send(self, command: Command) -> None:
        if isinstance(command, Ask):
            with self._lock:
                for turn in self._turns.values():
                    turn.wanted &= turn.number != command.turn
                number = next(self._numbers)
                self._turns[number] = _GuestTurn(command.turn)
            command = replace(command, turn=number, on_disk=False)
        elif isinstance(command, Cancel):
            for number in self._numbers_of(command.turn):
                self._send(Cancel(number))
            return
        self._send(command)

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def join(self, timeout: float | None = None) -> None:
        """The app waits for the engine."""

    def stop(self) -> None:
        """Cancel all turns; nobody hears of them any more."""
        self._listener = _ignore
        with self._lock:
            turns = list(self._turns)
            for turn in self._turns.values():
                turn.wanted = False
        for number in turns:
            self._send(Cancel(number))

    def _numbers_of(self, turn: int) -> list[int]:
        with self._lock:
            return [number for number, each in self._turns.items() if each.number == turn]

    def deliver(self, event: Any, number: int) -> None:
        """An event of one of its turns, which it gets under its own number."""
        with self._lock:
            turn = self._turns.get(number)
            if isinstance(event, Finished | Failed):
                self._turns.pop(number, None)
        if turn is not None and turn.wanted:
            self._listener(replace(event, turn=turn.number))

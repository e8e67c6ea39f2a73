"""Interfaces of the engine and of the server inside the app."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from app.protocol.commands import Ask, Command, Load
from app.protocol.events import Event, Listener, Loaded

MakeAsk = Callable[[], Ask]


class TurnHandle:
    """A turn that was requested from an engine. Its events go to the `listener`; the last one is
    `Finished` or `Failed`. `number` is the `turn` of its events; the engine assigns it, and uses
    each number once."""

    def __init__(self, number: int, make_ask: MakeAsk, listener: Listener) -> None:
        self.number, self.make_ask, self.listener = number, make_ask, listener
        self.asked_at = time.perf_counter()
        self.is_cancelled = False

    def cancel(self) -> None:
        """Stop the turn at the next step, or before it starts. Safe in a signal handler. No effect
        after the turn has ended."""
        self.is_cancelled = True


class Engine(Protocol):
    """An engine. Methods never block (except `join`) and may be called from any thread. Listeners
    are called on the engine's thread, must return quickly and must not raise."""

    @property
    def pair(self) -> tuple[Load, Loaded] | None:
        """The loaded pair, or None."""
        ...

    def ask(self, ask: Ask | MakeAsk, listener: Listener, background: bool = False) -> TurnHandle:
        """Queue a turn. A `background` turn runs after all others that wait. If `ask` is a
        function, it is called on the engine's thread when the turn starts."""
        ...

    def reselect(self, turn: TurnHandle, keep_ratio: float) -> None:
        """Select again from a turn's scores, if it was scored and is the last turn of its
        conversation. Its listener gets `Selected` immediately. At AUTO_KEEP the scores determine
        keep."""
        ...

    def send(self, command: Command) -> None: ...

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Add a listener for events that belong to no turn. Returns a function that removes it."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for the engine thread to end, after `Close`."""
        ...


OnAnswered = Callable[[Ask, Sequence[Event]], None]
"""Called with an answered request and the events of its answer."""


class LocalServer(Protocol):
    """The app's server for other programs on this machine."""

    @property
    def status(self) -> str:
        """What the server is doing; an empty string if nothing."""
        ...

    @property
    def port(self) -> int | None:
        """The port on which the server listens; None while it is stopped."""
        ...

    def report_answers(self, on_answered: OnAnswered) -> None:
        """Set a function to call with each answered request. It is called on a thread that must not
        block."""
        ...

    def switch(self) -> str:
        """Start the server, or stop it if it runs. Returns a sentence. May take seconds. Raises
        UserError."""
        ...

    def stop(self) -> None:
        """Stop the server. Waits at most a second for running requests."""
        ...

"""The engine, and the server inside the app, as the rest of the app sees them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from app.protocol.commands import Ask, Command, Load
from app.protocol.events import Event, Listener, Loaded

MakeAsk = Callable[[], Ask]


class AskedTurn:
    """A question that an engine was asked. Its events go to the `listener`; the last one is
    `Finished` or `Failed`. `number` is the `turn` of its events, given by the engine and used
    once."""

    def __init__(self, number: int, make_ask: MakeAsk, listener: Listener) -> None:
        self.number, self.make_ask, self.listener = number, make_ask, listener
        self.asked_at = time.perf_counter()
        self.is_cancelled = False

    def cancel(self) -> None:
        """Stop it at the next step, or before it starts. Safe in a signal handler; without effect
        once it has ended."""
        self.is_cancelled = True


class Engine(Protocol):
    """One engine. Its methods never block and may be called from any thread. Listeners are called
    on the engine's own thread, must return quickly and must not raise."""

    @property
    def pair(self) -> tuple[Load, Loaded] | None:
        """What is loaded."""
        ...

    def ask(self, ask: Ask | MakeAsk, listener: Listener, background: bool = False) -> AskedTurn:
        """Start a turn, after what was asked before; a `background` one after everything else that
        waits. A function is called on the engine's thread once the turn starts."""
        ...

    def reselect(self, turn: AskedTurn, keep_ratio: float) -> None:
        """Select again from a turn's scores, if it was scored and is the last one of its
        conversation; its listener gets `Selected` at once. At AUTO_KEEP the scores choose."""
        ...

    def send(self, command: Command) -> None: ...

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Add a listener for events of no turn, and for `HostsLost`. Returns how to remove it."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for the engine thread to end, after `Close`."""
        ...


OnAnswered = Callable[[Ask, Sequence[Event]], None]
"""Gets a request that was answered, and the events of its answer."""


class LocalServer(Protocol):
    """Answers other programs on this machine while the app runs."""

    @property
    def status(self) -> str:
        """What it is doing just now; empty if nothing."""
        ...

    @property
    def port(self) -> int | None:
        """On which it can be asked; None while it is stopped."""
        ...

    def report_answers(self, on_answered: OnAnswered) -> None:
        """Call this with each request, on a thread that must not wait."""
        ...

    def switch(self) -> str:
        """Start it, or stop it if it runs; returns a sentence. May take seconds. Raises
        UserError."""
        ...

    def stop(self) -> None:
        """Waits a second at most for requests."""
        ...

"""The engine, as the rest of the app sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from app.protocol.commands import Ask, Command, Load
from app.protocol.events import Listener, Loaded

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

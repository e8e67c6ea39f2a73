"""The engine, as the rest of the app sees it."""

from __future__ import annotations

from typing import Protocol

from app.protocol.commands import Command
from app.protocol.events import Listener


class Engine(Protocol):
    """One engine: commands in, events out.

    `send` never blocks and may be called from any thread. The listener is called on the engine's
    own thread, must return quickly and must not raise. Events of one turn arrive in order and end
    with exactly one `Finished` or `Failed`.
    """

    def send(self, command: Command) -> None: ...

    def listen(self, listener: Listener) -> None:
        """Set the one listener. Call before the first `send`."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for the engine thread to end, after `Close`."""
        ...

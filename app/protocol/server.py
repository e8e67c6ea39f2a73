"""The server inside the app, as the screen sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from app.protocol.commands import Ask
from app.protocol.events import Event

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

"""The server inside the app, as the screen sees it."""

from __future__ import annotations

from typing import Protocol


class LocalServer(Protocol):
    """Answers other programs on this machine while the app runs."""

    @property
    def status(self) -> str:
        """What it is doing just now; empty if nothing."""
        ...

    def switch(self) -> str:
        """Start it, or stop it if it runs; returns a sentence. May take seconds. Raises
        UserError."""
        ...

    def stop(self) -> None:
        """Waits a second at most for requests."""
        ...

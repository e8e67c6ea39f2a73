"""Passes events from the engine's thread to the screen, at most 20 times a second.

The engine's listener must return quickly, so it only appends to a queue and, unless one is pending,
posts one message (`post_message` is thread-safe and never waits). Tokens that arrive faster than
the screen draws are drawn together.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress

from textual.message import Message
from textual.message_pump import MessagePump

from app.protocol.events import Event

FLUSH_SECONDS = 0.05


class EngineEvents(Message):
    """Events are waiting in the bridge."""


class Bridge:
    """One direction: `listener` is called on the engine's thread, `take` on the screen's."""

    def __init__(self, receiver: MessagePump) -> None:
        self._receiver = receiver
        self._events: deque[Event] = deque()
        self._lock = threading.Lock()
        self._announced = False
        self._last_taken = 0.0

    def listener(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            if self._announced:
                return
            self._announced = True
        with suppress(RuntimeError):  # the screen is gone, the engine is still closing
            self._receiver.post_message(EngineEvents())

    def wait(self) -> float:
        """Seconds until the screen should take events again."""
        return max(0.0, self._last_taken + FLUSH_SECONDS - time.monotonic())

    def take(self) -> list[Event]:
        with self._lock:
            events = list(self._events)
            self._events.clear()
            self._announced = False
        self._last_taken = time.monotonic()
        return events

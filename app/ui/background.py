"""Background work: tasks of the event loop, threads for what waits for a disk, a network drive or
another program, and the bridge that passes events from the engine's thread to the screen."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from textual.dom import DOMNode
from textual.message import Message
from textual.message_pump import MessagePump

from app.errors import UserError
from app.protocol.events import Event

T = TypeVar("T")
_log = logging.getLogger(__name__)
FLUSH_SECONDS = 0.05


@dataclass
class TaskFailed(Message):
    """The app shows why."""

    error: Exception

    def __str__(self) -> str:
        if isinstance(self.error, UserError):
            return str(self.error)
        what = f"{type(self.error).__name__}: {self.error}"
        return f"Something went wrong inside specchat ({what}). See specchat.log."


def start_task(
    node: DOMNode,
    task: Callable[[], Awaitable[None]],
    group: str = "default",
    exclusive: bool = False,
) -> None:
    """Run `task` as a worker of `node`. If it fails, the app continues and shows why, because the
    cause may be a file, a model or a server."""

    async def run() -> None:
        try:
            await task()
        except Exception as error:
            if not isinstance(error, UserError):
                _log.error("A task of the screen failed", exc_info=error)
            node.app.post_message(TaskFailed(error))

    # The function, not its coroutine: a worker that is cancelled before it starts would never await
    # that.
    work: Any = run
    node.run_worker(work, group=group, exclusive=exclusive)


async def in_background(task: Callable[[], T]) -> T:
    """Run `task` on a daemon thread and return its result, or raise its exception. On a daemon
    thread, a drive that never answers cannot block the exit of the program."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(settled: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if future.done() else settled())

    def run() -> None:
        try:
            result = task()
        except BaseException as error:  # raised where it is awaited
            problem = error
            settle(lambda: future.set_exception(problem))
        else:
            settle(lambda: future.set_result(result))

    threading.Thread(target=run, name="background", daemon=True).start()
    return await future


class EngineEvents(Message):
    """Events are waiting in the bridge."""


class Bridge:
    """Passes events to the screen, at most 20 times a second: `listener` is called on the engine's
    thread, `take` on the screen's. The listener must return quickly, so it only appends to a queue
    and, unless one is pending, posts one message. Tokens that arrive faster than the screen draws
    are drawn together."""

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

"""One engine for many requests: they wait in a queue, and run one after the other."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from app.protocol.commands import Ask, Cancel
from app.protocol.engine import Engine
from app.protocol.events import Event, Failed, Finished, GpuLost, HostsLost, PairLost
from app.util.sanitize import sanitize_line

STOPPED = "The server is being stopped", "ask again once it runs"
_numbers = itertools.count(1)
"""Of turns, unique in this process: a server that is stopped and started again shares an engine
with what still runs of the one before."""

log = logging.getLogger("specchat.serve")


class QueueFull(Exception):
    """More requests wait than may."""


class Request:
    """A place in the queue, until it is left. A context manager."""

    def __init__(self, queue: EngineQueue, make_ask: Callable[[], Ask]) -> None:
        self._queue, self.make_ask = queue, make_ask
        self.turn = next(_numbers)
        self.events: asyncio.Queue[Event] = asyncio.Queue()

    def __enter__(self) -> Request:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.leave(self)

    async def next(self, patience: float) -> Event | None:
        """The next event, the last of which is `Finished` or `Failed`; None if none comes for
        `patience` seconds."""
        try:
            return self.events.get_nowait()
        except asyncio.QueueEmpty:
            pass
        try:
            return await asyncio.wait_for(self.events.get(), patience)
        except TimeoutError:
            return None

    def cancel(self) -> None:
        """End its turn at the next step."""
        self._queue.cancel(self)


class EngineQueue:
    """Between an engine, which calls back on its own thread, and requests on an event loop. At most
    `limit` requests wait."""

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine, self._limit = engine, limit
        self._waiting: deque[Request] = deque()
        self._running: Request | None = None
        self._stopped = False
        self.gpu_lost: GpuLost | None = None
        """Why only a new process can answer again, if it is so."""
        self.sending = threading.RLock()
        """Held while an `Ask` is made and sent: what it is made of does not change between."""

    def start(self, on_gpu_lost: Callable[[], None] = lambda: None) -> None:
        """On the running event loop, which must be the one that requests use, and on which
        `on_gpu_lost` is called."""
        loop = asyncio.get_running_loop()

        def deliver(event: Event) -> None:
            if isinstance(event, HostsLost):
                log.warning("%s", sanitize_line(event.message))
            elif isinstance(event, PairLost):
                log.error("%s: %s.", sanitize_line(event.problem), sanitize_line(event.advice))
            elif isinstance(event, GpuLost):
                self.gpu_lost = event
                loop.call_soon_threadsafe(on_gpu_lost)
            elif getattr(event, "turn", None) is not None:
                with suppress(RuntimeError):  # the loop was closed: nobody waits for it any more
                    loop.call_soon_threadsafe(self._deliver, event)

        self._engine.listen(deliver)

    def stop(self) -> None:
        """Cancel what runs, and fail all requests; nothing else is started."""
        self._stopped = True
        waiting, running = list(self._waiting), self._running
        self._waiting.clear()
        for request in waiting:
            request.events.put_nowait(Failed(request.turn, *STOPPED))
        if running is not None:
            self._running = None
            running.events.put_nowait(Failed(running.turn, *STOPPED))
            self._engine.send(Cancel(running.turn))

    @property
    def waiting(self) -> int:
        """How many wait or run."""
        return len(self._waiting) + (self._running is not None)

    @property
    def is_full(self) -> bool:
        return self.waiting > self._limit

    def enter(self, make_ask: Callable[[], Ask]) -> Request:
        """A place at the end of the queue. `make_ask` is called when its turn is about to run.
        Raises QueueFull."""
        if self.is_full:
            raise QueueFull
        request = Request(self, make_ask)
        if self._stopped:
            request.events.put_nowait(Failed(request.turn, *STOPPED))
        else:
            self._waiting.append(request)
            self._start_next()
        return request

    def leave(self, request: Request) -> None:
        """Its client has gone, or has all of its answer."""
        with suppress(ValueError):
            self._waiting.remove(request)
        self.cancel(request)

    def cancel(self, request: Request) -> None:
        if self._running is request:
            self._engine.send(Cancel(request.turn))

    def _start_next(self) -> None:
        if self._running is None and self._waiting:
            request = self._running = self._waiting.popleft()
            with self.sending:
                self._engine.send(replace(request.make_ask(), turn=request.turn))

    def _deliver(self, event: Event) -> None:
        request, turn = self._running, getattr(event, "turn", None)
        if request is None or turn != request.turn:
            return
        request.events.put_nowait(event)
        if isinstance(event, Finished | Failed):
            self._running = None
            self._start_next()

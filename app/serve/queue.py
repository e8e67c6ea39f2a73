"""The requests that wait for the engine or are answered, and their events on an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from app.chat import wording
from app.protocol.engine import AskedTurn, Engine, MakeAsk
from app.protocol.events import Event, Failed, Finished, GpuLost, HostsLost, PairLost
from app.protocol.reasons import Failure, FailureKind
from app.util.sanitize import sanitize_line

STOPPED = Failure(FailureKind.SERVER_STOPPED)

log = logging.getLogger("specchat.serve")


class QueueFull(Exception):
    """More requests wait than may."""


class Request:
    """A request from its place in the queue to the end of its answer. A context manager; leaving it
    cancels the turn."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.turn: AskedTurn | None = None

    def deliver(self, event: Event) -> None:
        """On the engine's thread."""
        with suppress(RuntimeError):  # the loop was closed: nobody waits for it any more
            self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event) -> None:
        self.events.put_nowait(event)
        if isinstance(event, Finished | Failed):
            self._queue.leave(self)

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
        if self.turn is not None:
            self.turn.cancel()


class RequestQueue:
    """All open requests: the engine answers them one after the other, and the app's own questions
    first. At most `limit` wait. On the event loop only."""

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine, self._limit = engine, limit
        self._open: set[Request] = set()
        self._stopped = False
        self._stop_listening: Callable[[], None] = lambda: None
        self.gpu_lost: GpuLost | None = None
        """Why only a new process can answer again, if it is so."""

    def start(self, on_gpu_lost: Callable[[], None] = lambda: None) -> None:
        """`on_gpu_lost` is called on the running event loop."""
        loop = asyncio.get_running_loop()

        def on_event(event: Event) -> None:
            if isinstance(event, HostsLost):
                log.warning("%s", sanitize_line(wording.notice(event)))
            elif isinstance(event, PairLost):
                log.error("%s", sanitize_line(wording.failure(event.failure).sentence))
            elif isinstance(event, GpuLost):
                self.gpu_lost = event
                loop.call_soon_threadsafe(on_gpu_lost)

        self._stop_listening = self._engine.listen(on_event)

    def stop(self) -> None:
        """Fail and cancel all requests; nothing else is started."""
        self._stopped = True
        self._stop_listening()
        for request in tuple(self._open):
            request.events.put_nowait(Failed(None, STOPPED))
            self.leave(request)

    @property
    def waiting(self) -> int:
        """How many wait or run."""
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return self.waiting > self._limit

    def enter(self, make_ask: MakeAsk) -> Request:
        """A place at the end of the queue. `make_ask` is called on the engine's thread when the
        turn starts. Raises QueueFull."""
        if self.is_full:
            raise QueueFull
        request = Request(self)
        if self._stopped:
            request.events.put_nowait(Failed(None, STOPPED))
        else:
            self._open.add(request)
            request.turn = self._engine.ask(make_ask, request.deliver, background=True)
        return request

    def leave(self, request: Request) -> None:
        """Its client has gone, or has all of its answer."""
        self._open.discard(request)
        request.cancel()

"""One engine for many requests: they wait in a queue, and run one after the other."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from app.protocol.commands import Ask, Cancel
from app.protocol.engine import Engine
from app.protocol.events import Event, Failed, Finished, HostsLost, PhaseProgress, Planned, Token
from app.util.sanitize import sanitize_line

PASSED_ON = (PhaseProgress, Planned, Token, Finished, Failed)
"""Events that a request gets."""

log = logging.getLogger("specchat.serve")


class QueueFull(Exception):
    """More requests wait than may."""


@dataclass
class _Waiting:
    ask: Ask
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    cancelled: bool = False
    finished: asyncio.Event = field(default_factory=asyncio.Event)


class EngineQueue:
    """Between an engine, which calls back on its own thread, and requests on an event loop. At most
    `limit` requests wait."""

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine, self._limit = engine, limit
        self._turns = itertools.count(1)
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._running: _Waiting | None = None
        self._worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """On the running event loop, which must be the one that requests use."""
        loop = asyncio.get_running_loop()

        def deliver(event: Event) -> None:
            if isinstance(event, HostsLost):
                log.warning("%s", sanitize_line(event.message))
            if isinstance(event, PASSED_ON):
                with suppress(RuntimeError):  # the loop was closed: nobody waits for it any more
                    loop.call_soon_threadsafe(self._deliver, event)

        self._engine.listen(deliver)
        self._worker = loop.create_task(self._work())

    def stop(self) -> None:
        """Cancel what runs; nothing else is started."""
        if self._worker is not None:
            self._worker.cancel()
        if self._running is not None:
            self._engine.send(Cancel(self._running.ask.turn))

    @property
    def waiting(self) -> int:
        return self._queue.qsize() + (self._running is not None)

    @property
    def is_full(self) -> bool:
        return self.waiting > self._limit

    async def run(self, ask: Ask, patience: float) -> AsyncGenerator[Event | None]:
        """The events of a turn, the last of which is `Finished` or `Failed`; None whenever nothing
        has come for `patience` seconds. If the caller stops listening, the turn is cancelled at its
        next step. Raises QueueFull."""
        if self.is_full:
            raise QueueFull
        request = _Waiting(replace(ask, turn=next(self._turns)))
        self._queue.put_nowait(request)
        try:
            while True:
                try:
                    event = await asyncio.wait_for(request.events.get(), patience)
                except TimeoutError:
                    yield None
                    continue
                yield event
                if isinstance(event, Finished | Failed):
                    return
        finally:
            request.cancelled = True
            if self._running is request and not request.finished.is_set():
                self._engine.send(Cancel(request.ask.turn))

    async def _work(self) -> None:
        while True:
            request = await self._queue.get()
            if request.cancelled:
                continue
            self._running = request
            self._engine.send(request.ask)
            await request.finished.wait()
            self._running = None

    def _deliver(self, event: Event) -> None:
        request, turn = self._running, getattr(event, "turn", None)
        if request is None or turn != request.ask.turn:
            return
        request.events.put_nowait(event)
        if isinstance(event, Finished | Failed):
            request.finished.set()

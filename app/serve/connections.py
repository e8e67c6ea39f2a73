"""uvicorn, with what it lacks: connections that send no whole request in time are closed, and
requests that still run do not hold up its end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from app.serve.queue import RequestQueue

HEADER_SECONDS = 60.0
"""For which a connection may stay open without a whole header of the next request."""

Protocol: Any = AutoHTTPProtocol  # its two implementations have no common type


class TimedConnection(Protocol):  # type: ignore[misc]
    """uvicorn itself lets a client take any time over its headers."""

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._limit_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _limit_headers(self) -> None:
        """Start the timer unless it runs; stop it once a request has started."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._closing is None:
            self._closing = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


class HttpServer(uvicorn.Server):
    """Starts and stops the queue itself: ASGI's own events for that come only once no request runs,
    or not at all. Ends when the engine has lost the GPU."""

    def __init__(self, config: uvicorn.Config, queue: RequestQueue) -> None:
        super().__init__(config)
        self._queue = queue

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._queue.start(self._exit)
        await super().startup(sockets)

    def _exit(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._queue.stop()
        await super().shutdown(sockets)

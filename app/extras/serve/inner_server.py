"""`/serve` in the app: the server of `specchat serve`, while the screen runs.

Its packages are imported when it starts, so that the app's first frame does not wait for them.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.errors import UserError
from app.paths import config_path, display_path
from app.protocol.commands import Ask
from app.protocol.engine import Engine, LocalServer, OnAnswered
from app.protocol.events import Event, Loaded
from app.settings.definitions import Settings

if TYPE_CHECKING:
    from app.extras.serve.http import HttpServer
    from app.extras.serve.server import Server

HOST, PORT = "127.0.0.1", 8321
STOP_SECONDS = 1.0


class InnerServer(LocalServer):
    """Requests use the app's pair, and the settings at the time when the
    server was started."""

    def __init__(self, engine: Engine, settings: Callable[[], Settings]) -> None:
        self._engine, self._settings = engine, settings
        self._running: tuple[HttpServer, Server, threading.Thread] | None = None
        self._on_answered: OnAnswered = lambda ask, events: None
        engine.listen(self._on_event)

    @property
    def status(self) -> str:
        running = self._running
        return "Answering another program." if running and running[1].queue.waiting else ""

    @property
    def port(self) -> int | None:
        running = self._running
        return PORT if running is not None and running[2].is_alive() else None

    def report_answers(self, on_answered: OnAnswered) -> None:
        self._on_answered = on_answered

    def switch(self) -> str:
        if self.port is not None:
            self.stop()
            return "Server stopped."
        return self._start()

    def _start(self) -> str:
        if (pair := self._engine.pair) is None:
            raise UserError("No models are loaded yet", "try again in a moment")
        from app.extras.serve.application import make_app
        from app.extras.serve.command import TOKEN_FILE
        from app.extras.serve.http import (
            Access,
            HttpServer,
            listening_socket,
            log_requests,
            read_token,
        )
        from app.extras.serve.requests import defaults_of
        from app.extras.serve.server import Server, served_pair

        defaults = defaults_of(self._settings())
        token, _ = read_token(config_path() / TOKEN_FILE)
        listening = listening_socket(HOST, PORT)
        server = Server(self._engine, served_pair(*pair), defaults, on_answered=self._report)
        http = HttpServer(make_app(server, Access(HOST, token)), server.queue)
        log_requests(logging.getLogger("app").handlers)  # the file: standard error is the screen
        thread = threading.Thread(target=_run, args=(http, listening), name="server", daemon=True)
        self._running = http, server, thread
        self._use_pair()  # another pair may have been loaded in the meantime
        thread.start()
        where = display_path(config_path() / TOKEN_FILE)
        return (
            f"Server started at http://{HOST}:{PORT}/v1. The API key is in {where}. /serve stops"
            " the server."
        )

    def stop(self) -> None:
        if self._running is None:
            return
        http, server, thread = self._running
        http.should_exit = True
        thread.join(STOP_SECONDS)
        http.force_exit = True  # do not wait for running requests
        server.drop_conversations()
        self._running = None

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Loaded):
            self._use_pair()

    def _use_pair(self) -> None:
        running, pair = self._running, self._engine.pair
        if running is not None and pair is not None:
            from app.extras.serve.server import served_pair

            running[1].use_pair(served_pair(*pair))

    def _report(self, ask: Ask, events: Sequence[Event]) -> None:
        self._on_answered(ask, events)


def _run(http: HttpServer, listening: socket.socket) -> None:
    with listening:
        http.run(sockets=[listening])

"""What every request passes first: who may ask, how much, and how long it may take; and uvicorn
with what it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import ipaddress
import logging
import socket
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from app.errors import UserError
from app.serve.answers import RequestQueue
from app.serve.formats import error_body
from app.util.regular_files import make_secret, read_secret
from app.util.sanitize import sanitize_line

NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""What this machine is called by itself."""


def read_token(path: Path) -> tuple[str, bool]:
    """The token in a file, and whether it was made now. Raises UserError."""
    try:
        if token := read_secret(path):
            return token, False
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The token in '{path}' cannot be read", "delete that file") from error
    try:
        return make_secret(path), True
    except OSError as error:
        raise UserError(
            f"The token cannot be written to '{path}' ({error.strerror})",
            "make that folder writable, or choose --no-token",
        ) from error


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_local(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


class Access:
    """Checks the token, host and origin of requests. `host` is the address that the server listens
    on, `token` None without one.

    The token decides: with it, a request may have any Host and Origin. What needs none is also
    within reach of web pages that the user visits, under names that lead here (DNS rebinding), so
    there both are checked."""

    def __init__(self, host: str, token: str | None) -> None:
        self.token, self._is_local = token, is_local(host)
        own = socket.gethostname().lower()
        more = frozenset() if self._is_local else {own, f"{own}.local"}
        self._names = NAMES | {host.lower()} | more

    def refusal(self, headers: dict[str, str], needs_token: bool = True) -> tuple[int, str] | None:
        """The status and the sentence with which a request is refused; None if it is not. The names
        of `headers` are in lower case."""
        if self.token is not None:
            if any(_equal(given, self.token) for given in _tokens(headers)):
                return None
            if needs_token:
                return (
                    401,
                    "The token is missing or wrong: `specchat serve` says which file has it.",
                )
        host = _name(f"//{headers.get('host', '')}")
        if not self._may_be_called(host):
            use = "127.0.0.1" if self._is_local else "its address"
            return 403, f"The host name {host[:100]!r} is not this machine's: use {use}."
        origin = headers.get("origin")
        if origin is not None and origin.rpartition("//")[2] != headers.get("host"):
            return 403, "Requests from web pages are refused."
        return None

    def _may_be_called(self, host: str) -> bool:
        if host in self._names:
            return True
        return not self._is_local and (self.token is not None or _address(host) is not None)


def _tokens(headers: dict[str, str]) -> list[str]:
    """What a request gives as its token: as Anthropic's clients do, as OpenAI's, or without the
    scheme's name."""
    given = headers.get("authorization", "").strip()
    scheme, _, credentials = given.partition(" ")
    return [
        headers.get("x-api-key", "").strip(),
        credentials.strip() if scheme.lower() == "bearer" else given,
    ]


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


MAX_BODY = 10_000_000
"""Bytes of a request."""
BODY_SECONDS = 30.0
"""Time limit for receiving a body."""
MAX_DRAINED, DRAIN_SECONDS = 100_000_000, 2.0
"""Bytes and seconds for which the rest of a body that is too long is received."""
OPEN = frozenset({"/health"})
"""Paths that need no token."""
VERSIONED = frozenset({"chat", "completions", "messages", "models", "responses"})
"""How paths begin after /v1."""
LOGGED = 200
"""Characters of a path in the log."""
FAULT = "Something went wrong inside specchat: try again."
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_log = logging.getLogger("specchat.serve")


class RequestLimits:
    """ASGI middleware. The body is read before the application starts: it is small, and a slow
    client then holds nothing else up."""

    def __init__(self, app: App, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, path = time.perf_counter(), _route(str(scope["path"]))
        status = 0
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            refusal = self._access.refusal(headers, path not in OPEN)
            if refusal is not None:
                return await _refused(path, *refusal)(scope, receive, noted)
            body = await self._body(headers, receive)
            if isinstance(body, tuple):
                return await _refused(path, *body)(scope, receive, noted)
            await self._app(_as_json(scope, path), _replay(body, receive), noted)
        except asyncio.CancelledError:
            pass  # the program ends, and with it whoever is still connected
        except Exception as error:  # the client has the headers already, or is gone
            _log.error("A request failed: %s", _where(error))
        finally:
            seconds = time.perf_counter() - started
            shown = sanitize_line(f"{scope['method']} {path[:LOGGED]}")
            _log.info("%s %d %.2f s", shown, status, seconds)

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes | tuple[int, str]:
        """The body, or the status and the sentence with which it is refused."""
        too_long = 413, f"The request has more than {MAX_BODY // 1_000_000} MB: send less."
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_BODY:
            await _drain(receive)
            return too_long
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return 400, "The request was not sent to its end."
                    body += message.get("body", b"")
                    if len(body) > MAX_BODY:
                        await _drain(receive)
                        return too_long
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            return 408, f"The request took more than {BODY_SECONDS:.0f} seconds to come."


def _route(path: str) -> str:
    """The route that is meant where a client's base address lacks /v1 or has it twice, or there is
    a slash too many."""
    parts = [part for part in path.split("/") if part]
    while parts[:2] == ["v1", "v1"]:
        del parts[0]
    if parts and parts[0] in VERSIONED:
        parts.insert(0, "v1")
    return "/" + "/".join(parts)


def _as_json(scope: Scope, path: str) -> Scope:
    """Bodies are JSON whatever their type is said to be: `curl -d` says that it is a form."""
    others = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-type"]
    return {**scope, "path": path, "headers": [*others, (b"content-type", b"application/json")]}


async def _drain(receive: Receive) -> None:
    """Receive and drop the rest of a body that is too long, up to a limit: a client that is still
    sending when the connection closes would never see why."""
    left = MAX_DRAINED
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return


def _where(error: Exception) -> str:
    """The kind of an error and its place; its text may have a request's contents."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {frame.name} ({frame.filename}:{frame.lineno})"


def _replay(body: bytes, receive: Receive) -> Receive:
    """What the application receives: the body at once, then what else comes."""
    sent = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _refused(path: str, status: int, message: str) -> JSONResponse:
    return JSONResponse(error_body(path, message, status), status, {"Connection": "close"})


CONNECTIONS = BACKLOG = 256
HEADER_SECONDS = 60.0
"""How long a connection may stay open without a whole header of the next request."""

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

    def __init__(self, app: App, queue: RequestQueue) -> None:
        config = uvicorn.Config(
            app,
            http=TimedConnection,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(HEADER_SECONDS),
            timeout_graceful_shutdown=5,
            limit_concurrency=CONNECTIONS,
            lifespan="off",
        )
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


def listening_socket(host: str, port: int) -> socket.socket:
    """Raises UserError if the port is taken, or `host` is no address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)  # whoever reads that it answers may ask at once
    except (OSError, UnicodeError, TypeError, ValueError) as error:  # it can be no name
        listening.close()
        reason = getattr(error, "strerror", None) or "no name of a machine"
        raise UserError(
            f"Port {port} of {host} cannot be used ({reason})", _port_advice(error)
        ) from None
    return listening


def _port_advice(error: Exception) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return "end what uses it, or start `specchat serve` with another --port"
        case errno.EACCES:
            return "use a --port from 1,024 on"
    return "give --host an address of this machine, or leave it out"


def log_requests(handlers: list[logging.Handler]) -> None:
    """Log a line for each request, without contents, to these handlers only."""
    for name, level in (("specchat.serve", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = handlers, False
        logger.setLevel(level)

"""Checks that every request passes first (API key, host, origin, size, time), and a uvicorn server
with additional limits."""

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
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import uvicorn
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from app.errors import UserError
from app.extras.serve.answers import RequestQueue
from app.extras.serve.apis import error_body
from app.util.regular_files import make_secret, read_secret
from app.util.sanitize import sanitize_line

NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine that need no look-up."""


def read_token(path: Path) -> tuple[str, bool]:
    """Read the API key from a file, or create it. Returns the key and whether it is new. Raises
    UserError."""
    try:
        if token := read_secret(path):
            return token, False
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The API key in '{path}' cannot be read", "delete that file") from error
    try:
        return make_secret(path), True
    except OSError as error:
        raise UserError(
            f"The API key cannot be written to '{path}' ({error.strerror})",
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
    """Checks the API key, host and origin of requests. `host` is the address that the server
    listens on; `token` is the key, or None if none is required.

    A request with the key may have any Host and Origin. Requests that need no key could also come
    from web pages that the user visits, under names that resolve to this machine (DNS rebinding),
    so their Host and Origin are checked."""

    def __init__(self, host: str, token: str | None) -> None:
        self.token, self._is_local = token, is_local(host)
        own = socket.gethostname().lower()
        more = frozenset() if self._is_local else {own, f"{own}.local"}
        self._names = NAMES | {host.lower()} | more

    def refusal(self, headers: dict[str, str], needs_token: bool = True) -> tuple[int, str] | None:
        """The status and sentence with which a request is refused, or None if it is allowed. Names
        in `headers` are lower case."""
        if self.token is not None:
            if any(_equal(given, self.token) for given in _tokens(headers)):
                return None
            if needs_token:
                return (
                    401,
                    "The API key is missing or wrong: `specchat serve` prints the file that has"
                    " it.",
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
    """The keys that a request sends: as clients of Anthropic, Azure and OpenAI do, or without the
    name of the scheme."""
    given = headers.get("authorization", "").strip()
    scheme, _, credentials = given.partition(" ")
    return [
        headers.get("x-api-key", "").strip(),
        headers.get("api-key", "").strip(),
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
"""Maximum bytes of a request's body."""
BODY_SECONDS = 30.0
"""Time limit for receiving a body."""
MAX_DRAINED, DRAIN_SECONDS = 100_000_000, 2.0
"""Limits, in bytes and seconds, for receiving the rest of a body that is too large."""
OPEN = frozenset({"/health", "/", "/v1"})
"""Paths that need no API key."""
VERSIONED = frozenset({"chat", "completions", "messages", "models", "responses"})
"""First parts of paths after /v1."""
REQUEST_IDS = "request-id", "x-request-id"
"""Headers with a request's id, for clients of Anthropic and of OpenAI."""
LOGGED = 200
"""Maximum characters of a path in the log."""
FAULT = "Something went wrong inside specchat: try again."
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_log = logging.getLogger("specchat.serve")


class RequestLimits:
    """ASGI middleware that limits size and time of requests. It reads the whole body before the
    application starts, so that a slow client delays nothing else."""

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
                id = f"req_{uuid4().hex[:24]}".encode()
                ids = [(name.encode(), id) for name in REQUEST_IDS]
                message = {**message, "headers": [*message.get("headers", ()), *ids]}
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
            pass  # the program ends and closes open connections
        except Exception as error:  # the client has the headers already, or has disconnected
            _log.error("A request failed: %s", _where(error))
        finally:
            seconds = time.perf_counter() - started
            shown = sanitize_line(f"{scope['method']} {path[:LOGGED]}")
            _log.info("%s %d %.2f s", shown, status, seconds)

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes | tuple[int, str]:
        """The body, or the status and sentence with which the request is refused."""
        too_long = 413, f"The request is larger than {MAX_BODY // 1_000_000} MB: send less."
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
                        return 400, "The request is incomplete: send it again."
                    body += message.get("body", b"")
                    if len(body) > MAX_BODY:
                        await _drain(receive)
                        return too_long
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            return 408, f"The request took more than {BODY_SECONDS:.0f} seconds to arrive."
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding in ("", "identity"):
            return bytes(body)
        if encoding not in ("gzip", "x-gzip", "deflate"):
            return 415, f"The encoding {encoding[:20]!r} is not supported: use gzip, or none."
        found = await asyncio.to_thread(_decompressed, bytes(body))
        if found is None:
            return 400, f"The request is not complete {encoding} data: send it again."
        return too_long if len(found) > MAX_BODY else found


def _route(path: str) -> str:
    """Correct a path where the client's base URL lacks /v1 or has it twice, has an extra slash, or
    is one of Azure's."""
    parts = [part for part in path.split("/") if part]
    if parts[:2] == ["openai", "deployments"]:
        del parts[:3]
    elif parts[:1] == ["openai"] and len(parts) > 1:
        del parts[0]
    while parts[:2] == ["v1", "v1"]:
        del parts[0]
    if parts and parts[0] in VERSIONED:
        parts.insert(0, "v1")
    return "/" + "/".join(parts)


def _as_json(scope: Scope, path: str) -> Scope:
    """Set the content type to JSON whatever the client sent: `curl -d` declares a form. HEAD is
    GET without a body, which uvicorn leaves out."""
    others = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-type"]
    headers = [*others, (b"content-type", b"application/json")]
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    return {**scope, "method": method, "path": path, "headers": headers}


def _decompressed(body: bytes) -> bytes | None:
    """Up to one byte more than MAX_BODY; None for damaged data."""
    inflating = zlib.decompressobj(zlib.MAX_WBITS | 32)  # of either format
    try:
        found = inflating.decompress(body, MAX_BODY + 1)
    except zlib.error:
        return None
    is_whole = inflating.eof and not inflating.unused_data
    return found if is_whole or len(found) > MAX_BODY else None


async def _drain(receive: Receive) -> None:
    """Receive and discard the rest of a body that is too large, up to a limit. A client that is
    still sending when the connection closes would not see the error."""
    left = MAX_DRAINED
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return


def _where(error: Exception) -> str:
    """An error's type and place, without its text, which may contain parts of a request."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {frame.name} ({frame.filename}:{frame.lineno})"


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` function that returns the whole body first, then later messages."""
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
"""Seconds that a connection may stay open without the complete headers of a request."""

Protocol: Any = AutoHTTPProtocol  # its two implementations have no common type


class TimedConnection(Protocol):  # type: ignore[misc]
    """A connection with a time limit for headers, which uvicorn does not have."""

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
        """Start the timer if it is not running; stop it once a request has started."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._closing is None:
            self._closing = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


class HttpServer(uvicorn.Server):
    """A server that starts and stops the request queue itself, because ASGI's shutdown event comes
    only after the last request, if at all. It ends when the engine has lost the GPU."""

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
    """Raises UserError if the port is in use, or `host` is not an address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)  # before the address is printed, so that requests can follow
    except (OSError, UnicodeError, TypeError, ValueError) as error:  # not a valid name
        listening.close()
        reason = getattr(error, "strerror", None) or "not a valid address"
        raise UserError(
            f"Port {port} of {host} cannot be used ({reason})", _port_advice(error)
        ) from None
    return listening


def _port_advice(error: Exception) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return "stop the program that uses it, or choose another --port"
        case errno.EACCES:
            return "use a --port of 1,024 or higher"
    return "give --host an address of this machine, or leave it out"


def log_requests(handlers: list[logging.Handler]) -> None:
    """Log a line for each request, without contents, to these handlers only."""
    for name, level in (("specchat.serve", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = handlers, False
        logger.setLevel(level)

"""What every request passes first: who may ask, how much, and how long it may take to come."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from app.serve import anthropic_format, openai_format
from app.serve.access import Access
from app.util.sanitize import sanitize_line

MAX_BODY = 10_000_000
"""Bytes of a request."""
BODY_SECONDS = 30.0
"""In which all of it must have come."""
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


def error_body(path: str, message: str, status: int, code: str | None = None) -> dict[str, Any]:
    """In the form that the clients of this path expect."""
    own = anthropic_format if path.startswith("/v1/messages") else openai_format
    body: dict[str, Any] = own.error(message, status, code)
    return body


class Limits:
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
                more = self._access.for_pages(headers)
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        try:
            if scope["method"] == "OPTIONS" and self._access.for_pages(headers):
                return await _send(noted, 204, b"")
            refusal = self._access.refusal(headers, path not in OPEN)
            if refusal is not None:
                return await _refuse(noted, path, *refusal)
            body = await self._body(headers, receive)
            if isinstance(body, tuple):
                return await _refuse(noted, path, *body)
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


async def _refuse(send: Send, path: str, status: int, message: str) -> None:
    body = json.dumps(error_body(path, message, status)).encode()
    await _send(
        send, status, body, (b"content-type", b"application/json"), (b"connection", b"close")
    )


async def _send(send: Send, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-length", str(len(body)).encode()), *more] if body else [*more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

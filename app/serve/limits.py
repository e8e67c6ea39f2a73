"""What every request passes first: who may ask, how much, and how long it may take to come."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from app.serve import anthropic_format, openai_format
from app.serve.access import Access

MAX_BODY = 10_000_000
"""Bytes of a request."""
BODY_SECONDS = 30.0
"""In which all of it must have come."""
OPEN = frozenset({"/health"})
"""Paths that need no token."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_log = logging.getLogger("specchat.serve")


def error_body(path: str, message: str, status: int) -> dict[str, Any]:
    """In the form that the clients of this path expect."""
    own = anthropic_format if path.startswith("/v1/messages") else openai_format
    body: dict[str, Any] = own.error(message, status)
    return body


class Limits:
    """ASGI middleware. The body is read before the application starts: it is small, and a slow
    client then holds nothing else up."""

    def __init__(self, app: App, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, path = time.perf_counter(), str(scope["path"])
        status = 0

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = int(message.get("status", status))
            await send(message)

        try:
            pairs = [
                (k.decode("latin-1").lower(), v.decode("latin-1")) for k, v in scope["headers"]
            ]
            headers = dict(pairs)
            refusal = self._access.refusal(headers, path not in OPEN)
            if refusal is not None:
                return await _refuse(noted, path, *refusal)
            body = await self._body(headers, receive)
            if isinstance(body, tuple):
                return await _refuse(noted, path, *body)
            await self._app(scope, _replay(body, receive), noted)
        finally:
            seconds = time.perf_counter() - started
            _log.info("%s %s %d %.2f s", scope["method"], path, status, seconds)

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes | tuple[int, str]:
        """The body, or the status and the sentence with which it is refused."""
        too_long = 413, f"The request has more than {MAX_BODY // 1_000_000} MB: send less."
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_BODY:
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
                        return too_long
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            return 408, f"The request took more than {BODY_SECONDS:.0f} seconds to come."


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
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

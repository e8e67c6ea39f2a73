"""A server on a free port, in a thread, and what tests ask it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx

from app.extras.serve.application import make_app
from app.extras.serve.http import Access, HttpServer, listening_socket
from app.extras.serve.requests import Defaults
from app.extras.serve.server import ServedPair, Server, TargetTokens
from app.protocol.engine import Engine
from app.protocol.prompt import Message
from tests.patience import PATIENCE

ANSWER = "The tenant pays the rent on the first."
TOKEN = "specchat-test"
LONG_TEXT = "\n\n".join(f"The code of gate {n} is {n * 37 % 1000}." for n in range(300))
LIMIT = 30.0 * PATIENCE


class Words(TargetTokens):
    """Counts words as tokens."""

    def __init__(self) -> None:
        super().__init__(Path())

    def count(self, messages: tuple[Message, ...]) -> int:
        return sum(len(message.text.split()) for message in messages)

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


@contextmanager
def served(
    engine: Engine,
    *,
    token: str | None = TOKEN,
    waiting: int = 32,
    defaults: Defaults | None = None,
    context: int = 0,
) -> Iterator[tuple[Server, str]]:
    """The server, and its address."""
    pair = ServedPair("tiny", Words(), context=context)
    server = Server(engine, pair, defaults or Defaults(), waiting)
    running = HttpServer(make_app(server, Access("127.0.0.1", token)), server.queue)
    listening = listening_socket("127.0.0.1", 0)
    thread = threading.Thread(target=running.run, args=([listening],), daemon=True)
    thread.start()
    until(lambda: running.started)
    try:
        yield server, f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        running.should_exit = running.force_exit = True
        thread.join(LIMIT)


@contextmanager
def running(engine: Engine, **options: Any) -> Iterator[str]:
    """The address of a server."""
    with served(engine, **options) as (_, address):
        yield address


def until(condition: Any) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def client(address: str, **more: Any) -> httpx.Client:
    """For HTTP alone: reading certificates takes longer than most requests."""
    headers = {"Authorization": f"Bearer {TOKEN}", **more.pop("headers", {})}
    return httpx.Client(base_url=address, headers=headers, timeout=LIMIT, verify=False, **more)


def chat(text: str = "Hello?", **more: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": text}], **more}


def events(lines: Iterator[str]) -> list[str]:
    """The data of server-sent events."""
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

"""Compares the speed of a conversation over HTTP with one in the app.

Each run holds the same two turns about a text of more than 4,096 tokens with the embedded pair
twice: through the server, with streaming, and directly as the app does. Both use one engine without
sharing prefixes. Seconds run from sending the question to the first word.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from app.chat.model_pairs import resolve_pair
from app.chat.sample import sample
from app.engine.engine import MlxEngine
from app.protocol.commands import CachePolicy, Close
from app.protocol.events import Event, Finished, Loaded, Token
from app.protocol.options import BackgroundPolicy
from app.protocol.prompt import Message, Role
from benchmarks.harness import Bench, Column, Goal, Options, Progress, Result, Row, Run, columns

if TYPE_CHECKING:
    from app.protocol.commands import Ask, Load

QUESTIONS = ('What does it say of "patent license"?', 'And of "Corresponding Source"?')
ANSWER_TOKENS = 32
MODES = {"sparse": True, "full": False}
HOST = "127.0.0.1"
WAIT_SECONDS = 300.0
MAX_RATIO = 1.1


class _Both:
    """One engine that is used both directly and through a server."""

    def __init__(self, load: Load) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.engine = MlxEngine()
        self.engine.listen(self.events.put)
        self.engine.send(CachePolicy(BackgroundPolicy.OFF, share_prefixes=False))
        self.engine.send(load)
        self.until(Loaded)
        self.conversation = 0

    def until(self, kind: type[Event]) -> Event:
        while not isinstance(event := self.events.get(timeout=WAIT_SECONDS), kind):
            pass
        return event

    def ask(self, ask: Ask) -> tuple[float, Finished]:
        """Seconds to the first word, and the final event."""
        started = time.perf_counter()
        self.engine.ask(replace(ask, conversation=str(self.conversation)), self.events.put)
        self.until(Token)
        seconds = time.perf_counter() - started
        finished = self.until(Finished)
        assert isinstance(finished, Finished)
        return seconds, finished


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    from app.extras.serve.application import make_app
    from app.extras.serve.http import Access, HttpServer, listening_socket
    from app.extras.serve.requests import Defaults
    from app.extras.serve.server import Server, served_pair

    load = resolve_pair()
    both = _Both(load)
    assert both.engine.pair is not None
    server = Server(both.engine, served_pair(*both.engine.pair), Defaults())
    running = HttpServer(make_app(server, Access(HOST, None)), server.queue)
    with listening_socket(HOST, 0) as listening:
        port = int(listening.getsockname()[1])
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            for name, sparse in MODES.items():
                runs = progress.repeat(name, partial(_run, both, port, sparse))
                for index, turn in enumerate(("turn 1", "turn 2")):
                    yield Row({"turn": f"{name}, {turn}"}, [run[index] for run in runs])
        finally:
            running.should_exit = True
            thread.join(WAIT_SECONDS)
            both.engine.send(Close())
            both.engine.join()


def _run(both: _Both, port: int, sparse: bool) -> list[Run]:
    """Run both turns directly and over HTTP, in alternating order."""
    both.conversation += 1
    bodies = partial(_body, sparse)
    if both.conversation % 2:
        inside = _in_the_app(both, bodies)
        outside = _over_http(port, bodies)
    else:
        outside = _over_http(port, bodies)
        inside = _in_the_app(both, bodies)
    return [
        {"app": mine, "http": theirs, "ratio": theirs / mine, "cached": cached}
        for mine, (theirs, cached) in zip(inside, outside, strict=True)
    ]


def _body(sparse: bool, messages: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "messages": messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "specprefill": sparse,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _first_message() -> dict[str, str]:
    document = sample()
    text = f'<file path="{document.name}">\n{document.text}\n</file>\n\n{QUESTIONS[0]}'
    return {"role": "user", "content": text}


def _in_the_app(both: _Both, body: Any) -> list[float]:
    from app.extras.serve.apis.chat import ChatRequest
    from app.extras.serve.requests import Defaults, to_ask, to_messages

    request = ChatRequest.model_validate(body([_first_message()]))
    ask = to_ask(to_messages(request.messages), request, {}, Defaults())
    first, finished = both.ask(ask)
    answer = Message(Role.ASSISTANT, finished.text, token_ids=finished.generated_ids)
    later = replace(ask, messages=(*ask.messages, answer, Message(Role.USER, QUESTIONS[1])))
    second, _ = both.ask(later)
    return [first, second]


def _over_http(port: int, body: Any) -> list[tuple[float, float]]:
    """(seconds to the first word, reused tokens) of each turn."""
    messages, found = [_first_message()], []
    for question in (QUESTIONS[1], ""):
        seconds, text, cached = _request(port, body(messages))
        found.append((seconds, float(cached)))
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "user", "content": question})
    return found


def _request(port: int, body: dict[str, Any]) -> tuple[float, str, int]:
    connection = http.client.HTTPConnection(HOST, port, timeout=WAIT_SECONDS)
    started, seconds, text, cached = time.perf_counter(), 0.0, "", 0
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        part = json.loads(line[6:])
        for choice in part["choices"]:
            if piece := choice["delta"].get("content"):
                seconds = seconds or time.perf_counter() - started
                text += piece
        if part.get("usage"):
            cached = part["usage"]["prompt_tokens_details"]["cached_tokens"]
    connection.close()
    return seconds, text, cached


# -------------------------------------------------------------------------- the report


def about(result: Result) -> str:
    return (
        "Seconds to the first word of the same two turns about one text, by the embedded pair: as"
        " the app asks the engine, and over HTTP as a stream; both on one engine, one after the"
        " other, the ratio within each run."
    )


def goals(result: Result) -> Iterator[Goal]:
    for row in result.rows:
        ratio = row.median("ratio")
        what = f"{row['turn']}, over HTTP at most {MAX_RATIO:g} times as long as in the app"
        yield Goal(what, f"{ratio:.2f}", ratio <= MAX_RATIO)


BENCH = Bench(
    "serve",
    "a conversation over HTTP and in the app",
    "The server",
    measure,
    about,
    columns(
        Column("", "turn"),
        Column("in the app, s", "app", ".2f", spread=True),
        Column("over HTTP, s", "http", ".2f", spread=True),
        Column("ratio", "ratio", ".2f", spread=True),
        Column("tokens reused", "cached", ",.0f"),
    ),
    goals,
    report_args="--runs 7",
    flags={"runs": "5"},
)

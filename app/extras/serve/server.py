"""How a request of any API is answered."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from app.chat import wording
from app.engine.model.chat_template import PromptError
from app.engine.model.prompt import PromptBuilder
from app.extras.serve import answers
from app.extras.serve.answers import (
    AnswerFailed,
    AnswerPiece,
    Continuations,
    QueueFull,
    RequestQueue,
    ServedAnswer,
    Waiting,
)
from app.extras.serve.cutting import LONG
from app.extras.serve.fields import BadRequest, RequestError
from app.extras.serve.formats import Format
from app.extras.serve.requests import (
    AnsweredRequest,
    Defaults,
    is_gone,
    note,
    read,
    takes,
    to_ask,
)
from app.protocol.commands import Ask, DropConversation, Load
from app.protocol.engine import Engine, OnAnswered
from app.protocol.events import Failed, Loaded
from app.protocol.prompt import Message
from app.protocol.reasons import too_long

WHOLE_SECONDS, BLANK_SECONDS = 60.0, 30.0
"""Seconds after which an answer that is not streamed gets its status and a blank, and seconds
between further blanks. Some clients disconnect if nothing arrives for 300 s."""
WAITING = 32
"""Maximum number of queued requests."""
LONGEST_TOKEN, USUAL_TOKEN = 256, 4
"""Bytes of a token: maximum and usual value."""
NOT_STORED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Headers of answers that arrive bit by bit."""
T = TypeVar("T")
Answered = TypeVar("Answered", bound=AnsweredRequest)


@dataclass(frozen=True, slots=True)
class ServedPair:
    """The loaded pair. `model` is the target's name. `needs_document`: the target can only answer
    questions about documents. `context` is the maximum prompt length in tokens; 0 if unknown."""

    model: str
    tokens: TargetTokens
    needs_document: bool = False
    context: int = 0
    loaded_at: int = field(default_factory=lambda: int(time.time()))


def served_pair(load: Load, loaded: Loaded) -> ServedPair:
    target, tokens = loaded.target, TargetTokens(Path(load.target))
    return ServedPair(target.name, tokens, load.only_quotes, target.context_length)


class Server:
    """State that the routes share: the engine, the queue, and the defaults of requests.
    `on_answered` gets each request and the answer that its client got."""

    def __init__(
        self,
        engine: Engine,
        pair: ServedPair,
        defaults: Defaults,
        waiting: int = WAITING,
        on_answered: OnAnswered | None = None,
    ) -> None:
        self.engine, self.pair, self.defaults = engine, pair, defaults
        self.queue, self._continuations = RequestQueue(engine, waiting), Continuations()
        self._on_answered = on_answered

    def use_pair(self, pair: ServedPair) -> None:
        """Answer with another pair, and drop conversations: token ids differ between models."""
        self.pair = pair
        self.drop_conversations()

    def drop_conversations(self) -> None:
        """Forget earlier requests, and free their caches."""
        for name in self._continuations.clear():
            self.engine.send(DropConversation(name))

    async def respond(
        self,
        request: Request,
        make_ask: Callable[[], Ask],
        stops: list[str],
        form: Format,
        stream: bool,
        note: str = "",
    ) -> Any:
        """Answer a request. `make_ask` runs on a thread, because cutting long messages takes
        seconds. Raises BadRequest, QueueFull and AnswerFailed."""
        if self.queue.is_full:
            raise QueueFull
        ask = await on_thread(request, make_ask)
        if self.pair.needs_document and not any(message.documents for message in ask.messages):
            raise BadRequest(
                "The demo model only answers questions about documents: send a text of at least"
                f" {LONG:,} characters, or use another model (`specchat serve --target NAME`)."
            )
        answer = ServedAnswer(ask, stops, note)
        pieces = answer.pieces(self.queue, self._continuations, self.engine, self._on_answered)
        if not stream:
            return await _whole(request, answer, form, pieces)
        await self._check_length(ask)
        # A failure before anything was sent gets a status of its own.
        first = await _unless_gone(request, anext(pieces, None))
        stream_of = self._stream(answer, form, first, pieces)
        return StreamingResponse(stream_of, media_type="text/event-stream", headers=NOT_STORED)

    async def _check_length(self, ask: Ask) -> None:
        """Raise AnswerFailed for a prompt that exceeds the context. The engine would refuse it,
        too, but only after it has answered earlier requests."""
        needed = tuple(
            message if message.plain else replace(message, documents=())
            for message in ask.messages  # documents are not counted: the engine reads what fits
        )
        size = sum(_max_tokens(message) for message in needed)
        context = self.pair.context
        if not context or size <= context // 2:  # fits even with what a template adds
            return
        estimated = size > LONGEST_TOKEN * context
        if estimated:  # counting tokens of long texts takes much time and memory
            total = size // USUAL_TOKEN
        else:
            total = await asyncio.to_thread(self.pair.tokens.count, needed)
        if total >= context:
            raise AnswerFailed(Failed(0, too_long(total, self.pair.model, context, estimated)))

    async def _stream(
        self,
        answer: ServedAnswer,
        form: Format,
        first: AnswerPiece | Waiting | None,
        pieces: AsyncGenerator[AnswerPiece | Waiting],
    ) -> AsyncIterator[str]:
        """Stream an answer. `first` is its first piece, which was taken from `pieces` before."""
        event_at = answer.asked_at
        try:
            async with aclosing(pieces):
                piece = first
                while piece is not None:
                    now = time.monotonic()
                    if isinstance(piece, Waiting):
                        text = form.waiting(answer, now - event_at >= answers.EVENT_SECONDS)
                        yield text or f": {piece.note}\n\n"
                    elif text := form.start(answer) + form.piece(piece):
                        yield text
                        answer.sent_at = time.monotonic()
                    event_at = now if text else event_at
                    piece = await anext(pieces, None)
        except RequestError as error:
            yield form.failed(str(error), error.status, error.code)
            return
        yield form.start(answer) + form.end(answer)


async def _whole(
    request: Request,
    answer: ServedAnswer,
    form: Format,
    pieces: AsyncGenerator[AnswerPiece | Waiting],
) -> Response:
    """Answer a request that wants no stream. Raises BadRequest, QueueFull and AnswerFailed."""
    reading = asyncio.ensure_future(_read(pieces))
    try:
        await _unless_gone(request, asyncio.wait({reading}, timeout=WHOLE_SECONDS))
        if reading.done():
            reading.result()
            return JSONResponse(form.whole(answer))
    except BaseException:
        reading.cancel()
        raise
    late = _late(answer, form, reading)
    return StreamingResponse(late, media_type="application/json", headers=NOT_STORED)


async def _late(
    answer: ServedAnswer, form: Format, reading: asyncio.Future[None]
) -> AsyncIterator[str]:
    """Blanks, with which JSON may begin, then the answer, or the error that comes too late for a
    status."""
    try:
        done: set[Any] = set()
        while not done:
            yield " "
            done, _ = await asyncio.wait({reading}, timeout=BLANK_SECONDS)
        try:
            reading.result()
            body = form.whole(answer)
        except RequestError as error:
            body = form.error(str(error), error.status, error.code)
        yield json.dumps(body, ensure_ascii=False)
    finally:
        reading.cancel()


async def _read(pieces: AsyncGenerator[AnswerPiece | Waiting]) -> None:
    async with aclosing(pieces):
        async for _ in pieces:
            pass


async def on_thread(request: Request, work: Callable[[], T]) -> T:
    """Run `work` on a thread. If the client closes the connection, its files are read no further.
    Raises what `work` raises, and BadRequest."""
    gone = threading.Event()
    context = copy_context()
    context.run(is_gone.set, gone.is_set)
    running = asyncio.get_running_loop().run_in_executor(None, context.run, work)
    try:
        return await _unless_gone(request, running)
    finally:
        gone.set()


async def _unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Wait for `work`, and cancel it if the client closes the connection."""
    working = asyncio.ensure_future(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, gone):
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
    if working.cancelled():
        raise BadRequest("The client has closed the connection.")
    return working.result()


def _max_tokens(message: Message) -> int:
    """Upper bound for the tokens of a message: each token has at least one byte."""
    if message.plain and message.token_ids is not None:
        return len(message.token_ids)
    documents = (document.text for document in message.documents)
    texts = (message.body, message.thinking, *documents)
    return sum(len(text.encode()) for text in texts)


async def _gone(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def add_answers(
    app: FastAPI,
    server: Server,
    path: str,
    model: type[Answered],
    messages: Callable[[Answered], tuple[Message, ...]],
    form: Callable[[Answered, str], Format],
) -> None:
    """Add a route whose body has `messages`, and whose answer has the format `form`, which gets
    the body and the answer's id."""

    @app.post(path, openapi_extra=takes(model))
    async def answer(request: Request) -> Any:
        body = await read(model, request)
        body.check()

        def ask() -> Ask:
            return to_ask(messages(body), body, request.headers, server.defaults)

        found = form(body, uuid4().hex[:24])
        return await server.respond(request, ask, body.stops, found, body.stream, note(body))


class TargetTokens:
    """Counts and decodes tokens with the target's tokenizer, which is loaded when first needed. Use
    on one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._loaded: tuple[PromptBuilder, Any] | None = None

    def count(self, messages: tuple[Message, ...]) -> int:
        """Number of tokens of a prompt. Raises BadRequest."""
        asked = tuple(m if m.plain else replace(m, token_ids=None) for m in messages)
        with self._lock:
            try:
                return len(self._load()[0].build(asked).ids)
            except PromptError as error:
                raise BadRequest(f"{wording.failure(error.failure).problem}.") from error

    def text(self, ids: Sequence[int]) -> str:
        """The text of these tokens. Raises BadRequest."""
        with self._lock:
            tokenizer = self._load()[1]
            size = 1 + max(tokenizer.get_vocab().values())
            if any(not 0 <= token < size for token in ids):
                raise BadRequest(f"The prompt's tokens must be numbers from 0 to {size - 1:,}.")
            text: str = tokenizer.decode(list(ids))
            return text

    def _load(self) -> tuple[PromptBuilder, Any]:
        if self._loaded is None:
            from mlx_lm.utils import load_tokenizer

            tokenizer = load_tokenizer(self._folder)
            self._loaded = PromptBuilder(tokenizer), tokenizer
        return self._loaded

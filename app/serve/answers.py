"""Answers while they are written: the queue of requests, the conversations that they continue, and
what clients get of each."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from app.chat import wording
from app.chat.conversation import Question, Turn
from app.protocol.commands import Ask, DropConversation
from app.protocol.engine import AskedTurn, Engine, MakeAsk, OnAnswered
from app.protocol.events import (
    Event,
    Failed,
    Finished,
    GpuLost,
    HostsLost,
    PairLost,
    PhaseProgress,
    Token,
)
from app.protocol.prompt import Message, Role
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import FinishReason
from app.serve.fields import RequestError
from app.util.sanitize import sanitize_line

RETRY_SECONDS = 5
TOO_LONG = "context_length_exceeded"
"""OpenAI's code for a prompt that is too long."""
TRY_LATER = frozenset(
    {
        FailureKind.OUT_OF_MEMORY,
        FailureKind.NOT_ENOUGH_MEMORY,
        FailureKind.MEMORY_EXHAUSTED,
        FailureKind.NO_MODEL,
        FailureKind.GPU_LOST,
        FailureKind.SERVER_STOPPED,
    }
)
"""The same request may succeed later."""
OURS = frozenset({FailureKind.INTERNAL, FailureKind.MLX_MISSING})
"""The request is not to blame."""


class AnswerFailed(RequestError):
    """A turn failed. The text on a prompt that is too long begins as clients know it, which then
    shorten their history."""

    def __init__(self, failed: Failed) -> None:
        self.code = TOO_LONG if failed.excess_tokens > 0 else None
        beginning = "" if self.code is None else "The prompt is too long. "
        super().__init__(beginning + wording.failure(failed.failure).sentence)
        if self.code is not None:
            self.status = 400
        elif failed.failure.kind in TRY_LATER:
            self.status = 503
        else:
            self.status = 500 if failed.failure.kind in OURS else 400


STOPPED = Failure(FailureKind.SERVER_STOPPED)

log = logging.getLogger("specchat.serve")


class QueueFull(RequestError):
    """More requests wait than may."""

    status = 503

    def __init__(self) -> None:
        super().__init__("Too many requests are waiting: try again in a few seconds.")


class Request:
    """A request from its place in the queue to the end of its answer."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.turn: AskedTurn | None = None

    def deliver(self, event: Event) -> None:
        """Pass on an event. Called on the engine's thread."""
        with suppress(RuntimeError):  # the loop was closed: nobody waits for it any more
            self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event) -> None:
        self.events.put_nowait(event)
        if isinstance(event, Finished | Failed):
            self._queue.leave(self)

    def close(self) -> None:
        """Give its place back, and cancel its turn."""
        self._queue.leave(self)

    async def next(self, patience: float) -> Event | None:
        """The next event, the last of which is `Finished` or `Failed`; None if none comes for
        `patience` seconds."""
        try:
            return await asyncio.wait_for(self.events.get(), patience)
        except TimeoutError:
            return None

    def cancel(self) -> None:
        """End its turn at the next step."""
        if self.turn is not None:
            self.turn.cancel()


class RequestQueue:
    """All open requests: the engine answers them one after the other, and the app's own questions
    first. At most `limit` wait. On the event loop only."""

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine, self._limit = engine, limit
        self._open: set[Request] = set()
        self._stopped = False
        self._stop_listening: Callable[[], None] = lambda: None
        self.gpu_lost: GpuLost | None = None
        """Why only a new process can answer again, if it is so."""

    def start(self, on_gpu_lost: Callable[[], None] = lambda: None) -> None:
        """`on_gpu_lost` is called on the running event loop."""
        loop = asyncio.get_running_loop()

        def on_event(event: Event) -> None:
            if isinstance(event, HostsLost):
                log.warning("%s", sanitize_line(wording.notice(event)))
            elif isinstance(event, PairLost):
                log.error("%s", sanitize_line(wording.failure(event.failure).sentence))
            elif isinstance(event, GpuLost):
                self.gpu_lost = event
                loop.call_soon_threadsafe(on_gpu_lost)

        self._stop_listening = self._engine.listen(on_event)

    def stop(self) -> None:
        """Fail and cancel all requests; nothing else is started."""
        self._stopped = True
        self._stop_listening()
        for request in tuple(self._open):
            request.events.put_nowait(Failed(None, STOPPED))
            self.leave(request)

    @property
    def waiting(self) -> int:
        """How many wait or run."""
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return self.waiting > self._limit

    def enter(self, make_ask: MakeAsk) -> Request:
        """A place at the end of the queue. `make_ask` is called on the engine's thread when the
        turn starts. Raises QueueFull."""
        if self.is_full:
            raise QueueFull
        request = Request(self)
        if self._stopped:
            request.events.put_nowait(Failed(None, STOPPED))
        else:
            self._open.add(request)
            request.turn = self._engine.ask(make_ask, request.deliver, background=True)
        return request

    def leave(self, request: Request) -> None:
        """Its client has gone, or has all of its answer."""
        self._open.discard(request)
        request.cancel()


MAX_CONVERSATIONS = 16
"""Conversations whose caches are kept."""


class Continuations:
    """The last conversations, by name. No name is used twice. Safe on several threads: another pair
    is loaded on one of its own."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Message, ...]] = OrderedDict()
        """The messages of each, up to the last answer."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def clear(self) -> tuple[str, ...]:
        """Forget all; returns their names."""
        with self._lock:
            known, self._known = self._known, OrderedDict()
        return tuple(known)

    def place(self, messages: tuple[Message, ...]) -> tuple[str, tuple[Message, ...], str | None]:
        """The name of the conversation that these messages continue, or a new one; the messages,
        answers with the ids that were generated; and a conversation to drop, if any."""
        with self._lock:
            matching = (name for name, known in self._known.items() if _begin(known, messages))
            name = max(matching, key=lambda each: len(self._known[each]), default=None)
            if name is not None:
                self._known.move_to_end(name)
                known = self._known[name]
                return name, (*known, *messages[len(known) :]), None
            dropped = None
            if len(self._known) >= MAX_CONVERSATIONS:
                dropped, _ = self._known.popitem(last=False)
            name = f"request {next(self._numbers)}"
            self._known[name] = (*messages, Message(Role.ASSISTANT, ""))
            return name, messages, dropped

    def answered(self, name: str, messages: tuple[Message, ...], answer: Message) -> None:
        """`answer` is the whole one, also where the last message was its beginning."""
        if messages[-1].role is Role.ASSISTANT:
            messages = messages[:-1]
        with self._lock:
            if name in self._known and answer.text:
                self._known[name] = (*messages, answer)


def _begin(known: tuple[Message, ...], messages: tuple[Message, ...]) -> bool:
    """Whether `messages` begin with the known ones, whatever the ids, what was retrieved, and what
    was thought, which few clients send back."""
    return len(known) <= len(messages) and all(
        replace(one, token_ids=None, retrieved=None, thinking="")
        == replace(other, token_ids=None, thinking="")
        for one, other in zip(known, messages, strict=False)
    )


PATIENCE = 5.0
"""Seconds after which something is sent, so that connections stay open."""


class StopFinder:
    """Text goes in with `add`, and comes out up to the first of `stops`."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None
        """The stop sequence at which the text ended."""

    def add(self, text: str) -> str:
        """What may be shown now: not what may be the beginning of a stop sequence."""
        if self.found is not None:
            return ""
        self._held += text
        places = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            end, self.found = min(places)
            return self._take(end)
        held = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        return self._take(len(self._held) - held)

    def rest(self) -> str:
        """What was held back, once the text has ended."""
        return "" if self.found is not None else self._take(len(self._held))

    def _take(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text may begin a stop sequence."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """What was written since the last piece."""

    text: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing has been sent for a while; `note` says what happens."""

    note: str


class ServedAnswer:
    """The answer to one request. `turn` is what its client gets: up to a stop sequence, and without
    the beginning that the client sent. It is complete once `pieces` has ended."""

    def __init__(self, ask: Ask, stops: Sequence[str] = (), note: str = "") -> None:
        """`note` says what was ignored of the request, in one sentence."""
        self.ask, self.note = ask, note
        self.turn = Turn(0, Question(ask.question, (), ask.mode, ask.keep_ratio))
        self.sent_at = time.monotonic()
        """When the client was last sent something."""
        self._finder = StopFinder(stops)
        self._end: Finished | None = None
        """How the turn ended, with all of its text."""
        self._events: list[Event] = []
        """Other events of the turn, for whom the answer is reported to."""

    @property
    def stop(self) -> str | None:
        """The stop sequence at which it ended."""
        return self._finder.found

    async def pieces(
        self,
        queue: RequestQueue,
        continuations: Continuations,
        engine: Engine,
        on_answered: OnAnswered | None = None,
    ) -> AsyncGenerator[AnswerPiece | Waiting]:
        """Raises QueueFull and AnswerFailed. `on_answered` gets what the client got."""

        def place() -> Ask:
            name, messages, dropped = continuations.place(self.ask.messages)
            if dropped is not None:
                engine.send(DropConversation(dropped))
            self.ask = replace(self.ask, messages=messages, conversation=name, on_disk=False)
            return self.ask

        try:
            with closing(queue.enter(place)) as request:
                async with aclosing(self._until_the_end(request)) as pieces:
                    async for piece in pieces:
                        yield piece
            text, ids = self._whole
            whole = Message(Role.ASSISTANT, text, token_ids=ids, thinking=self.turn.thinking)
            continuations.answered(self._name, self._messages, whole)
        finally:
            if on_answered is not None and (self._end is not None or self.turn.text):
                self._report(on_answered)
            if self._name and self._name not in continuations:
                engine.send(DropConversation(self._name))  # it was forgotten meanwhile

    async def _until_the_end(self, request: Request) -> AsyncGenerator[AnswerPiece | Waiting]:
        """Raises AnswerFailed."""
        turn, finder = self.turn, self._finder
        while self._end is None:
            left = self.sent_at + PATIENCE - time.monotonic()
            event = await request.next(left) if left > 0 else None
            match event:
                case None:
                    self.sent_at = time.monotonic()
                    yield Waiting(self._activity)
                case Failed():
                    raise AnswerFailed(event)
                case Token() if self.stop is not None:
                    pass  # written before it was cancelled
                case Token():
                    ids = () if self._is_beginning(event) else event.ids
                    text = finder.add(event.text)
                    turn.apply(replace(event, ids=ids, text=text))
                    if text or event.thinking:
                        yield AnswerPiece(text, event.thinking)
                    if self.stop is not None:
                        request.cancel()
                case Finished():
                    self._end = event
                    if rest := finder.rest():
                        turn.apply(Token(0, (), rest))
                        yield AnswerPiece(rest)
                    reason = event.finish_reason if self.stop is None else FinishReason.STOP
                    turn.apply(replace(event, finish_reason=reason, text=turn.text))
                case _:
                    turn.apply(event)
                    if not isinstance(event, PhaseProgress):
                        self._events.append(event)

    @property
    def _activity(self) -> str:
        progress = self.turn.progress
        if progress.latest_phase is None:
            return "waiting for other requests"
        phase = progress.phases[progress.latest_phase]
        return f"{phase.phase}: {phase.done} of {phase.total}"

    @property
    def _name(self) -> str:
        return self.ask.conversation or ""

    @property
    def _messages(self) -> tuple[Message, ...]:
        """With what was retrieved for the question, so that the next one finds it cached."""
        if self.turn.retrieved is None:
            return self.ask.messages
        parts = tuple(part.document for part in self.turn.retrieved)
        last = max(i for i, each in enumerate(self.ask.messages) if each.role is Role.USER)
        return tuple(
            replace(each, retrieved=parts) if i == last else each
            for i, each in enumerate(self.ask.messages)
        )

    @property
    def _beginning(self) -> Message | None:
        """The answer that is to be continued."""
        last = self.ask.messages[-1]
        return last if last.role is Role.ASSISTANT else None

    def _is_beginning(self, event: Token) -> bool:
        """Whether these tokens are of the answer's beginning, which the client sent."""
        prefix, turn = self._beginning, self.turn
        unknown = prefix is not None and bool(prefix.text) and prefix.token_ids is None
        is_first = not (turn.progress.generated_tokens or turn.text or turn.thinking)
        return unknown and is_first and not (event.text or event.thinking)

    @property
    def _whole(self) -> tuple[str, tuple[int, ...] | None]:
        """The text that the client has, with the answer's beginning; and its ids, if they are
        known of exactly this text."""
        if self._end is not None and self.stop is None and not self.ask.sampling.stop_ids:
            return self._end.text, self._end.generated_ids
        prefix = self._beginning
        return (prefix.text if prefix else "") + self.turn.text, None

    def _report(self, on_answered: OnAnswered) -> None:
        text, ids = self._whole
        written = Token(0, ids or (), text, self.turn.thinking)
        reason = self.turn.ended or FinishReason.CANCELLED
        end = Finished(0, reason, text, ids or (), self.turn.statistics)
        try:
            on_answered(self.ask, [*self._events, written, end])
        except Exception as error:  # the client has its answer all the same
            log.warning("An answer could not be reported", exc_info=error)

    @property
    def cut_off(self) -> bool:
        """Whether it would have gone on."""
        return self.turn.ended in (FinishReason.LENGTH, FinishReason.MEMORY)

    @property
    def prompt_tokens(self) -> int:
        planned = self.turn.progress.planned
        return 0 if planned is None else planned.prompt_tokens

    def report(self) -> dict[str, Any]:
        """How the prompt was read, for programs that know specchat."""
        progress, found = self.turn.progress, dict[str, Any]()
        if (known := progress.statistics or progress.planned) is not None:
            found = {
                "reading": str(known.reading),
                "mode": str(self.ask.mode),
                "keep": known.keep_ratio,
                "reason": wording.reasons(known.reasons),
            }
        if (stats := progress.statistics) is not None:
            found |= {
                "read_tokens": stats.read_tokens,
                "recalled_tokens": stats.recalled_tokens,
                "time_to_first_token": round(stats.ttft, 3),
            }
        if (retrieved := progress.retrieved) is not None:
            files = [
                {"name": part.document.name, "line": part.document.line, "tokens": part.tokens}
                for part in retrieved.parts
            ]
            found |= {"files": files, "total_files": retrieved.total_files}
        return found | ({"note": self.note} if self.note else {})

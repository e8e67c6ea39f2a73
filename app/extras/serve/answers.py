"""Answers to requests while they are written: the queue, the conversations that requests continue,
and what each client gets."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from app.chat import reading_words, wording
from app.chat.citations import Footnote, placed
from app.chat.conversation import Question, Turn, not_read
from app.extras.serve.fields import RequestError
from app.protocol.commands import Ask, DropConversation
from app.protocol.engine import Engine, MakeAsk, OnAnswered, TurnHandle
from app.protocol.events import (
    Cited,
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
from app.util.sanitize import sanitize_line

RETRY_SECONDS = 5
TOO_LONG = "context_length_exceeded"
"""OpenAI's error code for a prompt that is too long."""
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
"""Failures after which the same request may succeed later."""
OURS = frozenset({FailureKind.INTERNAL, FailureKind.MLX_MISSING})
"""Failures that are not the request's fault."""


class AnswerFailed(RequestError):
    """A turn failed. For a prompt that is too long, the text begins with words that clients
    recognise; they then shorten their history."""

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
    """The queue has reached its limit."""

    status = 503

    def __init__(self) -> None:
        super().__init__("Too many requests are waiting: try again in a few seconds.")


class Request:
    """A request, from the time it is queued to the end of its answer."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.turn: TurnHandle | None = None

    def deliver(self, event: Event) -> None:
        """Pass an event to the event loop. Called on the engine's thread."""
        with suppress(RuntimeError):  # the loop was closed, so nobody waits for the event
            self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event) -> None:
        self.events.put_nowait(event)
        if isinstance(event, Finished | Failed):
            self._queue.leave(self)

    def close(self) -> None:
        """Leave the queue, and cancel the turn."""
        self._queue.leave(self)

    async def next(self, patience: float) -> Event | None:
        """Wait up to `patience` seconds for the next event; None if there is none. The last event
        is `Finished` or `Failed`."""
        try:
            return await asyncio.wait_for(self.events.get(), patience)
        except TimeoutError:
            return None

    def cancel(self) -> None:
        """Stop the turn at the next step."""
        if self.turn is not None:
            self.turn.cancel()


class RequestQueue:
    """All open requests. The engine answers one at a time, after the app's own questions. At most
    `limit` requests wait. Use on the event loop only."""

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine, self._limit = engine, limit
        self._open: set[Request] = set()
        self._stopped = False
        self._stop_listening: Callable[[], None] = lambda: None
        self.gpu_lost: GpuLost | None = None
        """Set once the engine has lost the GPU: only a new process can answer again."""

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
        """Fail and cancel all requests, and accept no others."""
        self._stopped = True
        self._stop_listening()
        for request in tuple(self._open):
            request.events.put_nowait(Failed(0, STOPPED))
            self.leave(request)

    @property
    def waiting(self) -> int:
        """Number of requests that wait or run."""
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return self.waiting > self._limit

    def enter(self, make_ask: MakeAsk) -> Request:
        """Add a request to the queue. `make_ask` is called on the engine's thread when the turn
        starts. Raises QueueFull."""
        if self.is_full:
            raise QueueFull
        request = Request(self)
        if self._stopped:
            request.events.put_nowait(Failed(0, STOPPED))
        else:
            self._open.add(request)
            request.turn = self._engine.ask(make_ask, request.deliver, background=True)
        return request

    def leave(self, request: Request) -> None:
        """Remove a request whose client has disconnected or has the whole answer."""
        self._open.discard(request)
        request.cancel()


MAX_CONVERSATIONS = 16
"""Number of conversations whose caches are kept."""


class Continuations:
    """The last conversations, by name. No name is used twice. Thread-safe, because another pair is
    loaded on another thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Message, ...]] = OrderedDict()
        """Messages of each conversation, up to its last answer."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def clear(self) -> tuple[str, ...]:
        """Forget all conversations; return their names."""
        with self._lock:
            known, self._known = self._known, OrderedDict()
        return tuple(known)

    def place(self, messages: tuple[Message, ...]) -> tuple[str, tuple[Message, ...], str | None]:
        """Find the conversation that these messages continue. Returns its name (or a new one), the
        messages (with the generated token ids of answers, up to the first difference from the most
        similar conversation), and the name of a conversation to drop, or None."""
        with self._lock:
            same = {name: _in_common(known, messages) for name, known in self._known.items()}
            whole = [name for name, known in self._known.items() if same[name] == len(known)]
            name = max(whole, key=lambda each: same[each], default=None)
            best = max(same, key=lambda each: (same[each], each == name), default=None)
            known = () if best is None else self._known[best][: same[best]]
            if best != name:  # what was retrieved for the other conversation stays there
                pairs = zip(known, messages, strict=False)
                known = tuple(one if one.role is Role.ASSISTANT else two for one, two in pairs)
            messages = (*known, *messages[len(known) :])
            if name is not None:
                self._known.move_to_end(name)
                return name, messages, None
            dropped = None
            if len(self._known) >= MAX_CONVERSATIONS:
                dropped, _ = self._known.popitem(last=False)
            name = f"request {next(self._numbers)}"
            self._known[name] = (*messages, Message(Role.ASSISTANT, ""))
            return name, messages, dropped

    def answered(self, name: str, messages: tuple[Message, ...], answer: Message) -> None:
        """Store a conversation's answer: all of it, even if the request had its beginning."""
        if messages[-1].role is Role.ASSISTANT:
            messages = messages[:-1]
        with self._lock:
            if name in self._known and answer.text:
                self._known[name] = (*messages, answer)


def _in_common(known: tuple[Message, ...], messages: tuple[Message, ...]) -> int:
    """Number of messages, up to the first difference. Token ids, retrieved documents and thinking,
    which few clients send back, are not compared, nor white space around answers."""
    pairs = enumerate(zip(known, messages, strict=False))
    different = (i for i, pair in pairs if _compared(pair[0]) != _compared(pair[1]))
    count = next(different, min(len(known), len(messages)))
    if count and count == len(messages) and known[count - 1].text != messages[-1].text:
        return count - 1  # the beginning of an answer, which goes on exactly there
    return count


def _compared(message: Message) -> Message:
    text = message.text.strip() if message.role is Role.ASSISTANT else message.text
    return replace(message, text=text, token_ids=None, retrieved=None, thinking="")


PATIENCE = 5.0
"""Seconds after which something is sent to keep a connection open."""
EVENT_SECONDS = 15.0
"""Seconds after which that is an event. Codex and Claude Code ignore comments, and disconnect if
there is no event for 300 s."""


class StopFinder:
    """Cuts a text, which `add` gets piece by piece, at the first of the stop sequences `stops`."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None
        """The stop sequence at which the text was cut."""

    def add(self, text: str) -> str:
        """Add text; return what can be sent now. The possible beginning of a stop sequence is held
        back."""
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
        """What was held back. Call this when the text has ended."""
        return "" if self.found is not None else self._take(len(self._held))

    def _take(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Number of characters at the end of `text` that may begin the stop sequence."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """Text written since the last piece."""

    text: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Sent when nothing else was sent for PATIENCE seconds; `note` says what the engine does."""

    note: str


class ServedAnswer:
    """The answer to one request. `turn` is what the client gets: the text up to a stop sequence,
    without the beginning that the client sent. It is complete once `pieces` has ended."""

    def __init__(self, ask: Ask, stops: Sequence[str] = (), note: str = "") -> None:
        """`note` is a sentence about ignored parts of the request."""
        self.ask, self.note = ask, note
        self.turn = Turn(0, Question(ask.question, (), ask.mode, ask.keep_ratio))
        self.sent_at = self.asked_at = time.monotonic()
        """Times at which something was last sent to the client, and at which it asked."""
        self._finder = StopFinder(stops)
        self._end: Finished | None = None
        """The turn's last event, with the whole text."""
        self._cited: Cited | None = None
        """The citations in the whole text."""
        self._events: list[Event] = []
        """Other events of the turn, for `on_answered`."""

    @property
    def stop(self) -> str | None:
        """The stop sequence at which the answer ended."""
        return self._finder.found

    async def pieces(
        self,
        queue: RequestQueue,
        continuations: Continuations,
        engine: Engine,
        on_answered: OnAnswered | None = None,
    ) -> AsyncGenerator[AnswerPiece | Waiting]:
        """Queue the request and yield its answer. `on_answered` gets what the client got. Raises
        QueueFull and AnswerFailed."""

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
            continuations.answered(self._name, self.messages, whole)
        finally:
            if on_answered is not None and (self._end is not None or self.turn.text):
                self._report(on_answered)
            if self._name and self._name not in continuations:
                engine.send(DropConversation(self._name))  # forgotten by `Continuations` meanwhile

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
                    pass  # written before the turn was cancelled
                case Token():
                    ids = () if self._is_beginning(event) else event.ids
                    text = finder.add(event.text)
                    turn.apply(replace(event, ids=ids, text=text))
                    if text or event.thinking:
                        yield AnswerPiece(text, event.thinking)
                    if self.stop is not None:
                        request.cancel()
                case Cited():
                    self._cited = event
                case Finished():
                    self._end = event
                    if rest := finder.rest():
                        turn.apply(Token(0, (), rest))
                        yield AnswerPiece(rest)
                    self._apply_citations()
                    reason = event.finish_reason if self.stop is None else FinishReason.STOP
                    turn.apply(replace(event, finish_reason=reason, text=turn.text))
                case _:
                    turn.apply(event)
                    if not isinstance(event, PhaseProgress):
                        self._events.append(event)

    def _apply_citations(self) -> None:
        """Apply those in the text that the client gets."""
        if self._cited is not None:
            prefix = self._beginning
            start = 0 if prefix is None else len(prefix.text)
            end = start + len(self.turn.text)
            citations = self._cited.citations
            self.turn.apply(replace(self._cited, citations=citations.between(start, end)))
            self._events.append(replace(self._cited, citations=citations.between(0, end)))

    @property
    def footnotes(self) -> list[Footnote]:
        """The footnote of each citation."""
        documents = [each.in_prompt for each in self.messages]
        return [*placed(self.turn.citations, documents)]

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
    def messages(self) -> tuple[Message, ...]:
        """The messages with the documents retrieved for the question, so that the next request
        finds them cached."""
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
        """The beginning of the answer, if the request asks to continue one."""
        last = self.ask.messages[-1]
        return last if last.role is Role.ASSISTANT else None

    def _is_beginning(self, event: Token) -> bool:
        """Whether these tokens belong to the answer's beginning, which the client sent."""
        prefix, turn = self._beginning, self.turn
        unknown = prefix is not None and bool(prefix.text) and prefix.token_ids is None
        is_first = not (turn.progress.generated_tokens or turn.text or turn.thinking)
        return unknown and is_first and not (event.text or event.thinking)

    @property
    def _whole(self) -> tuple[str, tuple[int, ...] | None]:
        """The text that the client has, including the answer's beginning, and its token ids if
        they are known for exactly this text."""
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
        except Exception as error:  # the client has its answer anyway
            log.warning("An answer could not be reported", exc_info=error)

    @property
    def cut_off(self) -> bool:
        """Whether the answer was cut off."""
        return self.turn.ended in (FinishReason.LENGTH, FinishReason.MEMORY, FinishReason.REPEATED)

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
                "read": reading_words.read_amount(stats),
                "documents": None if stats.documents is None else asdict(stats.documents),
                "read_tokens": max(0, stats.read_tokens - stats.reused_tokens),
                "recalled_tokens": stats.recalled_tokens,
                "time_to_first_token": round(stats.ttft, 3),
            }
        if (retrieved := progress.retrieved) is not None:
            files = [
                {"name": part.document.name, "line": part.document.line, "tokens": part.tokens}
                for part in retrieved.parts
            ]
            found |= {"files": files, "total_files": retrieved.documents.files}
        if (citations := self.turn.citations) is not None:
            found["sentences_without_passage"] = citations.uncited
        missing = f"{self._missing}." if self._missing else ""
        note = " ".join(filter(None, (self.note, missing)))
        return found | ({"note": note} if note else {})

    @cached_property
    def _missing(self) -> str:
        """What could not be read of the documents."""
        return not_read(each for message in self.ask.messages for each in message.documents)

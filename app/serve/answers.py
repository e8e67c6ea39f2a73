"""An answer while it is written: text up to a stop sequence, why it ended, and what it took."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from app.chat import wording
from app.protocol.commands import Ask, DropConversation
from app.protocol.engine import Engine
from app.protocol.events import (
    Event,
    Failed,
    Finished,
    PhaseProgress,
    Planned,
    Retrieved,
    Token,
)
from app.protocol.prompt import Message, Role
from app.protocol.server import OnAnswered
from app.protocol.stats import FinishReason, Statistics
from app.serve.continuations import Continuations
from app.serve.failures import AnswerFailed
from app.serve.queue import Request, RequestQueue

PATIENCE = 5.0
"""Seconds after which something is sent, so that connections stay open."""
_log = logging.getLogger("specchat.serve")


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
class Piece:
    """What was written since the last piece."""

    text: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing has been sent for a while; `note` says what happens."""

    note: str


@dataclass
class Answer:
    """Of one request. Once `pieces` ends, everything about it is known."""

    ask: Ask
    stops: Sequence[str] = ()
    note: str = ""
    """What was ignored of the request, as one sentence."""
    text: str = ""
    thinking: str = ""
    finish_reason: FinishReason = FinishReason.STOP
    stop: str | None = None
    """The stop sequence at which it ended."""
    statistics: Statistics | None = None
    planned: Planned | None = None
    retrieved: Retrieved | None = None
    """Of documents that do not all fit, what the model got."""
    generated: int = 0
    """Tokens."""
    thought: int = 0
    """Of these, tokens of `thinking`, but for the last few, which come with the first of `text`."""
    sent_at: float = field(default_factory=time.monotonic)
    """When the client was last sent something."""
    _events: list[Event] = field(default_factory=list)
    """Of its turn, without its text and its end."""

    async def pieces(
        self,
        queue: RequestQueue,
        continuations: Continuations,
        engine: Engine,
        on_answered: OnAnswered | None = None,
    ) -> AsyncGenerator[Piece | Waiting]:
        """Raises QueueFull and AnswerFailed. `on_answered` gets what the client got."""

        def place() -> Ask:
            name, messages, dropped = continuations.place(self.ask.messages)
            if dropped is not None:
                engine.send(DropConversation(dropped))
            self.ask = replace(self.ask, messages=messages, conversation=name, on_disk=False)
            return self.ask

        ended: Finished | None = None
        try:
            with queue.enter(place) as request:
                async with aclosing(self._until_the_end(request)) as events:
                    async for event in events:
                        if isinstance(event, Finished):
                            ended = event
                        else:
                            yield event
            assert ended is not None
            self.statistics = ended.statistics
            if self.stop is None:
                self.finish_reason = ended.finish_reason
            text, ids = self._whole(ended)
            whole = Message(Role.ASSISTANT, text, token_ids=ids, thinking=self.thinking)
            continuations.answered(self._name, self._messages, whole)
        finally:
            if on_answered is not None and (ended is not None or self.text):
                self._report(ended, on_answered)
            if self._name and self._name not in continuations:
                engine.send(DropConversation(self._name))  # it was forgotten meanwhile

    async def _until_the_end(self, request: Request) -> AsyncGenerator[Piece | Waiting | Finished]:
        """Pieces, and the turn's end. Raises AnswerFailed."""
        finder, note = StopFinder(self.stops), "waiting for other requests"
        while True:
            left = self.sent_at + PATIENCE - time.monotonic()
            event = await request.next(left) if left > 0 else None
            match event:
                case None:
                    self.sent_at = time.monotonic()
                    yield Waiting(note)
                case PhaseProgress():
                    note = f"{event.phase}: {event.done} of {event.total}"
                case Token() if finder.found is not None:
                    pass  # written before it was cancelled
                case Token():
                    if not self._is_beginning(event):
                        self.generated += len(event.ids)
                        self.thought += 0 if event.text else len(event.thinking and event.ids)
                    if piece := self._add(finder.add(event.text), event.thinking):
                        yield piece
                    if finder.found is not None:
                        self.stop = finder.found
                        request.cancel()
                case Finished():
                    if piece := self._add(finder.rest(), ""):
                        yield piece
                    yield event
                    return
                case Failed():
                    raise AnswerFailed(event)
                case _:
                    self._events.append(event)
                    if isinstance(event, Planned):
                        self.planned = event
                    elif isinstance(event, Retrieved):
                        self.retrieved = event

    @property
    def _name(self) -> str:
        return self.ask.conversation or ""

    @property
    def _messages(self) -> tuple[Message, ...]:
        """With what was retrieved for the question, so that the next one finds it cached."""
        if self.retrieved is None:
            return self.ask.messages
        parts = tuple(part.document for part in self.retrieved.parts)
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
        prefix = self._beginning
        unknown = prefix is not None and bool(prefix.text) and prefix.token_ids is None
        is_first = not (self.generated or self.text or self.thinking)
        return unknown and is_first and not (event.text or event.thinking)

    def _whole(self, ended: Finished | None) -> tuple[str, tuple[int, ...] | None]:
        """The text that the client has, with the answer's beginning; and its ids, if they are
        known of exactly this text."""
        if ended is not None and self.stop is None and not self.ask.sampling.stop_ids:
            return ended.text, ended.generated_ids
        prefix = self._beginning
        return (prefix.text if prefix else "") + self.text, None

    def _report(self, ended: Finished | None, on_answered: OnAnswered) -> None:
        text, ids = self._whole(ended)
        reason = self.finish_reason if ended is not None else FinishReason.CANCELLED
        known = ids or ()
        written = Token(0, known, text, self.thinking)
        end = Finished(0, reason, text, known, self.statistics)
        try:
            on_answered(self.ask, [*self._events, written, end])
        except Exception as error:  # the client has its answer all the same
            _log.warning("An answer could not be reported", exc_info=error)

    def _add(self, text: str, thinking: str) -> Piece | None:
        self.text += text
        self.thinking += thinking
        return Piece(text, thinking) if text or thinking else None

    @property
    def cut_off(self) -> bool:
        """Whether it would have gone on."""
        return self.stop is None and self.finish_reason in (
            FinishReason.LENGTH,
            FinishReason.MEMORY,
        )

    @property
    def prompt_tokens(self) -> int:
        return self.planned.prompt_tokens if self.planned is not None else 0

    @property
    def cached_tokens(self) -> int:
        if self.statistics is not None:
            return self.statistics.reused_tokens
        return self.planned.reused_tokens if self.planned is not None else 0

    def report(self) -> dict[str, Any]:
        """How the prompt was read, for programs that know specchat."""
        note = {"note": self.note} if self.note else {}
        return self._reading() | self._files() | note

    def _files(self) -> dict[str, Any]:
        if self.retrieved is None:
            return {}
        files = [
            {"name": part.document.name, "line": part.document.line, "tokens": part.tokens}
            for part in self.retrieved.parts
        ]
        return {"files": files, "total_files": self.retrieved.total_files}

    def _reading(self) -> dict[str, Any]:
        if self.statistics is not None:
            stats = self.statistics
            return {
                "reading": str(stats.reading),
                "mode": str(stats.mode),
                "keep": stats.keep_ratio,
                "reason": wording.reasons(stats.reasons),
                "read_tokens": stats.read_tokens,
                "recalled_tokens": stats.recalled_tokens,
                "time_to_first_token": round(stats.ttft, 3),
            }
        if self.planned is None:
            return {}
        return {
            "reading": str(self.planned.reading),
            "mode": str(self.ask.mode),
            "keep": self.planned.keep_ratio,
            "reason": wording.reasons(self.planned.reasons),
        }

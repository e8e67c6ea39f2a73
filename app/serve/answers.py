"""An answer while it is written: text up to a stop sequence, why it ended, and what it took."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.protocol.commands import Ask, DropConversation
from app.protocol.engine import Engine
from app.protocol.events import Failed, Finished, PhaseProgress, Planned, Token
from app.protocol.stats import FinishReason, Statistics
from app.serve.continuations import Continuations
from app.serve.queue import EngineQueue
from app.serve.stops import StopFinder

PATIENCE = 5.0
"""Seconds without an event after which something is sent, so that connections stay open."""


class AnswerFailed(Exception):
    """The engine's sentence about a turn that failed; `too_long` if the prompt was."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.too_long = failed.excess_tokens > 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What was written since the last piece."""

    text: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing has been written for a while; `note` says what happens."""

    note: str


@dataclass
class Answer:
    """Of one request. Once `pieces` ends, everything about it is known."""

    ask: Ask
    stops: Sequence[str] = ()
    text: str = ""
    thinking: str = ""
    finish_reason: FinishReason = FinishReason.STOP
    stop: str | None = None
    """The stop sequence at which it ended."""
    statistics: Statistics | None = None
    planned: Planned | None = None
    generated: int = 0
    """Tokens."""

    async def pieces(
        self, queue: EngineQueue, continuations: Continuations, engine: Engine
    ) -> AsyncGenerator[Piece | Waiting]:
        """Raises QueueFull and AnswerFailed."""
        name, messages, dropped = continuations.place(self.ask.messages)
        if dropped is not None:
            engine.send(DropConversation(dropped))
        finder, note = StopFinder(self.stops), "waiting for other requests"
        events = queue.run(replace(self.ask, messages=messages, conversation=name), PATIENCE)
        try:
            async for event in events:
                match event:
                    case None:
                        yield Waiting(note)
                    case PhaseProgress():
                        note = f"{event.phase}: {event.done} of {event.total}"
                    case Planned():
                        self.planned = event
                    case Token():
                        self.generated += len(event.ids)
                        if piece := self._add(finder.add(event.text), event.thinking):
                            yield piece
                        if finder.found is not None:
                            self.stop = finder.found
                            continuations.answered(name, messages, self.text, None)
                            return
                    case Finished():
                        self.finish_reason, self.statistics = event.finish_reason, event.statistics
                        continuations.answered(name, messages, event.text, event.generated_ids)
                    case Failed():
                        raise AnswerFailed(event)
        finally:
            await events.aclose()
        if piece := self._add(finder.rest(), ""):
            yield piece

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
        if self.statistics is not None:
            stats = self.statistics
            return {
                "reading": str(stats.reading),
                "mode": str(stats.mode),
                "keep": stats.keep_ratio,
                "reason": stats.reason,
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
            "reason": self.planned.reason,
        }

"""A conversation in memory: what has been said, and the next question as an `Ask`."""

from __future__ import annotations

from collections.abc import Sequence

from app.engine.messages import (
    DEFAULT_KEEP,
    Ask,
    Document,
    Ended,
    Finished,
    Message,
    Mode,
    Role,
    Sampling,
)
from app.errors import UserError


class QuestionError(UserError):
    """What was asked cannot be sent."""


class Conversation:
    """Messages in order. A turn's question and answer join them once the turn is over."""

    def __init__(self) -> None:
        self.messages: tuple[Message, ...] = ()
        self._turn = 0
        self._asked: Message | None = None

    def ask(
        self,
        question: str,
        documents: Sequence[Document] = (),
        mode: Mode = Mode.AUTO,
        keep: float = DEFAULT_KEEP,
        sampling: Sampling | None = None,
    ) -> Ask:
        """The command for the next turn. Raises QuestionError."""
        sampling = sampling or Sampling()
        if not question.strip():
            raise QuestionError("The question is empty", "type what you want to know")
        if not 0.0 <= keep <= 1.0:
            raise QuestionError(f"keep {keep:g} is out of range", "give a fraction between 0 and 1")
        if sampling.max_tokens < 1:
            raise QuestionError("An answer needs at least one token", "allow 1 token or more")
        if not sampling.temperature >= 0:
            raise QuestionError(f"{sampling.temperature:g} is no temperature", "give 0 or more")
        self._turn += 1
        self._asked = Message(Role.USER, question, tuple(documents))
        return Ask(self._turn, (*self.messages, self._asked), mode, keep, sampling)

    def finished(self, event: Finished) -> None:
        """Take the answer up. A turn cancelled before its first token leaves no trace."""
        if event.turn != self._turn or self._asked is None:
            return
        if event.ended is not Ended.CANCELLED or event.generated_ids:
            answer = Message(Role.ASSISTANT, event.text, token_ids=event.generated_ids)
            self.messages = (*self.messages, self._asked, answer)
        self._asked = None

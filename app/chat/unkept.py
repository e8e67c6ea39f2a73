"""A conversation that is kept nowhere: in memory, for as long as the program runs. It has the face
of `KeptConversation`, so that a screen need not know which one it shows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from app.chat.conversation import Conversation, Question, QuestionError, Turn
from app.chat.kept import KeptConversation, KeptTurn
from app.engine.messages import Ask, Event, Mode
from app.sessions.database import StoreError


class UnkeptTurn:
    """One answer. Send `command`, then `apply` every event of the turn."""

    def __init__(self, turn: Turn, command: Ask) -> None:
        self.turn, self.command = turn, command
        self.problem: StoreError | None = None
        self.saved: Future[None] | None = None

    def apply(self, event: Event) -> None:
        self.turn.apply(event)

    def save(self) -> None:
        """There is nothing to be kept."""


class UnkeptConversation:
    """`read` is a stored conversation that can only be read, to go on with from where it ends."""

    def __init__(
        self,
        conversation: Conversation,
        number: Callable[[], int],
        read: KeptConversation | None = None,
    ) -> None:
        """`number` gives each turn one of its own: below 0, since ids of messages are above."""
        self.id = None if read is None else read.id
        self.conversation = conversation
        self._read, self._number = read, number
        self._name = ""

    def ask(self, question: Question) -> UnkeptTurn:
        """Raises QuestionError, or StoreError when a document of an earlier question is lost."""
        return self._begin(question, None)

    def ask_again(self, mode: Mode, keep: float) -> UnkeptTurn:
        last = self.conversation.last
        if last is None:
            raise QuestionError("There is no question to be asked again", "ask one")
        return self._begin(replace(last.question, mode=mode, keep=keep), last)

    def _begin(self, question: Question, replaces: Turn | None) -> UnkeptTurn:
        question.check()
        if self._read is not None:
            self._read.check_documents()
        turn, command = self.conversation.begin(question, replaces, self._number())
        self._name = self._name or f"unkept {turn.number}"
        return UnkeptTurn(turn, replace(command, conversation=self._name))


Chat = KeptConversation | UnkeptConversation
AskedTurn = KeptTurn | UnkeptTurn

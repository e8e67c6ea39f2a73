"""A conversation that is kept nowhere: in memory, for as long as the program runs. It has the face
of `StoredConversation`, so that a screen need not know which one it shows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from app.chat.conversation import Conversation, Pins, Question, QuestionError, Turn, TurnPart
from app.chat.model_pairs import ModelPair
from app.chat.stored_conversation import StoredConversation
from app.chat.stored_turn import StoredTurn
from app.protocol.commands import Ask
from app.protocol.events import Event
from app.protocol.options import Mode
from app.sessions.errors import StoreError
from app.sessions.records import DeletedMessages, Overrides


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
    """`read` is a stored conversation that can only be read, to go on with from where it ends. Of
    its other branches nothing is known here."""

    def __init__(
        self,
        conversation: Conversation,
        number: Callable[[], int],
        read: StoredConversation | None = None,
    ) -> None:
        """`number` gives each turn one of its own: below 0, since ids of messages are above."""
        self.id = None if read is None else read.id
        self.conversation = conversation
        self._read, self._number = read, number
        self.name = ""
        """As of `StoredConversation`, once something was asked."""
        self._turns = {turn.number: turn for turn in conversation.turns}
        """Of every branch, in the order of asking; those deleted are not among them."""
        self._before: dict[int, int | None] = {}
        self._asked: dict[int, int] = {}
        """The number of the turn that a question was first asked in."""
        self._removed: dict[int, Turn] = {}
        for place, turn in enumerate(conversation.turns):
            before = conversation.turns[place - 1].number if place else None
            self._note(turn, before, turn.number)

    def set_models(self, models: ModelPair) -> None:
        """Other models answer from now on: the ids that were generated may not be theirs."""
        if self._read is not None:
            self._read.set_models(models)
        for turn in self._turns.values():
            turn.generated_ids = None

    def ask(self, question: Question, edit_of: Turn | None = None) -> UnkeptTurn:
        """Raises QuestionError, or StoreError when a document of an earlier question is lost."""
        return self._begin(question, edits=edit_of)

    def ask_again(
        self, mode: Mode, keep: float, turn: Turn | None = None, pins: Pins | None = None
    ) -> UnkeptTurn:
        again = turn or self.conversation.last
        if again is None:
            raise QuestionError("There is no question to be asked again", "ask one")
        if pins:
            self.conversation.pin(again, pins)
        return self._begin(again.retry_question(mode, keep), replaces=again)

    def resume(self, turn: Turn) -> UnkeptTurn:
        """As `StoredConversation.resume`."""
        if self._read is not None:
            self._read.check_documents()
        command = self.conversation.resume(turn)
        self.name = self.name or f"unkept {turn.number}"
        return UnkeptTurn(turn, replace(command, conversation=self.name))

    def set_overrides(self, choices: Overrides) -> None:
        """What holds for this conversation alone, from the next question on."""
        self.conversation.overrides = choices

    def version_of(self, turn: Turn, part: TurnPart) -> tuple[int, int]:
        """The how-manieth version it is (from 1), of how many."""
        versions = self._versions(turn, part)
        return versions.index(self._key(turn, part)) + 1, len(versions)

    def step_version(self, turn: Turn, part: TurnPart, by: int) -> None:
        """Make the branch through another version the current one: `by` further on."""
        versions = self._versions(turn, part)
        wanted = versions.index(self._key(turn, part)) + by
        if 0 <= wanted < len(versions):
            self._show_through(versions[wanted], part)

    def show_message(self, message: int) -> None:
        """Only what is on the current branch can be gone to."""

    def find(self, message: int) -> tuple[Turn, TurnPart] | None:
        """Which part of which turn of the current branch a stored message is."""
        return None if self._read is None else self._read.find(message)

    def delete(self, turn: Turn, part: TurnPart) -> DeletedMessages:
        """As `StoredConversation.remove`."""
        if len(self._versions(turn, TurnPart.ANSWER)) < 2:
            part = TurnPart.QUESTION
        current = self.conversation.branch[-1].number
        versions, key = self._versions(turn, part), self._key(turn, part)
        gone = [each for each in self._turns.values() if self._key(each, part) == key]
        numbers = {each.number for each in gone}
        for number, before in self._before.items():  # in the order of asking
            if before in numbers:
                numbers.add(number)
        numbers &= self._turns.keys()
        for number in numbers:
            self._removed[number] = self._turns.pop(number)
        others = [version for version in versions if version != key]
        if current not in numbers:
            self._show(current)
        elif others:
            self._show_through(others[-1], part)
        else:
            self._show(self._before[turn.number])
        return DeletedMessages(0, tuple(sorted(numbers, reverse=True)), current)

    def restore(self, removed: DeletedMessages) -> None:
        back = {n: self._removed.pop(n) for n in removed.messages if n in self._removed}
        every = self._turns | back
        self._turns = {number: every[number] for number in self._before if number in every}
        self._show(removed.current)

    def _begin(
        self, question: Question, replaces: Turn | None = None, edits: Turn | None = None
    ) -> UnkeptTurn:
        question.check()
        if self._read is not None:
            self._read.check_documents()
        before = self._last
        turn, command = self.conversation.start_turn(question, replaces, self._number(), edits)
        if turn.superseded:
            before = self._before[turn.superseded[0].number]
        asked = turn.number if replaces is None else self._asked[replaces.number]
        self._note(turn, before, asked)
        self.name = self.name or f"unkept {turn.number}"
        return UnkeptTurn(turn, replace(command, conversation=self.name))

    @property
    def _last(self) -> int | None:
        """With which turn the branch ends: not with one that was to replace another in vain."""
        for turn in reversed(self.conversation.branch):
            if not turn.replaced and (turn.retry_of is None or not turn.retry_of.in_context):
                return turn.number
        return None

    def _note(self, turn: Turn, before: int | None, asked: int) -> None:
        self._turns[turn.number] = turn
        self._before[turn.number], self._asked[turn.number] = before, asked

    def _key(self, turn: Turn, part: TurnPart) -> int:
        return turn.number if part is TurnPart.ANSWER else self._asked[turn.number]

    def _versions(self, turn: Turn, part: TurnPart) -> list[int]:
        before, asked = self._before[turn.number], self._asked[turn.number]
        beside = [each for each in self._turns.values() if self._before[each.number] == before]
        if part is TurnPart.ANSWER:
            return [each.number for each in beside if self._asked[each.number] == asked]
        return list(dict.fromkeys(self._asked[each.number] for each in beside))

    def _show_through(self, version: int, part: TurnPart) -> None:
        """The newest branch through a question or an answer."""
        found = [each for each in self._turns.values() if self._key(each, part) == version]
        last: Turn | None = found[-1]
        while last is not None:
            number = last.number
            below = (t for t in reversed(self._turns.values()) if self._before[t.number] == number)
            last = next(below, None)
        self._show(number)

    def _show(self, last: int | None) -> None:
        """The branch that ends with this turn."""
        turns: list[Turn] = []
        while last is not None:
            turn = self._turns[last]
            turn.replaced, turn.retry_of, turn.superseded = False, None, ()
            turns.insert(0, turn)
            last = self._before[last]
        self.conversation.turns = turns


Chat = StoredConversation | UnkeptConversation
AskedTurn = StoredTurn | UnkeptTurn

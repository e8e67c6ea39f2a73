"""A conversation in memory: turns, what waits, and what an `Ask` contains.

The one place that decides which earlier turns the engine sees. Both the screen and the command line
stand on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile

from app.errors import UserError
from app.protocol.commands import Ask
from app.protocol.events import Event, Failed, Finished, Planned, Token
from app.protocol.options import DEFAULT_KEEP_RATIO, Mode, Sampling
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import FinishReason, Reading, Statistics
from app.sessions.records import Choices

Pins = dict[tuple[int, int], tuple[tuple[int, int], ...]]
"""Characters `(start, end)` by message and document."""


class QuestionError(UserError):
    """What was asked cannot be sent."""


class TurnState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class Part(StrEnum):
    """What a turn consists of; of both there may be several versions."""

    QUESTION = "question"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Question:
    """What the user asks, and how it is to be read."""

    text: str
    documents: tuple[Document, ...] = ()
    mode: Mode = Mode.AUTO
    keep: float = DEFAULT_KEEP_RATIO
    despite_memory: bool = False
    """Try it though it is foreseen not to fit."""

    @property
    def message(self) -> Message:
        return Message(Role.USER, self.text, self.documents)

    def check(self) -> None:
        """Raise QuestionError when there is nothing to ask, or keep is no fraction."""
        if not self.text.strip():
            raise QuestionError("The question is empty", "type what you want to know")
        if any("\ud800" <= character <= "\udfff" for character in self.text):
            raise QuestionError("The question is not valid UTF-8", "type it again")
        if not 0.0 <= self.keep <= 1.0:
            raise QuestionError(
                f"keep {self.keep:g} is out of range", "give a fraction between 0 and 1"
            )


def check_sampling(sampling: Sampling) -> None:
    """Raise QuestionError for figures that no answer can be sampled with."""
    if sampling.max_tokens < 1:
        raise QuestionError("An answer needs at least one token", "allow 1 token or more")
    if not sampling.temperature >= 0:
        raise QuestionError(f"{sampling.temperature:g} is no temperature", "give 0 or more")
    if not 0 < sampling.top_p <= 1:
        raise QuestionError(f"{sampling.top_p:g} is no top-p", "give a fraction above 0, at most 1")
    if sampling.seed is not None and not 0 <= sampling.seed < 2**64:
        raise QuestionError(f"{sampling.seed} is no seed", "give a number from 0 to 2^64 - 1")


def chosen_sampling(choices: Choices, otherwise: Sampling) -> Sampling:
    """`otherwise` but for what was chosen. What no answer can be sampled with was not chosen here:
    it came with an imported conversation, and is left out."""
    names = ("max_tokens", "temperature", "top_p", "seed")
    chosen = {name: value for name in names if (value := getattr(choices, name)) is not None}
    sampling = replace(otherwise, **chosen)
    try:
        check_sampling(sampling)
    except QuestionError:
        return otherwise
    return sampling


def chosen_reading(choices: Choices, mode: Mode, keep: float) -> tuple[Mode, float]:
    """The same of how questions are read."""
    if choices.mode in tuple(Mode):
        mode = Mode(choices.mode)
    if choices.keep is not None and 0 < choices.keep <= 1:
        keep = choices.keep
    return mode, keep


@dataclass(frozen=True, slots=True)
class Interrupted:
    """How an answer had ended before it was continued."""

    state: TurnState
    ended: FinishReason | None
    statistics: Statistics | None


@dataclass(eq=False)
class Turn:
    """One question and what became of it."""

    number: int
    question: Question
    state: TurnState = TurnState.RUNNING
    text: str = ""
    thinking: str = ""
    """What the model wrote between its thinking tags."""
    generated_ids: tuple[int, ...] | None = ()
    """None where they are not known for the model that is asked next."""
    ended: FinishReason | None = None
    failure: Failed | None = None
    replaces: Turn | None = None
    """An earlier turn whose place this one takes once it is answered."""
    instead_of: tuple[Turn, ...] = ()
    """The rest of the branch that it leaves: the turn that is edited or answered again, and all
    that follow on it."""
    replaced: bool = False
    system: str = ""
    """The system prompt that it was asked with here."""
    statistics: Statistics | None = None
    """Of the whole answer, in however many parts it was written."""
    guard: str | None = None
    before: Interrupted | None = None
    """Of an answer that is or was continued."""

    @property
    def unfinished(self) -> bool:
        """Whether there is more to come of an answer, if it is continued."""
        cut = self.state is TurnState.STOPPED or self.ended in (
            FinishReason.LENGTH,
            FinishReason.REPEATED,
        )
        return cut and self.counts and bool(self.text or self.thinking)

    @property
    def counts(self) -> bool:
        """Whether later questions are asked with this turn before them. A failed one is left out:
        what made it fail (a prompt too long, say) would make every later one fail too."""
        return self.state in (TurnState.DONE, TurnState.STOPPED) and not self.replaced

    @property
    def messages(self) -> tuple[Message, Message]:
        """Question and answer. An answer that was stopped before its first word is an empty one,
        so that roles keep alternating, as most chat templates demand."""
        answer = Message(
            Role.ASSISTANT, self.text, token_ids=self.generated_ids, thinking=self.thinking
        )
        return self.question.message, answer

    def again(self, mode: Mode, keep: float) -> Question:
        """Its question, to be asked once more. What was foreseen not to fit is tried when it is
        asked in the same way again."""
        question = replace(self.question, mode=mode, keep=keep, despite_memory=False)
        same = question == replace(self.question, despite_memory=False)
        refused = self.failure is not None and self.failure.predicted
        return replace(question, despite_memory=same and refused)

    def whole(self, event: Event) -> Event:
        """An event that was applied, as it stands for the whole answer, which may have been
        continued. What fails then ends as it had ended before."""
        match event:
            case Finished():
                return replace(event, statistics=self.statistics)
            case Failed() if self.state is not TurnState.FAILED:
                ended, ids = self.ended or FinishReason.CANCELLED, self.generated_ids or ()
                return Finished(self.number, ended, self.text, ids, self.statistics)
            case _:
                return event

    def apply(self, event: Event) -> None:
        """Take in an event of this turn."""
        match event:
            case Token():
                self.text += event.text
                self.thinking += event.thinking
                self.generated_ids = (*(self.generated_ids or ()), *event.ids)
            case Planned() if self.before is None:
                self.guard = event.guard
            case Finished():
                cancelled = event.finish_reason in (FinishReason.CANCELLED, FinishReason.MEMORY)
                self.state = TurnState.STOPPED if cancelled else TurnState.DONE
                if event.generated_ids or self.before is None:
                    self.text = event.text
                    self.generated_ids = event.generated_ids
                self.ended = event.finish_reason
                earlier = None if self.before is None else self.before.statistics
                self.statistics = together(earlier, event.statistics)
                if self.replaces is not None and self.replaces.counts:
                    for each in (self,) if cancelled else self.instead_of:
                        each.replaced = True
            case Failed() if self.before is not None:  # what was written before is still there
                self.state, self.ended = self.before.state, self.before.ended
                self.statistics, self.failure = self.before.statistics, event
            case Failed():
                self.state = TurnState.FAILED
                self.failure = event
            case _:
                pass


def together(first: Statistics | None, second: Statistics | None) -> Statistics | None:
    """Of an answer in two parts: how it was read is told by the first, and what was written is
    added up."""
    if first is None or second is None:
        return first or second
    return replace(
        first,
        generated_tokens=first.generated_tokens + second.generated_tokens,
        decode_seconds=first.decode_seconds + second.decode_seconds,
        ttft=first.ttft or second.ttft,
        peak_bytes=max(first.peak_bytes, second.peak_bytes),
        fallback=first.fallback or second.fallback,
    )


@dataclass
class Conversation:
    """All turns so far, and at most one question that waits for its turn."""

    sampling: Sampling = field(default_factory=Sampling)
    """Where nothing else was chosen."""
    turns: list[Turn] = field(default_factory=list)
    queued: Question | None = None
    system: str = ""
    """What its system messages say; imported conversations may have them."""
    choices: Choices = field(default_factory=Choices)
    """What was chosen for this conversation alone."""

    @property
    def system_prompt(self) -> str:
        """What the model is told before everything else."""
        return self.system if self.choices.system is None else self.choices.system

    @property
    def last(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    @property
    def running(self) -> Turn | None:
        last = self.last
        return last if last is not None and last.state is TurnState.RUNNING else None

    @property
    def last_over(self) -> Turn | None:
        """The last turn that does not run any more."""
        over = (turn for turn in reversed(self.turns) if turn.state is not TurnState.RUNNING)
        return next(over, None)

    @property
    def branch(self) -> list[Turn]:
        """What there is to be shown: without the turns whose place another one has taken, or
        takes at present."""
        left = {
            id(each)
            for turn in self.turns
            if turn.instead_of and (turn.state is TurnState.RUNNING or turn.instead_of[0].replaced)
            for each in turn.instead_of
        }
        return [turn for turn in self.turns if id(turn) not in left]

    def before(self, turn: Turn) -> list[Turn]:
        """The turns that the engine sees when it is asked `turn`."""
        first = turn.instead_of[0] if turn.instead_of else turn
        earlier = takewhile(lambda each: each is not first, self.turns)
        return [each for each in earlier if each.counts]

    def asked(self, turn: Turn) -> list[Turn | None]:
        """Of each message that the engine sees when it is asked `turn`: whose question it is."""
        system = [None] if turn.system else []
        earlier = [part for before in self.before(turn) for part in (before, None)]
        return [*system, *earlier, turn]

    def documents(self, turn: Turn) -> list[tuple[Document, ...]]:
        """Of each message that the engine sees when it is asked `turn`."""
        return [holder.question.documents if holder else () for holder in self.asked(turn)]

    def pin(self, turn: Turn, pins: Pins) -> Question:
        """Have the engine read these characters of what it sees in `turn` always. Returns the
        question of `turn`, to be asked again."""
        asked = self.asked(turn)
        for (message, number), ranges in pins.items():
            holder = asked[message]
            if holder is not None:
                documents = list(holder.question.documents)
                documents[number] = replace(documents[number], pinned=ranges)
                holder.question = replace(holder.question, documents=tuple(documents))
        return turn.question

    def begin(
        self,
        question: Question,
        replaces: Turn | None = None,
        number: int | None = None,
        edits: Turn | None = None,
    ) -> tuple[Turn, Ask]:
        """A new turn, and the command that asks the engine. It may fork the conversation: it
        `replaces` an earlier one, and those after it, once it is answered; or it `edits` that
        one's question, and is there instead of them from now on. Turns are counted from 1 unless
        a `number` is given."""
        replaces, edits = _first_try(replaces), _first_try(edits)
        if replaces is not None and replaces is self.last and not replaces.text:
            replaces, edits = None, replaces  # there is no answer to come back to
        turn = Turn(number or len(self.turns) + 1, question, replaces=replaces)
        left = replaces or edits
        if left is not None:
            turn.instead_of = tuple(self.turns[self.turns.index(left) :])
            if replaces is None or not replaces.counts:
                for each in turn.instead_of:
                    each.replaced = True
        earlier = [message for before in self.before(turn) for message in before.messages]
        self.turns.append(turn)
        turn.system = self.system_prompt
        system = [Message(Role.SYSTEM, turn.system)] if turn.system else []
        messages = (*system, *earlier, question.message)
        sampling = chosen_sampling(self.choices, self.sampling)
        ask = Ask(turn.number, messages, question.mode, question.keep, sampling)
        return turn, replace(ask, skip_memory_check=question.despite_memory)

    def resume(self, turn: Turn) -> Ask:
        """Have the last answer, which was cut off or stopped, continued. Raises QuestionError."""
        if not self.branch or turn is not self.branch[-1] or not turn.unfinished:
            raise QuestionError(
                "Only the last answer can be continued, when it was cut off or stopped",
                "ask for more, or answer again with ^A",
            )
        answer, question = turn.messages[1], turn.question
        earlier = [message for before in self.before(turn) for message in before.messages]
        turn.system = self.system_prompt
        system = [Message(Role.SYSTEM, turn.system)] if turn.system else []
        sampling = chosen_sampling(self.choices, self.sampling)
        if turn.ended is FinishReason.REPEATED:
            sampling = replace(sampling, stop_repeats=False)
        mode, keep = question.mode, question.keep
        if turn.statistics is not None:  # where it is not cached, it is read as it was
            sparse = turn.statistics.reading is Reading.SPARSE
            mode, keep = (Mode.SPARSE, turn.statistics.keep_ratio) if sparse else (Mode.FULL, keep)
        turn.before = Interrupted(turn.state, turn.ended, turn.statistics)
        turn.state, turn.ended, turn.failure = TurnState.RUNNING, None, None
        messages = (*system, *earlier, question.message, answer)
        ask = Ask(turn.number, messages, mode, keep, sampling)
        return replace(ask, skip_memory_check=question.despite_memory)

    def find(self, number: int) -> Turn | None:
        return next((turn for turn in reversed(self.turns) if turn.number == number), None)

    def take_queued(self) -> Question | None:
        question, self.queued = self.queued, None
        return question


def _first_try(turn: Turn | None) -> Turn | None:
    """Of one that was asked again in vain: the one that still has the place."""
    if turn is not None and not turn.counts and turn.replaces is not None:
        return turn.replaces
    return turn

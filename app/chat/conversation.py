"""A conversation in memory: its turns, the queued question, and the contents of an `Ask`.

The only place that decides which earlier turns the engine sees. The screen and the command line
both use it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import chain, count, takewhile
from typing import TypeVar

from app.chat.citations import Footnote, footnotes
from app.chat.turn_progress import TurnProgress
from app.chat.versions import Placed, PlacedMessage, place_documents
from app.errors import UserError
from app.ingest.names import tell_apart
from app.protocol.citations import Citations
from app.protocol.commands import Ask
from app.protocol.events import (
    Cited,
    Event,
    Failed,
    Finished,
    Planned,
    Retrieved,
    Retrieving,
    Selected,
    Token,
)
from app.protocol.options import AUTO_KEEP, FROM_MODEL, MODELS_OWN, Mode, Sampling
from app.protocol.prompt import Document, FileChoice, Message, RetrievedPart, Role
from app.protocol.reasons import Reason
from app.protocol.stats import FinishReason, Reading, Statistics, merge_statistics
from app.store.records import Overrides
from app.util import formatting
from app.util.places import gaps

EventT = TypeVar("EventT")
_HAVING_DOCUMENTS = (Planned, Retrieved, Retrieving, Selected, Statistics)
Pins = dict[tuple[int, int], tuple[tuple[int, int], ...]]
"""Characters `(start, end)` by message and document."""


class QuestionError(UserError):
    """The question cannot be sent."""


class TurnState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class TurnPart(StrEnum):
    """The parts of a turn; each may have several versions."""

    QUESTION = "question"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Question:
    """What the user asks, and how the documents are to be read."""

    text: str
    documents: tuple[Document, ...] = ()
    mode: Mode = Mode.AUTO
    keep: float = AUTO_KEEP
    despite_memory: bool = False
    """Try it although it is predicted not to fit."""

    @property
    def message(self) -> Message:
        return Message(Role.USER, self.text, self.documents)

    def check(self) -> None:
        """Raise QuestionError if the text is empty or invalid, or `keep` is out of range."""
        if not self.text.strip():
            raise QuestionError("The question is empty", "type what you want to know")
        if any("\ud800" <= character <= "\udfff" for character in self.text):
            raise QuestionError("The question is not valid UTF-8", "type it again")
        if not 0.0 <= self.keep <= 1.0:
            raise QuestionError(
                f"keep {self.keep:g} is out of range", "use a fraction between 0 and 1"
            )


def _is_possible(sampling: Sampling) -> bool:
    """Whether an answer can be sampled in this way."""
    return (
        sampling.max_tokens >= 1
        and sampling.temperature >= 0
        and 0 < sampling.top_p <= 1
        and sampling.top_k >= 0
        and 0 <= sampling.min_p <= 1
        and 0.5 <= sampling.repetition_penalty <= 2
        and sampling.thinking_budget >= 0
        and (sampling.seed is None or 0 <= sampling.seed < 2**64)
    )


def effective_sampling(overrides: Overrides, default: Sampling) -> Sampling:
    """`default` with the overrides. Invalid ones, from an imported conversation, are ignored."""
    names = [field.name for field in fields(Sampling) if hasattr(overrides, field.name)]
    chosen = {name: value for name in names if (value := getattr(overrides, name)) is not None}
    own = tuple(name for name in FROM_MODEL if chosen.get(name) == MODELS_OWN)
    for name in own:
        del chosen[name]
    sampling = default.with_values(**chosen)
    left = tuple(name for name in FROM_MODEL if name in (*sampling.from_model, *own))
    sampling = replace(sampling, from_model=left)
    return sampling if _is_possible(sampling) else default


def effective_mode(overrides: Overrides, mode: Mode, keep: float) -> tuple[Mode, float]:
    """The same for how documents are read."""
    if overrides.mode in tuple(Mode):
        mode = Mode(overrides.mode)
    if overrides.keep is not None and 0 <= overrides.keep <= 1:
        keep = overrides.keep
    return mode, keep


def file_choice(overrides: Overrides) -> FileChoice:
    return FileChoice(frozenset(overrides.always_read or ()), frozenset(overrides.never_read or ()))


@dataclass(frozen=True, slots=True)
class PreviousEnd:
    """How an answer ended before it was continued."""

    state: TurnState
    ended: FinishReason | None
    statistics: Statistics | None


@dataclass(eq=False)
class Turn:
    """One question and its answer."""

    number: int
    question: Question
    state: TurnState = TurnState.RUNNING
    text: str = ""
    thinking: str = ""
    """What the model wrote between its thinking tags."""
    generated_ids: tuple[int, ...] | None = ()
    """None if they are unknown, or of another model than the one that answers next."""
    ended: FinishReason | None = None
    failure: Failed | None = None
    retry_of: Turn | None = None
    """An earlier turn that this one replaces once it is answered."""
    superseded: tuple[Turn, ...] = ()
    """The turn that is edited or answered again, and all after it."""
    replaced: bool = False
    system: str = ""
    """The system prompt it was asked with."""
    statistics: Statistics | None = None
    """Statistics of the whole answer, including parts from before it was continued."""
    guard: Reason | None = None
    quotes: bool = False
    """Whether the answer is a quotation: the demo target writes nothing else."""
    previous_end: PreviousEnd | None = None
    """Set for an answer that is or was continued."""
    retrieved: tuple[RetrievedPart, ...] | None = None
    """What was put before the model in place of the question's documents, where those of the
    conversation do not all fit."""
    citations: Citations | None = None
    """None if they are unknown, or there are no documents."""
    file_share: float = 1.0
    """The share of their files that the documents are, if some were searched."""
    progress: TurnProgress = field(init=False)
    """How it is read and written."""

    def __post_init__(self) -> None:
        self.progress = TurnProgress(self.question.keep)

    @property
    def can_continue(self) -> bool:
        """Whether the answer was cut off or stopped, so that it can be continued."""
        cut_off = (FinishReason.LENGTH, FinishReason.REPEATED)
        unfinished = self.state is TurnState.STOPPED or self.ended in cut_off
        return unfinished and self.in_context and bool(self.text or self.thinking)

    @property
    def in_context(self) -> bool:
        """Whether later prompts include this turn. A failed one is skipped: its cause, such as a
        prompt that is too long, would make every later one fail, too."""
        return self.state in (TurnState.DONE, TurnState.STOPPED) and not self.replaced

    @property
    def answer(self) -> Message:
        """The answer. It may be empty, so that roles alternate, as most chat templates require."""
        return Message(
            Role.ASSISTANT, self.text, token_ids=self.generated_ids or None, thinking=self.thinking
        )

    @property
    def retrieved_documents(self) -> tuple[Document, ...] | None:
        return None if self.retrieved is None else tuple(part.document for part in self.retrieved)

    def retry_question(self, mode: Mode, keep: float) -> Question:
        """The question for another answer. If it was predicted not to fit and is asked again
        unchanged, it is tried."""
        question = replace(self.question, mode=mode, keep=keep, despite_memory=False)
        same = question == replace(self.question, despite_memory=False)
        refused = self.failure is not None and self.failure.predicted
        return replace(question, despite_memory=same and refused)

    def set_system(self, prompt: str) -> None:
        """Ask with this system prompt. It is the first message of the prompt, so the messages of
        an answer that is continued may get other numbers."""
        by = bool(prompt) - bool(self.system)
        self.system = prompt
        if by and self.citations is not None:
            moved = {each.message: each.message + by for each in self.citations.found}
            self.citations = self.citations.renumbered(moved)
        if by:
            self.progress.renumber(by)

    def start(self, now: float) -> None:
        """It is sent to the engine, at this monotonic time."""
        if self.previous_end is not None:
            self.progress.resume(now)
        else:
            self.progress = TurnProgress(self.question.keep, started_at=now)

    def of_whole_files(self, event: EventT) -> EventT:
        """The event, which counts tokens of documents, with those of the files that were searched
        for them."""
        if self.file_share == 1.0:
            return event
        if isinstance(event, Finished) and event.statistics is not None:
            return replace(event, statistics=self.of_whole_files(event.statistics))
        if not isinstance(event, _HAVING_DOCUMENTS) or event.documents is None:
            return event
        tokens = round(event.documents.tokens / self.file_share)
        return replace(event, documents=replace(event.documents, tokens=tokens))

    def _for_whole_answer(self, event: Event) -> Event:
        """An applied event, extended to the whole of an answer that was continued. If continuing
        fails, the answer ends as it ended before."""
        match event:
            case Finished():
                return replace(event, statistics=self.statistics)
            case Failed() if self.state is not TurnState.FAILED:
                ended, ids = self.ended or FinishReason.CANCELLED, self.generated_ids or ()
                return Finished(self.number, ended, self.text, ids, self.statistics)
            case _:
                return event

    def apply(self, event: Event, now: float = 0.0) -> None:
        """Update the turn by one of its events, at a monotonic time. The only place that does."""
        event = self.of_whole_files(event)
        self._apply(event)
        self.progress.apply(self._for_whole_answer(event), now)

    def _apply(self, event: Event) -> None:
        match event:
            case Token():
                self.text += event.text
                self.thinking += event.thinking
                self.generated_ids = (*(self.generated_ids or ()), *event.ids)
            case Retrieved():
                self.retrieved = event.parts
            case Cited():
                self.citations = event.citations
            case Planned() if self.previous_end is None:
                self.guard = event.guard
            case Finished():
                cancelled = event.finish_reason in (FinishReason.CANCELLED, FinishReason.MEMORY)
                self.state = TurnState.STOPPED if cancelled else TurnState.DONE
                if event.generated_ids or self.previous_end is None:
                    self.text = event.text
                    self.generated_ids = event.generated_ids
                self.ended = event.finish_reason
                earlier = None if self.previous_end is None else self.previous_end.statistics
                self.statistics = merge_statistics(earlier, event.statistics)
                if self.retry_of is not None and self.retry_of.in_context:
                    for each in (self,) if cancelled else self.superseded:
                        each.replaced = True
            case Failed() if self.previous_end is not None:  # the earlier part is still there
                self.state, self.ended = self.previous_end.state, self.previous_end.ended
                self.statistics, self.failure = self.previous_end.statistics, event
            case Failed():
                self.state = TurnState.FAILED
                self.failure = event
            case _:
                pass


@dataclass
class Conversation:
    """All turns, and at most one queued question."""

    sampling: Sampling = field(default_factory=Sampling)
    """The default sampling."""
    turns: list[Turn] = field(default_factory=list)
    queued: Question | None = None
    system: str = ""
    """Text of its system messages, which imported conversations may have."""
    overrides: Overrides = field(default_factory=Overrides)
    """Settings of this conversation only."""

    @property
    def system_prompt(self) -> str:
        """The system prompt of the next question."""
        return self.system if self.overrides.system is None else self.overrides.system

    @property
    def last(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    @property
    def running(self) -> Turn | None:
        last = self.last
        return last if last is not None and last.state is TurnState.RUNNING else None

    @property
    def last_finished(self) -> Turn | None:
        finished = (turn for turn in reversed(self.turns) if turn.state is not TurnState.RUNNING)
        return next(finished, None)

    @property
    def branch(self) -> list[Turn]:
        """The turns to show, without those that another one has replaced or is replacing."""
        hidden = {
            id(each)
            for turn in self.turns
            if turn.superseded and (turn.state is TurnState.RUNNING or turn.superseded[0].replaced)
            for each in turn.superseded
        }
        return [turn for turn in self.turns if id(turn) not in hidden]

    def earlier_turns(self, turn: Turn) -> list[Turn]:
        """The turns before `turn` in its prompt."""
        first = turn.superseded[0] if turn.superseded else turn
        earlier = takewhile(lambda each: each is not first, self.turns)
        return [each for each in earlier if each.in_context]

    def prompt_parts(self, turn: Turn) -> list[tuple[Turn, TurnPart] | None]:
        """The turn and its part that each message of a turn's prompt is; None for the system
        prompt."""
        earlier = [(before, part) for before in self.earlier_turns(turn) for part in TurnPart]
        return [*([None] if turn.system else []), *earlier, (turn, TurnPart.QUESTION)]

    def question_turns(self, turn: Turn) -> list[Turn | None]:
        """The turn whose question is a message, or None, for each message of a turn's prompt."""
        parts = self.prompt_parts(turn)
        return [part[0] if part and part[1] is TurnPart.QUESTION else None for part in parts]

    def documents_by_message(self, turn: Turn) -> list[tuple[Document, ...]]:
        """The documents of each message of a turn's prompt, as the model gets them. Parts that were
        retrieved have the origin and the whole text of their file, if it is known which one that
        is."""
        placed = self._placed(turn)
        files: dict[str, list[Document]] = {}
        for each in (each.document for message in placed for each in message.documents):
            files.setdefault(each.name, []).append(each)

        def in_file(part: Document) -> Document:
            if part.origin is not None:
                return part
            known = files.get(part.name, [])
            found = [(each.origin, _within(each, part)) for each in known]
            here = [(origin, place) for origin, place in found if place is not None]
            origins = {origin for origin, _ in here or found}
            if len(origins) != 1:
                return part
            return replace(part, origin=origins.pop(), within=here[0][1] if here else None)

        return [tuple(map(in_file, _documents(message.in_prompt))) for message in placed]

    def missing(self, turn: Turn) -> str:
        """What could not be read of the documents of a turn's prompt, such as `scan.pdf: 2 of 80
        pages without text`. Empty if that is nothing."""
        return not_read(chain.from_iterable(self.documents_by_message(turn)))

    def attached_documents(self, turn: Turn) -> Iterator[Document]:
        """What was attached to the questions of a turn's prompt, in the newest versions."""
        return (each.document for message in self._placed(turn) for each in message.documents)

    def holder(self, turn: Turn, message: int, number: int) -> tuple[Turn, int, bool]:
        """The turn that brought a document of the prompt of `turn`, the number of the document
        among those of that question, and whether it is among those that were retrieved for it."""
        placed = self._placed(turn)[message]
        found = placed.in_prompt[number]
        holder = self.question_turns(turn)[found.message]
        assert holder is not None
        return holder, found.number, placed.retrieved is not None

    def _placed(self, turn: Turn) -> list[PlacedMessage[Document]]:
        return place_documents(
            [
                ((), None) if each is None else (each.question.documents, each.retrieved_documents)
                for each in self.question_turns(turn)
            ]
        )

    def with_versions(self, question: Question, edit_of: Turn | None = None) -> Question:
        """The question, with each document marked whose file was attached to an earlier one, too:
        it replaces that version, or repeats it. Files of the same name get distinct names."""
        before, known = _original_turn(edit_of), dict[Hashable, Document]()
        for turn in takewhile(lambda each: each is not before, self.turns):
            if turn.in_context:
                known |= _by_file(turn.question.documents)
        question = replace(question, documents=tell_apart(question.documents, known.values()))

        def version(key: Hashable, document: Document) -> Document:
            old = known.get(key)
            same = old is not None and old.text == document.text
            pinned = old.pinned if old is not None and same else document.pinned
            return replace(document, replaces=old, pinned=document.pinned or pinned)

        keys = {id(each): key for key, each in _by_file(question.documents).items()}
        documents = tuple(
            version(keys[id(each)], each) if each.origin else each for each in question.documents
        )
        return replace(question, documents=documents)

    def footnotes(self, turn: Turn) -> list[Footnote]:
        """The footnotes of a turn's answer."""
        return footnotes(turn.citations, self.documents_by_message(turn))

    def pin(self, turn: Turn, pins: Pins) -> Question:
        """Pin these characters in the prompt of `turn`. Returns its question."""
        for place, ranges in pins.items():
            holder, number, is_retrieved = self.holder(turn, *place)
            if is_retrieved and holder.retrieved is not None:
                parts = list(holder.retrieved)
                pinned = replace(parts[number].document, pinned=ranges)
                parts[number] = replace(parts[number], document=pinned)
                holder.retrieved = tuple(parts)
            else:
                documents = list(holder.question.documents)
                documents[number] = replace(documents[number], pinned=ranges)
                holder.question = replace(holder.question, documents=tuple(documents))
        return turn.question

    def start_turn(
        self,
        question: Question,
        retry_of: Turn | None = None,
        number: int | None = None,
        edit_of: Turn | None = None,
        choose_files: bool = False,
    ) -> tuple[Turn, Ask]:
        """A new turn, and the command for the engine. It may fork the conversation: as `retry_of`
        a turn, it replaces that one and those after it once it is answered, and reads what was
        retrieved for it, unless it is to `choose_files` again; as `edit_of` one, it replaces them
        at once. Turns are counted from 1, unless a `number` is given."""
        again = retry_of
        retry_of, edit_of = _original_turn(retry_of), _original_turn(edit_of)
        if retry_of is not None and retry_of is self.last and not retry_of.text:
            retry_of, edit_of = None, retry_of  # there is no answer to return to
        turn = Turn(number or len(self.turns) + 1, question, retry_of=retry_of)
        if again is not None and not choose_files:
            turn.retrieved = again.retrieved
        left = retry_of or edit_of
        if left is not None:
            turn.superseded = tuple(self.turns[self.turns.index(left) :])
            if retry_of is None or not retry_of.in_context:
                for each in turn.superseded:
                    each.replaced = True
        self.turns.append(turn)
        return turn, self._command(turn)

    def resume(self, turn: Turn) -> Ask:
        """The command to continue the last answer, if it was cut off or stopped. Raises
        QuestionError."""
        if not self.branch or turn is not self.branch[-1] or not turn.can_continue:
            raise QuestionError(
                "Only the last answer can be continued, when it was cut off or stopped",
                "ask for more, or answer again with ^A",
            )
        ask = self._command(turn)
        ask = replace(ask, messages=(*ask.messages, turn.answer))
        if turn.ended is FinishReason.REPEATED:
            ask = replace(ask, sampling=replace(ask.sampling, stop_repeats=False))
        if (statistics := turn.statistics) is not None:  # if it is not cached, read it as before
            if statistics.reading is Reading.SPARSE:
                ask = replace(ask, mode=Mode.SPARSE, keep_ratio=statistics.keep_ratio)
            else:
                ask = replace(ask, mode=Mode.FULL)
        turn.previous_end = PreviousEnd(turn.state, turn.ended, statistics)
        turn.state, turn.ended, turn.failure = TurnState.RUNNING, None, None
        return ask

    def _command(self, turn: Turn) -> Ask:
        """The command that asks the question of `turn`, with the current system prompt."""
        turn.set_system(self.system_prompt)
        turn.file_share = _file_share(self.attached_documents(turn))
        question = turn.question
        system = [Message(Role.SYSTEM, turn.system)] if turn.system else []
        *asked, last = self._asked(turn)
        earlier = zip(asked, self.earlier_turns(turn), strict=True)
        return Ask(
            (*system, *(each for ask, before in earlier for each in (ask, before.answer)), last),
            question.mode,
            question.keep,
            effective_sampling(self.overrides, self.sampling),
            skip_memory_check=question.despite_memory,
            files=file_choice(self.overrides),
        )

    def _asked(self, turn: Turn) -> Iterator[Message]:
        """The questions of a turn's prompt, with their documents."""
        for holder, placed in zip(self.question_turns(turn), self._placed(turn), strict=True):
            if holder is not None:
                retrieved = None if placed.retrieved is None else _documents(placed.retrieved)
                message = holder.question.message
                documents = _documents(placed.documents)
                yield replace(message, documents=documents, retrieved=retrieved)

    def find(self, number: int) -> Turn | None:
        return next((turn for turn in reversed(self.turns) if turn.number == number), None)

    def pop_queued(self) -> Question | None:
        question, self.queued = self.queued, None
        return question


def _file_share(documents: Iterable[Document]) -> float:
    """The share that documents are of the files that they are from, by size."""
    found = whole = 0
    searched: dict[str, int] = {}
    for each in documents:
        if each.is_searched and each.origin is not None:
            found += len(each.text)
            searched[each.origin.path] = each.origin.size
        else:
            whole += len(each.text)
    return (whole + found) / (whole + max(found, sum(searched.values()))) if searched else 1.0


def _documents(placed: Iterable[Placed[Document]]) -> tuple[Document, ...]:
    return tuple(each.document for each in placed)


def _by_file(documents: Iterable[Document]) -> dict[Hashable, Document]:
    """Documents by their file, the part of it, and the number among the texts of that part."""
    found: dict[Hashable, Document] = {}
    for each in documents:
        if each.origin is not None:
            part = each.origin.path, each.origin.part
            number = next(n for n in count() if (*part, n) not in found)
            found[*part, number] = each
    return found


def not_read(documents: Iterable[Document]) -> str:
    """See `Conversation.missing`."""
    documents = [*documents]
    found = {
        document.name: ", ".join(missing)
        for document in documents
        if (missing := [*gaps((document.within or (document.text,))[0], document.name)])
    }
    for each in documents:
        if each.is_searched and each.origin is not None:
            found[each.name] = f"only lines chosen from {formatting.size(each.origin.size)}"
    if len(found) > 1:
        return f"{len(found):,} documents with parts that could not be read"
    return "".join(f"{name}: {missing}" for name, missing in found.items())


def _within(whole: Document, part: Document) -> tuple[str, int] | None:
    """The text that a retrieved part is from, and its offset there; None if it is from another
    one."""
    start = whole.text.find(part.text)
    while start >= 0 and whole.line + whole.text.count("\n", 0, start) != part.line:
        start = whole.text.find(part.text, start + 1)
    return (whole.text, start) if start >= 0 else None


def _original_turn(turn: Turn | None) -> Turn | None:
    """The turn itself, or if it is a failed retry, the turn that it did not replace."""
    if turn is not None and not turn.in_context and turn.retry_of is not None:
        return turn.retry_of
    return turn

"""A turn of a stored conversation: committed, asked, streamed into the store, its run recorded.

This knows no engine. It gives the command to send and takes in the events that come back, so that
the screen and the command line both stand on it. Opening and asking wait for the disk, so that a
screen does them on a thread; applying an event does not.
"""

from __future__ import annotations

import io
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from app.chat.conversation import Conversation, Question, QuestionError, Turn, TurnState
from app.chat.pairs import Models
from app.chat.retold import NEVER_ANSWERED, retold
from app.engine.messages import (
    Ask,
    Document,
    Event,
    Failed,
    FellBack,
    Finished,
    ImportanceMap,
    Mode,
    Planned,
    Reading,
    Sampling,
    Selected,
    Statistics,
    Token,
)
from app.sessions import records
from app.sessions.database import StoreError
from app.sessions.replies import Reply
from app.sessions.store import Store

_STATES = {
    records.State.DONE: TurnState.DONE,
    records.State.PARTIAL: TurnState.RUNNING,
    records.State.STOPPED: TurnState.STOPPED,
    records.State.FAILED: TurnState.FAILED,
}


class KeptTurn:
    """One answer on its way from the engine into the store. Send `command`, then `apply` every
    event of the turn; what the user sees may come from `turn`."""

    def __init__(
        self,
        conversation: int,
        turn: Turn,
        command: Ask,
        ids: list[int],
        back_to: int | None,
        reply: Reply,
        models: Models,
    ) -> None:
        """`ids` are those of the command's messages, `back_to` is the end of the branch to which a
        second answer returns when it does not get there."""
        self.conversation, self.turn, self.command = conversation, turn, command
        self.saved: Future[None] | None = None
        """Once the last event was applied: there when everything is on the disk. It may be a
        StoreError; then `save` tries again, and the end of the store does too."""
        self._ids, self._back_to, self._reply, self._models = ids, back_to, reply, models
        self._end: partial[Future[None]] | None = None
        self._guard: str | None = None
        self._importance: tuple[float, ...] = ()
        self._selected: Selected | None = None

    @property
    def problem(self) -> StoreError | None:
        """Why what has been written so far cannot be kept at present; it is tried all the time."""
        return self._reply.problem

    def apply(self, event: Event) -> None:
        """Take in an event of this turn. Never waits: what is written goes to the disk within a
        second, and of the end `saved` tells."""
        self.turn.apply(event)
        match event:
            case Planned():
                self._guard = event.guard
            case ImportanceMap():
                self._importance = event.buckets
            case Selected():
                self._selected = event
            case FellBack():
                self._selected = None
            case Token():
                self._reply.append(event.text, event.ids, event.thinking)
            case Finished():
                stopped = self.turn.state is TurnState.STOPPED
                state = records.State.STOPPED if stopped else records.State.DONE
                run, read_map = self._record(event.statistics)
                self._end = partial(self._reply.end, state, run, read_map)
                self.save()
            case Failed():
                failed = records.State.FAILED
                self._end = partial(self._reply.end, failed, failure=event.sentence)
                self.save()

    def save(self) -> None:
        """Begin to keep the end, again."""
        if self._end is not None:
            gets_there = self.turn.replaces is None or not self.turn.replaces.counts
            self.saved = self._end(back_to=None if gets_there else self._back_to)

    def wait(self) -> None:
        """Return when the end, if that was applied, is on the disk. Raises StoreError."""
        if self.saved is not None:
            self.saved.result()

    def _record(
        self, statistics: Statistics | None
    ) -> tuple[records.Run | None, records.ReadMap | None]:
        if statistics is None:
            return None, None
        return self._run(statistics), self._read_map(statistics)

    def _run(self, statistics: Statistics) -> records.Run:
        return records.Run(
            mode=str(statistics.mode),
            reading=str(statistics.reading),
            keep=statistics.keep,
            reason=statistics.reason,
            prompt_tokens=statistics.prompt_tokens,
            eligible_tokens=statistics.eligible_tokens,
            kept_tokens=statistics.kept_tokens,
            reused_tokens=statistics.reused_tokens,
            recalled_tokens=statistics.recalled_tokens,
            generated_tokens=statistics.generated_tokens,
            seed=statistics.seed,
            ttft=statistics.ttft,
            phases=tuple((str(part.phase), part.seconds) for part in statistics.phases),
            decode_seconds=statistics.decode_seconds,
            peak_bytes=statistics.peak_bytes,
            target=self._models.target,
            target_revision=self._models.target_revision,
            draft=self._models.draft,
            draft_revision=self._models.draft_revision,
            fallback=statistics.fallback,
            guard=self._guard,
        )

    def _read_map(self, statistics: Statistics) -> records.ReadMap | None:
        """Without spans where everything was read; None where nothing was selected yet."""
        importance = records.quantise(self._importance)
        if statistics.reading is Reading.DENSE:
            return records.ReadMap(importance=importance)
        if self._selected is None:
            return None
        return records.ReadMap(
            tuple(
                records.Span(span.start, span.end, str(span.reason), span.score)
                for span in self._selected.spans
            ),
            tuple(
                records.SpanText(
                    text.span, self._ids[text.message], text.document, text.start, text.end
                )
                for text in self._selected.texts
            ),
            importance,
        )


class KeptConversation:
    """The current branch of a stored conversation: to be shown, and to go on with.

    `conversation` has its turns, numbered by the ids of their answers, or of the question where no
    answer was begun. It grows as questions are asked here. When the branch changes otherwise (an
    edit, a switch), open it again.
    """

    def __init__(self, store: Store, id: int | None, models: Models, sampling: Sampling) -> None:
        """Without an `id` a new one, which is kept with its first question. Raises StoreError."""
        self.id = id
        self.conversation = Conversation(sampling)
        self._store, self._models = store, models
        self._questions: dict[int, int] = {}
        self._runs: dict[int, records.Run | None] = {}
        self._system: int | None = None
        self._lost: StoreError | None = None
        if id is not None:
            self._read(store.branch(id))

    def question(self, turn: Turn) -> int:
        """The id of the message that asks a turn: what `Store.edit` and `Store.versions` take."""
        return self._questions[turn.number]

    def retold(self, turn: Turn) -> tuple[Event, ...]:
        """What the engine said of a turn that was over when this was opened. Raises StoreError."""
        places = {
            self._questions[asked.number]: place
            for place, asked in enumerate(self.conversation.asked(turn))
            if asked is not None
        }
        run = self._runs.get(turn.number)
        read_map = None if run is None else self._store.read_map(turn.number)
        return retold(turn, run, read_map, places)

    def ask(self, question: Question) -> KeptTurn:
        """Commit a question and begin its answer. What cannot be asked, or not with what was said
        before, is not kept: raises QuestionError or StoreError."""
        question.check()
        attachments = [_attach(self._store, document) for document in question.documents]
        self.check_documents()
        if self.id is None:
            self.id = self._store.create().id
        role = records.Role.USER
        asked = self._store.add_message(self.id, role, question.text, attachments)
        return self._begin(asked.id, question, None)

    def ask_again(self, mode: Mode, keep: float) -> KeptTurn:
        """Begin another answer to the last question. It takes the place of the one before once it
        is complete. Raises QuestionError or StoreError."""
        self.check_documents()
        last = self.conversation.last
        if last is None:
            raise QuestionError("There is no question to be asked again", "ask one")
        question = replace(last.question, mode=mode, keep=keep)
        question.check()
        return self._begin(self._questions[last.number], question, last)

    def _begin(self, asked: int, question: Question, replaces: Turn | None) -> KeptTurn:
        reply = self._store.begin_reply(asked)
        # Ids of messages are unique, so that turns of several conversations can share an engine.
        turn, command = self.conversation.begin(question, replaces, reply.message)
        self._questions[turn.number] = asked
        ids = [] if self._system is None else [self._system]
        for before in self.conversation.before(turn):
            ids += [self._questions[before.number], before.number]
        assert self.id is not None
        return KeptTurn(
            self.id,
            turn,
            replace(command, conversation=str(self.id)),
            [*ids, asked],
            None if turn.replaces is None else turn.replaces.number,
            reply,
            self._models,
        )

    def _read(self, messages: tuple[records.Message, ...]) -> None:
        """System messages come first, wherever they stood: most templates take no other. An answer
        without a question before it is left out, and a question without an answer (the program
        ended there) is a failed turn."""
        system = [m for m in messages if m.role is records.Role.SYSTEM]
        self.conversation.system = "\n\n".join(message.text for message in system)
        self._system = system[0].id if self.conversation.system else None
        for message, after in zip(messages, [*messages[1:], None], strict=False):
            if message.role is not records.Role.USER:
                continue
            question = Question(message.text, self._documents(message))
            if after is None or after.role is not records.Role.ASSISTANT:
                turn = Turn(message.id, question, TurnState.FAILED)
                turn.failure = Failed(turn.number, *NEVER_ANSWERED)
            else:
                turn = _answered(after, question, self._models)
                self._runs[turn.number] = after.run
            self._questions[turn.number] = message.id
            self.conversation.turns.append(turn)

    def _documents(self, message: records.Message) -> tuple[Document, ...]:
        documents = []
        for attachment in message.attachments:
            try:
                text = self._store.text(attachment)
            except StoreError as error:  # what was said can be shown without it
                self._lost, text = error, ""
            documents.append(Document(attachment.name, text))
        return tuple(documents)

    def check_documents(self) -> None:
        """Raise StoreError for one that is lost and was not attached again."""
        if self._lost is None or self.id is None:
            return
        again = KeptConversation(self._store, self.id, self._models, self.conversation.sampling)
        self.conversation.turns, self._lost = again.conversation.turns, again._lost
        if self._lost is not None:
            raise self._lost


def ask(
    store: Store,
    conversation: int | None,
    question: Question,
    models: Models,
    sampling: Sampling,
) -> KeptTurn:
    """Ask one question, of a new conversation without an id, as `KeptConversation.ask` does."""
    return KeptConversation(store, conversation, models, sampling).ask(question)


def _attach(store: Store, document: Document) -> records.Attachment:
    try:
        data = document.text.encode()
    except UnicodeEncodeError:
        raise QuestionError(
            f"The document '{document.name}' is not valid Unicode", "attach it as a file"
        ) from None
    return store.attach(document.name, io.BytesIO(data))


def _answered(answer: records.Message, question: Question, models: Models) -> Turn:
    turn = Turn(answer.id, question, _STATES[answer.state], answer.text, answer.thinking)
    turn.generated_ids = _token_ids(answer, models)
    if answer.failure is not None:
        problem, _, advice = answer.failure.removesuffix(".").rpartition(": ")
        turn.failure = Failed(answer.id, problem, advice)
    return turn


def _token_ids(answer: records.Message, models: Models) -> tuple[int, ...] | None:
    """The ids that were generated, if it was this target that did. Of an answer that the end of
    the program cut off, nobody knows."""
    if answer.run is None or answer.run.target_revision != models.target_revision:
        return None
    return answer.token_ids

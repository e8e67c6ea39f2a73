"""A turn of a stored conversation: committed, asked, streamed into the store, its run recorded.

This knows no engine. It gives the command to send and takes in the events that come back, so that
the screen and the command line both stand on it.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from itertools import pairwise

from app.chat.conversation import Conversation, Question, QuestionError, Turn, TurnState
from app.chat.pairs import Models
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
from app.sessions.replies import Reply
from app.sessions.store import Store

_STATES = {
    records.State.DONE: TurnState.DONE,
    records.State.PARTIAL: TurnState.RUNNING,
    records.State.STOPPED: TurnState.STOPPED,
    records.State.FAILED: TurnState.FAILED,
}


@dataclass(frozen=True, slots=True)
class _Branch:
    """The current branch before a turn: as messages, and as turns that are numbered by the ids of
    their answers."""

    messages: tuple[records.Message, ...]
    so_far: Conversation

    def ids(self, turn: Turn) -> list[int]:
        """Of the messages that the engine sees before `turn`'s question, in their order."""
        questions = {answer.id: question.id for question, answer in pairwise(self.messages)}
        answers = [before.number for before in self.so_far.before(turn)]
        return [id for answer in answers for id in (questions[answer], answer)]


class KeptTurn:
    """One answer on its way from the engine into the store. Send `command`, then `apply` every
    event of the turn; what the user sees may come from `turn`."""

    def __init__(
        self,
        store: Store,
        branch: _Branch,
        message: records.Message,
        question: Question,
        models: Models,
        replaces: Turn | None = None,
    ) -> None:
        """Begins the answer to `question`, kept as `message`. Raises StoreError."""
        self.conversation = message.conversation
        self._store, self._branch, self._models = store, branch, models
        self._reply: Reply = store.begin_reply(message.id)
        # Ids of messages are unique, so that turns of several conversations can share an engine.
        self.turn, command = branch.so_far.begin(question, replaces, self._reply.message)
        self.command: Ask = replace(command, conversation=str(message.conversation))
        self._ids = [*branch.ids(self.turn), message.id]
        self._guard: str | None = None
        self._importance: tuple[float, ...] = ()
        self._selected: Selected | None = None

    def apply(self, event: Event) -> None:
        """Take in an event of this turn. The last one returns when everything is on the disk; it
        raises StoreError when that cannot be."""
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
                self._reply.append(event.text, event.ids)
            case Finished():
                stopped = self.turn.state is TurnState.STOPPED
                end = self._reply.stop if stopped else self._reply.finish
                end(*self._record(event.statistics))
                self._go_back()
            case Failed():
                self._reply.fail(event.sentence)
                self._go_back()

    def _go_back(self) -> None:
        """To the answer that was to be replaced, if this one did not get there."""
        if self.turn.replaces is not None and self.turn.replaces.counts:
            self._store.switch(self._branch.messages[-1].id)

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


def ask(
    store: Store,
    conversation: int | None,
    question: Question,
    models: Models,
    sampling: Sampling,
) -> KeptTurn:
    """Commit a question, to a new conversation without an id, and begin its answer. What cannot be
    asked, or not with what was said before, is not kept: raises QuestionError or StoreError."""
    question.check()
    attachments = [_attach(store, document) for document in question.documents]
    branch = _branch(store, conversation, models, sampling)
    id = store.create().id if conversation is None else conversation
    message = store.add_message(id, records.Role.USER, question.text, attachments)
    return KeptTurn(store, branch, message, question, models)


def ask_again(
    store: Store,
    conversation: int,
    models: Models,
    sampling: Sampling,
    mode: Mode,
    keep: float,
) -> KeptTurn:
    """Begin another answer to the last question of the current branch. It takes the place of the
    one before once it is complete. Raises QuestionError or StoreError."""
    branch = _branch(store, conversation, models, sampling)
    last = branch.so_far.last
    if last is None:
        raise QuestionError("There is no question to be asked again", "ask one")
    question = replace(last.question, mode=mode, keep=keep)
    question.check()
    message = next(m for m in reversed(branch.messages) if m.role is records.Role.USER)
    return KeptTurn(store, branch, message, question, models, last)


def _attach(store: Store, document: Document) -> records.Attachment:
    try:
        data = document.text.encode()
    except UnicodeEncodeError:
        raise QuestionError(
            f"The document '{document.name}' is not valid Unicode", "attach it as a file"
        ) from None
    return store.attach(document.name, io.BytesIO(data))


def _branch(store: Store, conversation: int | None, models: Models, sampling: Sampling) -> _Branch:
    """A question without an answer (the program ended there) is a failed turn."""
    messages = () if conversation is None else store.branch(conversation)
    turns = []
    for message, after in zip(messages, [*messages[1:], None], strict=False):
        if message.role is not records.Role.USER:
            continue
        documents = tuple(Document(a.name, store.text(a)) for a in message.attachments)
        question = Question(message.text, documents)
        if after is None or after.role is not records.Role.ASSISTANT:
            turns.append(Turn(message.id, question, TurnState.FAILED))
        else:
            ids = _token_ids(after, models)
            turns.append(Turn(after.id, question, _STATES[after.state], after.text, ids))
    return _Branch(messages, Conversation(sampling, turns))


def _token_ids(answer: records.Message, models: Models) -> tuple[int, ...] | None:
    """The ids that were generated, if it was this target that did. Of an answer that the end of
    the program cut off, nobody knows."""
    if answer.run is None or answer.run.target_revision != models.target_revision:
        return None
    return answer.token_ids

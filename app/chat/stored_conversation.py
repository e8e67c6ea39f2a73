"""A stored conversation: its current branch, to show and to continue, its other branches, and the
turn whose answer is streamed into the store.

It does not know the engine: it returns the command to send, and is updated by the events that come
back. The screen and the command line both use it. Opening and asking wait for the disk, so the
screen does that on a thread; applying an event never waits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from app.chat.conversation import (
    Conversation,
    Pins,
    Question,
    QuestionError,
    Turn,
    TurnPart,
    TurnState,
)
from app.chat.model_pairs import ModelPair
from app.chat.turn_progress import TurnProgress
from app.chat.versions import version_key
from app.protocol.commands import Ask
from app.protocol.events import (
    Event,
    Failed,
    Finished,
    Retrieved,
    Token,
)
from app.protocol.options import DEMO_MODEL, Mode, Sampling
from app.protocol.prompt import Document, RetrievedPart, Role
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import FinishReason, Reading, Statistics
from app.store import records
from app.store.records import StoreError, encode

if TYPE_CHECKING:
    from app.store.reply_writer import ReplyWriter
    from app.store.store import Store


class StoredTurn:
    """An answer that is streamed from the engine into the store. Send `command`, then `apply` every
    event of the turn. `turn` is what the user sees."""

    def __init__(
        self,
        conversation: int,
        turn: Turn,
        command: Ask,
        message_ids: list[int],
        revert_to: int | None,
        reply: ReplyWriter,
        models: ModelPair,
    ) -> None:
        """`message_ids` are those of the command's messages. `revert_to` is the last message of the
        branch that becomes current again if this answer, a second one, is not completed."""
        self.conversation, self.turn, self.command = conversation, turn, command
        self.saved: Future[None] | None = None
        """Set with the last event, and done when everything is on the disk. If it is a StoreError,
        `save` tries again, and so does closing the store."""
        self._message_ids, self._revert_to, self._reply, self._models = (
            message_ids,
            revert_to,
            reply,
            models,
        )
        self._end: records.ReplyEnd | None = None

    @property
    def problem(self) -> StoreError | None:
        """Why the answer cannot be saved at present; it is tried again and again."""
        return self._reply.problem

    def apply(self, event: Event, now: float = 0.0) -> None:
        """Update by an event of this turn. Never waits: text is on the disk within a second, and
        `saved` reports the end."""
        self.turn.apply(event, now)
        match event:
            case Retrieved():
                self._reply.retrieve(event.parts)
            case Token():
                self._reply.append(event.text, event.ids, event.thinking)
            case Finished():
                self._record_end()
            case Failed() if self.turn.state is not TurnState.FAILED:
                self._record_end()
            case Failed():
                self._end = records.ReplyEnd(records.State.FAILED, failure=event.failure)
                self.save()

    def _record_end(self) -> None:
        turn = self.turn
        repeated = turn.ended is FinishReason.REPEATED
        stopped = turn.state is TurnState.STOPPED or repeated
        state = records.State.STOPPED if stopped else records.State.DONE
        stats, read_map = self._record(turn.statistics)
        truncated = repeated or turn.ended is FinishReason.LENGTH
        citations = turn.citations and turn.citations.renumbered(dict(enumerate(self._message_ids)))
        self._end = records.ReplyEnd(
            state, stats, read_map, truncated=truncated, citations=citations
        )
        self.save()

    def save(self) -> None:
        """Save the end, again if that failed before."""
        if self._end is not None:
            completes = self.turn.retry_of is None or not self.turn.retry_of.in_context
            self.saved = self._reply.end(self._end, None if completes else self._revert_to)

    def wait(self) -> None:
        """Wait until the end, if there was one, is on the disk. Raises StoreError."""
        if self.saved is not None:
            self.saved.result()

    def _record(
        self, statistics: Statistics | None
    ) -> tuple[records.AnswerStats | None, records.ReadMap | None]:
        if statistics is None:
            return None, None
        before = self.turn.previous_end
        was_read = before is not None and before.statistics is not None
        return self._answer_stats(statistics), None if was_read else self._read_map(statistics)

    def _answer_stats(self, statistics: Statistics) -> records.AnswerStats:
        known = {field.name: getattr(statistics, field.name) for field in fields(Statistics)}
        return records.AnswerStats(
            **known,
            target=self._models.target,
            target_revision=self._models.target_revision,
            draft=self._models.draft,
            draft_revision=self._models.draft_revision,
            guard=self.turn.guard,
        )

    def _read_map(self, statistics: Statistics) -> records.ReadMap | None:
        """None if nothing was selected yet. After a dense read there are no spans, or those that
        keep would have selected."""
        progress = self.turn.progress
        buckets = () if progress.importance is None else progress.importance.buckets
        importance = records.quantise(buckets)
        selected = None if progress.fallback is not None else progress.selected
        if selected is None:
            dense = statistics.reading is Reading.DENSE
            return records.ReadMap(importance=importance) if dense else None
        texts = tuple(
            replace(text, message=self._message_ids[text.message]) for text in selected.texts
        )
        return records.ReadMap(selected.spans, texts, importance)


_STATES = {
    records.State.DONE: TurnState.DONE,
    records.State.PARTIAL: TurnState.RUNNING,
    records.State.STOPPED: TurnState.STOPPED,
    records.State.FAILED: TurnState.FAILED,
}


class StoredConversation:
    """The current branch of a stored conversation.

    `conversation` has its turns, numbered by the ids of their answers, or of the question if there
    is no answer. It is loaded again when another branch becomes the current one.
    """

    def __init__(
        self, store: Store | None, id: int | None, models: ModelPair, sampling: Sampling
    ) -> None:
        """Without an `id` a new one, which is stored with its first question. Without a `store`,
        one in which nothing can be asked. Raises StoreError."""
        self.id = id
        self.conversation = Conversation(sampling)
        self._optional_store, self._models = store, models
        self._question_ids: dict[int, int] = {}
        self._forks: dict[int, tuple[int, ...]] = {}
        self._turns: dict[int, Turn] = {}
        self._stats: dict[int, records.AnswerStats | None] = {}
        self._missing_document: StoreError | None = None
        if id is not None:
            self.conversation.overrides = self._store.conversation(id).overrides
            self._reload()

    @property
    def _store(self) -> Store:
        if self._optional_store is None:
            raise StoreError(
                "There is no folder for this conversation",
                "free some disk space and start specchat again",
            )
        return self._optional_store

    @property
    def name(self) -> str:
        """The engine's name for its cache of the conversation."""
        return str(self.id)

    def question_id(self, turn: Turn) -> int:
        """The id of the message that asks a turn: what `Store.edit` takes."""
        return self._question_ids[turn.number]

    def load_progress(self) -> None:
        """Load how the turns were read that had finished when this was opened. Raises
        StoreError."""
        for turn in self.conversation.turns:
            if turn.progress.started_at is None:
                turn.progress = self._stored_progress(turn)

    def _stored_progress(self, turn: Turn) -> TurnProgress:
        if turn.state is TurnState.RUNNING:  # another process is writing it, or has just ended
            turn.state = TurnState.STOPPED
        positions = {
            self._question_ids[asked.number]: position
            for position, asked in enumerate(self.conversation.question_turns(turn))
            if asked is not None
        }
        stats = self._stats.get(turn.number)
        read_map = None if stats is None else self._store.read_map(turn.number)
        ended = turn.ended or FinishReason.STOP
        if turn.state is TurnState.STOPPED:
            ended = FinishReason.CANCELLED
        return TurnProgress.stored(
            turn.question.keep,
            None if turn.state is TurnState.FAILED else ended,
            bool(turn.text or turn.generated_ids),
            stats,
            read_map,
            positions,
        )

    def set_models(self, models: ModelPair) -> None:
        """Use other models from now on."""
        changed = models.target_revision != self._models.target_revision
        self._models = models
        for turn in self._turns.values() if changed else ():
            turn.generated_ids = None
            with suppress(StoreError):
                turn.generated_ids = _token_ids(self._store.message(turn.number), models)

    def ask(self, question: Question, edit_of: Turn | None = None) -> StoredTurn:
        """Commit a question and start its answer. As `edit_of` a turn, it starts another branch. A
        question that cannot be asked is not stored: raises QuestionError or StoreError."""
        question.check()
        question = self.conversation.with_versions(question, edit_of)
        attachments = _attach(self._store, question.documents)
        self.check_documents()
        if self.id is None:
            overrides = self.conversation.overrides
            asked = self._store.begin(question.text, attachments, overrides)
            self.id = asked.conversation
        elif edit_of is None:
            asked = self._store.add_message(self.id, Role.USER, question.text, attachments)
        else:
            asked = self._store.edit(self._question_ids[edit_of.number], question.text, attachments)
        return self._start_turn(asked.id, question, edit_of=edit_of)

    def ask_again(
        self,
        mode: Mode,
        keep: float,
        turn: Turn | None = None,
        pins: Pins | None = None,
        choose_files: bool = False,
    ) -> StoredTurn:
        """Start another answer to the question of `turn`, or the last one, with `pins` that are
        always read. What was retrieved for it stays, unless it is to `choose_files` again. Once
        complete, it replaces the earlier answer and all after it. Raises QuestionError or
        StoreError."""
        self.check_documents()
        again = turn or self.conversation.last
        if again is None:
            raise QuestionError("There is no question to ask again", "ask one")
        if pins:
            self._pin(again, pins)
        question = again.retry_question(mode, keep)
        question.check()
        asked = self._question_ids[again.number]
        return self._start_turn(asked, question, again, choose_files=choose_files)

    def resume(self, turn: Turn) -> StoredTurn:
        """Start to continue the last answer. Raises QuestionError or StoreError."""
        self.check_documents()
        known = turn.generated_ids is not None
        command = self.conversation.resume(turn)
        try:
            reply = self._store.continue_reply(turn.number, known)
        except StoreError:
            assert turn.previous_end is not None
            turn.state, turn.ended = turn.previous_end.state, turn.previous_end.ended
            raise
        return self._stored_turn(turn, command, None, reply)

    def _message_ids(self, turn: Turn) -> list[int]:
        """The ids of the messages of a turn's prompt; 0 for the system prompt."""
        parts = self.conversation.prompt_parts(turn)
        return [0 if part is None else self._message_id(*part) for part in parts]

    def _pin(self, turn: Turn, pins: Pins) -> None:
        by_message: dict[int, dict[int, tuple[tuple[int, int], ...]]] = {}
        for place, ranges in pins.items():
            holder, number, is_retrieved = self.conversation.holder(turn, *place)
            # What was retrieved for a question is attached to its answer.
            id = holder.number if is_retrieved else self._question_ids[holder.number]
            by_message.setdefault(id, {})[number] = ranges
        for id, pinned in by_message.items():
            self._store.pin_passages(id, pinned)
        self.conversation.pin(turn, pins)
        documents = {
            self._question_ids[holder.number]: holder.question.documents
            for holder in (self.conversation.holder(turn, *place)[0] for place in pins)
        }
        for known in self._turns.values():  # other answers to these questions
            if (same := documents.get(self._question_ids[known.number])) is not None:
                known.question = replace(known.question, documents=same)

    def set_overrides(self, overrides: records.Overrides) -> None:
        """Settings of this conversation, from the next question on. Raises StoreError."""
        if self.id is not None:
            self._store.set_overrides(self.id, overrides)
        self.conversation.overrides = overrides

    def version_of(self, turn: Turn, part: TurnPart) -> tuple[int, int]:
        """The number of this version, from 1, and the number of versions."""
        versions = self._versions(turn, part)
        return versions.index(self._message_id(turn, part)) + 1, len(versions)

    def step_version(self, turn: Turn, part: TurnPart, by: int) -> None:
        """Switch to the branch of another version, `by` versions further."""
        versions = self._versions(turn, part)
        index = versions.index(self._message_id(turn, part)) + by
        if 0 <= index < len(versions):
            self._set_branch(versions[index])

    def show_message(self, message: int) -> None:
        """Switch to the newest branch through this message, unless the current one has it."""
        if self.find(message) is None:
            self._set_branch(message)

    def find(self, message: int) -> tuple[Turn, TurnPart] | None:
        """The turn of the current branch, and its part, that a message is."""
        stored = [turn for turn in self.conversation.branch if turn.number in self._question_ids]
        for turn in stored:
            for part in TurnPart:
                if self._message_id(turn, part) == message:
                    return turn, part
        return None

    def delete(self, turn: Turn, part: TurnPart) -> records.DeletedMessages:
        """Delete an answer, or a question with its answers, and everything after it. An only answer
        is deleted with its question."""
        if len(self._versions(turn, TurnPart.ANSWER)) < 2:
            part = TurnPart.QUESTION
        removed = self._store.delete_message(self._message_id(turn, part))
        self._reload()
        return removed

    def restore(self, removed: records.DeletedMessages) -> None:
        self._store.restore_messages(removed)
        self._reload()

    def _set_branch(self, message: int) -> None:
        self._store.set_branch(message)
        self._reload()

    def _message_id(self, turn: Turn, part: TurnPart) -> int:
        return turn.number if part is TurnPart.ANSWER else self._question_ids[turn.number]

    def _versions(self, turn: Turn, part: TurnPart) -> tuple[int, ...]:
        message = self._message_id(turn, part)
        return self._forks.get(message, (message,))

    def _start_turn(
        self,
        asked: int,
        question: Question,
        retry_of: Turn | None = None,
        edit_of: Turn | None = None,
        choose_files: bool = False,
    ) -> StoredTurn:
        assert self.id is not None
        current = self._store.conversation(self.id).current
        reply = self._store.begin_reply(asked, question.mode, question.keep)
        # Message ids are unique, so that turns of several conversations can share an engine.
        turn, command = self.conversation.start_turn(
            question, retry_of, reply.message, edit_of, choose_files
        )
        turn.quotes = self._models.target == DEMO_MODEL
        if turn.retrieved is not None:
            reply.retrieve(turn.retrieved)
        self._question_ids[turn.number] = asked
        self._turns[turn.number] = turn
        self._forks = self._store.forks(self.id)
        revert_to = None if turn.retry_of is None else current
        return self._stored_turn(turn, command, revert_to, reply)

    def _stored_turn(
        self, turn: Turn, command: Ask, revert_to: int | None, reply: ReplyWriter
    ) -> StoredTurn:
        assert self.id is not None
        ask, ids = replace(command, conversation=self.name), self._message_ids(turn)
        return StoredTurn(self.id, turn, ask, ids, revert_to, reply, self._models)

    def _reload(self) -> None:
        assert self.id is not None
        self._forks = self._store.forks(self.id)
        self.conversation.turns = []
        self._load(self._store.branch(self.id))

    def _load(self, messages: tuple[records.MessageRecord, ...]) -> None:
        """System messages come first, as most templates require. An answer without a question is
        skipped, and a question without an answer (the program ended there) is a failed turn."""
        versions: dict[Hashable, Document] = {}
        system = [m for m in messages if m.role is Role.SYSTEM]
        self.conversation.system = "\n\n".join(message.text for message in system)
        for message, after in zip(messages, [*messages[1:], None], strict=False):
            if message.role is not Role.USER:
                continue
            answer = after if after and after.role is Role.ASSISTANT else None
            turn = self._turn(message, answer, versions)
            for record, document in zip(message.attachments, turn.question.documents, strict=False):
                versions[version_key(record.name, record.sha256, record.origin)] = document
            self._question_ids[turn.number] = message.id
            self._turns[turn.number] = turn
            self.conversation.turns.append(turn)
            if answer is not None and answer.citations is not None:
                ids = {id: position for position, id in enumerate(self._message_ids(turn))}
                turn.citations = answer.citations.renumbered(ids)

    def _turn(
        self,
        message: records.MessageRecord,
        answer: records.MessageRecord | None,
        versions: Mapping[Hashable, Document],
    ) -> Turn:
        """The same object as before, if there is one: it knows more. `versions` are documents of
        earlier questions, by `version_key`."""
        known = self._turns.get(message.id if answer is None else answer.id)
        if known is not None and known.state is not TurnState.RUNNING:
            known.replaced, known.retry_of, known.superseded = False, None, ()
            return known
        question = Question(message.text, self._documents(message, versions))
        if answer is not None:
            question = _as_requested(question, answer)
            self._stats[answer.id] = answer.stats
            turn = _answered_turn(answer, question, self._models)
            turn.retrieved = self._retrieved(answer)
            turn.system = self.conversation.system_prompt
            return turn
        turn = Turn(message.id, question, TurnState.FAILED)
        turn.failure = Failed(turn.number, Failure(FailureKind.NEVER_ANSWERED))
        return turn

    def _documents(
        self, message: records.MessageRecord, versions: Mapping[Hashable, Document]
    ) -> tuple[Document, ...]:
        documents = []
        for attachment in message.attachments:
            try:
                text = self._store.text(attachment)
            except StoreError as error:  # the messages can be shown without it
                self._missing_document, text = error, ""
            old, origin = attachment.replaces, attachment.origin
            key = old and version_key(old.name, old.sha256, origin)
            documents.append(
                Document(
                    attachment.name,
                    text,
                    attachment.pinned,
                    attachment.line,
                    origin=origin,
                    replaces=versions.get(key),
                )
            )
        return tuple(documents)

    def _retrieved(self, answer: records.MessageRecord) -> tuple[RetrievedPart, ...] | None:
        if not answer.retrieved:
            return None
        parts = []
        for attachment in answer.attachments:
            if (why := attachment.retrieval) is None:
                return None
            try:
                text = self._store.text(attachment)
            except StoreError:  # retrieved again with the next question
                return None
            document = Document(attachment.name, text, attachment.pinned, attachment.line)
            parts.append(RetrievedPart(document, why.tokens, why.reason, why.words))
        return tuple(parts)

    def check_documents(self) -> None:
        """Raise StoreError if a document is missing and was not attached again."""
        if self._missing_document is None or self.id is None:
            return
        again = StoredConversation(self._store, self.id, self._models, self.conversation.sampling)
        self.conversation.turns, self._missing_document = (
            again.conversation.turns,
            again._missing_document,
        )
        for number in self._turns.keys() & again._turns.keys():
            again._turns[number].progress = self._turns[number].progress
        self._turns = again._turns
        if self._missing_document is not None:
            raise self._missing_document


def _attach(store: Store, documents: Sequence[Document]) -> list[records.AttachmentRecord]:
    contents = []
    for document in documents:
        try:
            contents.append((document.name, encode(document.text)))
        except UnicodeEncodeError:
            raise QuestionError(
                f"The document '{document.name}' is not valid Unicode", "attach it as a file"
            ) from None
    stored = store.attach_all(contents)
    return [
        replace(
            attachment,
            pinned=document.pinned,
            line=document.line,
            origin=document.origin,
            replaces=_earlier_version(document.replaces),
        )
        for attachment, document in zip(stored, documents, strict=True)
    ]


def _earlier_version(document: Document | None) -> records.EarlierVersion | None:
    if document is None:
        return None
    sha256 = hashlib.sha256(encode(document.text)).hexdigest()
    return records.EarlierVersion(document.name, sha256)


def _as_requested(question: Question, answer: records.MessageRecord) -> Question:
    """The question, read as was asked for this answer: not as was then chosen."""
    mode = question.mode if answer.mode is None else answer.mode
    keep = question.keep if answer.keep is None else answer.keep
    return replace(question, mode=mode, keep=keep)


def _answered_turn(answer: records.MessageRecord, question: Question, models: ModelPair) -> Turn:
    turn = Turn(answer.id, question, _STATES[answer.state], answer.text, answer.thinking)
    turn.generated_ids = _token_ids(answer, models)
    if turn.state is TurnState.DONE:
        turn.ended = FinishReason.LENGTH if answer.truncated else FinishReason.STOP
    elif turn.state is TurnState.STOPPED and answer.truncated:
        turn.state, turn.ended = TurnState.DONE, FinishReason.REPEATED
    if answer.stats is not None:
        turn.statistics, turn.guard = answer.stats, answer.stats.guard
        turn.quotes = answer.stats.quotes
    if answer.failure is not None:
        turn.failure = Failed(answer.id, answer.failure)
    return turn


def _token_ids(answer: records.MessageRecord, models: ModelPair) -> tuple[int, ...] | None:
    """The generated ids, if this target generated them. Unknown for an answer that was cut off by
    the end of the program, or at another program's stop sequence."""
    if answer.stats is None or answer.stats.target_revision != models.target_revision:
        return None
    return answer.token_ids or None

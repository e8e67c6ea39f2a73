"""A turn of a stored conversation: its answer is streamed into the store, its statistics at the
end. Applying an event never waits for the disk."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING

from app.chat.conversation import Turn, TurnState
from app.chat.model_pairs import ModelPair
from app.protocol.commands import Ask
from app.protocol.events import (
    Event,
    Failed,
    Finished,
    Retrieved,
    Token,
)
from app.protocol.stats import FinishReason, Reading, Statistics
from app.store import records
from app.store.records import StoreError

if TYPE_CHECKING:
    from app.store.reply_writer import ReplyWriter


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
        self._end: partial[Future[None]] | None = None

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
                failed = records.State.FAILED
                self._end = partial(self._reply.end, failed, failure=event.failure)
                self.save()

    def _record_end(self) -> None:
        turn = self.turn
        repeated = turn.ended is FinishReason.REPEATED
        stopped = turn.state is TurnState.STOPPED or repeated
        state = records.State.STOPPED if stopped else records.State.DONE
        stats, read_map = self._record(turn.statistics)
        truncated = repeated or turn.ended is FinishReason.LENGTH
        self._end = partial(self._reply.end, state, stats, read_map, truncated=truncated)
        self.save()

    def save(self) -> None:
        """Save the end, again if that failed before."""
        if self._end is not None:
            completes = self.turn.retry_of is None or not self.turn.retry_of.in_context
            self.saved = self._end(revert_to=None if completes else self._revert_to)

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

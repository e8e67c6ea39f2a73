"""A question that is too long without any document stays in the composer, or returns to it with its
attachments."""

from __future__ import annotations

from dataclasses import replace

from app.chat import wording
from app.chat.conversation import Question, Turn, TurnPart
from app.protocol.events import Failed
from app.ui.chat.context import ChatContext
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.question_edit import QuestionEdit
from app.ui.state.repository import OpenChat

RETRY_HINT = "Press Enter again to try anyway."


class SizeCheck:
    def __init__(
        self,
        context: ChatContext,
        cost_estimate: CostEstimate,
        edit: QuestionEdit,
    ) -> None:
        self._context, self._cost_estimate, self._edit = context, cost_estimate, edit
        self._rejected: Question | None = None
        """The question that was predicted not to fit in memory."""

    def rejects(self) -> bool:
        """Whether the question and the conversation, without documents, exceed the model's context;
        a notice says so."""
        warning = self._cost_estimate.warning
        if warning:
            self._context.notice.show(warning)
        return bool(warning)

    def with_override(self, question: Question) -> Question:
        """The question, marked to be tried anyway if it was rejected just before."""
        rejected, self._rejected = self._rejected, None
        return replace(question, despite_memory=True) if question == rejected else question

    @staticmethod
    def is_too_large(failure: Failed | None) -> bool:
        """Whether the question failed before anything was read, because it does not fit."""
        return failure is not None and (failure.predicted or failure.excess_tokens > 0)

    async def on_returned(self, chat: OpenChat, turn: Turn, edits: Turn | None) -> None:
        """The question of `turn` is back in the composer, so the turn is deleted. `edits` is the
        turn whose question it was to replace. Raises UserError."""
        context, failure = self._context, turn.failure
        assert failure is not None
        if failure.predicted:
            self._rejected = replace(turn.question, despite_memory=False)
        await context.open_chats.repository.change_branch(
            chat, lambda stored: stored.delete(turn, TurnPart.QUESTION)
        )
        if chat is not context.open_chats.shown:
            return
        async with context.draw_lock:
            await context.transcript.show_branch()
        if edits is not None:
            self._edit.resume(edits)
        hint = f" {RETRY_HINT}" if failure.predicted else ""
        context.notice.show(wording.failure(failure.failure).text + hint)

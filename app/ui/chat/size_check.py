"""A question that is too long stays in the composer, or returns to it with its attachments."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from app.chat.conversation import Question, Turn, TurnPart
from app.protocol.events import Failed
from app.ui.attach.attachment import Attachment
from app.ui.attach.leave_out_screen import LeaveOutScreen, excess_text
from app.ui.chat.attachments import Attachments
from app.ui.chat.chrome import failure_text
from app.ui.chat.context import ChatContext
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.question_edit import QuestionEdit
from app.ui.state.repository import OpenChat
from app.util import formatting
from app.util.sanitize import sanitize_line

RETRY_HINT = "Press Enter again to try anyway."


class SizeCheck:
    def __init__(
        self,
        context: ChatContext,
        cost_estimate: CostEstimate,
        edit: QuestionEdit,
        attachments: Attachments,
    ) -> None:
        self._context, self._cost_estimate = context, cost_estimate
        self._edit, self._attachments = edit, attachments
        self._rejected: Question | None = None
        """The question that was predicted not to fit in memory."""

    def rejects(self) -> bool:
        """Whether the question and its attachments, as far as they are counted, exceed the model's
        context; a notice says so."""
        excess = self._cost_estimate.excess_tokens
        if excess:
            self._context.notice.show(self._message(excess, self._context.composer.chips.attached))
            self._offer(excess)
        return excess > 0

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
        context.notice.show(
            " ".join(filter(None, (failure_text(failure), RETRY_HINT * failure.predicted)))
        )
        if failure.excess_tokens and context.screen.is_current:
            self._offer(failure.excess_tokens)

    def _message(self, excess: int, attachments: tuple[Attachment, ...]) -> str:
        pair = self._cost_estimate.pair
        assert pair is not None
        limit = formatting.count(pair.target.context_length)
        name = f"{sanitize_line(pair.target.name)} takes {limit}"
        if excess <= sum(each.tokens or 0 for each in attachments):
            return f"{excess_text(excess, attachments)}. {name}."
        return (
            f"The conversation is too long for this question: {name} tokens. ^N starts a new one."
        )

    def _offer(self, excess: int) -> None:
        """Let the user choose which documents to leave out, if there are several."""
        attachments = self._context.composer.chips.attached
        if sum(len(each.texts) for each in attachments) > 1:
            chosen = partial(self._chosen, attachments)
            self._context.screen.app.push_screen(LeaveOutScreen(attachments, excess), chosen)

    def _chosen(
        self, offered: tuple[Attachment, ...], attachments: tuple[Attachment, ...] | None
    ) -> None:
        """Keep `attachments` of those `offered`, and what has been attached since."""
        composer = self._context.composer
        if attachments is not None:
            attachments += tuple(each for each in composer.chips.attached if each not in offered)
        if attachments is not None and attachments != composer.chips.attached:
            composer.chips.show(
                (*attachments, *self._attachments.jobs(self._context.open_chats.shown))
            )
            self._context.notice.show("")
        composer.box.focus()

"""A question that is too long is not asked: it stays, or comes back, with all that was attached."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from app.chat.conversation import Question, Turn, TurnPart
from app.protocol.events import Failed
from app.ui.attach.attachment import Attachment
from app.ui.attach.excess import excess_text
from app.ui.attach.leave_out_screen import LeaveOutScreen
from app.ui.chat.attachments import Attachments
from app.ui.chat.chrome import failure_text
from app.ui.chat.context import ChatContext
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.question_edit import QuestionEdit
from app.ui.state.repository import OpenChat
from app.util import formatting
from app.util.sanitize import sanitize_line

RETRY_HINT = "Enter again tries it all the same."


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
        self._refused: Question | None = None
        """What memory was foreseen not to suffice for."""

    def rejects(self) -> bool:
        """Whether what is written and attached cannot fit the model, as far as it is counted; then
        why is said."""
        excess, things = (
            self._cost_estimate.excess_tokens,
            self._context.composer.chips.attached,
        )
        if excess:
            self._context.notice.show(self._words(excess, things))
            self._offer(excess)
        return excess > 0

    def with_override(self, question: Question) -> Question:
        """The same, to be tried all the same where it was refused just now."""
        refused, self._refused = self._refused, None
        return replace(question, despite_memory=True) if question == refused else question

    @staticmethod
    def is_too_large(failure: Failed | None) -> bool:
        """Whether nothing was read at all, since it does not fit."""
        return failure is not None and (failure.predicted or failure.excess_tokens > 0)

    async def on_returned(self, chat: OpenChat, turn: Turn, edits: Turn | None) -> None:
        """What was asked in `turn` is where it was written again, so that the turn is not needed.
        It was to edit the question of `edits`. Raises UserError."""
        context, failure = self._context, turn.failure
        assert failure is not None
        if failure.predicted:
            self._refused = replace(turn.question, despite_memory=False)
        await context.open_chats.repository.change_branch(
            chat, lambda kept: kept.delete(turn, TurnPart.QUESTION)
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

    def _words(self, excess: int, things: tuple[Attachment, ...]) -> str:
        pair = self._cost_estimate.pair
        assert pair is not None
        limit = formatting.count(pair.target.context_length)
        name = f"{sanitize_line(pair.target.name)} takes {limit}"
        if excess <= sum(each.tokens or 0 for each in things):
            return f"{excess_text(excess, things)}. {name}."
        return f"The conversation is too long for what is asked: {name} tokens. ^N begins another."

    def _offer(self, excess: int) -> None:
        """To choose among documents, where there are some."""
        things = self._context.composer.chips.attached
        if sum(len(each.texts) for each in things) > 1:
            chosen = partial(self._chosen, things)
            self._context.screen.app.push_screen(LeaveOutScreen(things, excess), chosen)

    def _chosen(
        self, offered: tuple[Attachment, ...], things: tuple[Attachment, ...] | None
    ) -> None:
        """`things` of what was `offered` stay, and whatever was attached meanwhile."""
        entry, attaching = self._context.composer, self._attachments
        if things is not None:
            things += tuple(each for each in entry.chips.attached if each not in offered)
        if things is not None and things != entry.chips.attached:
            entry.chips.show((*things, *attaching.jobs(self._context.open_chats.shown)))
            self._context.notice.show("")
        entry.box.focus()

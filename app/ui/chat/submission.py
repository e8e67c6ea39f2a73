"""Asking: what happens between Enter and the engine's command."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from textual.message import Message

from app.chat.conversation import Pins, Question, Turn, TurnState
from app.chat.model_pairs import lacks_document
from app.chat.stored_conversation import StoredTurn
from app.errors import UserError
from app.protocol.options import Mode
from app.ui.attach.attachment import documents_of
from app.ui.background import start_task
from app.ui.chat.attachments import Attachments
from app.ui.chat.context import ChatContext
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.keep_preview import KeepPreview
from app.ui.chat.model_loading import PairLoader
from app.ui.chat.question_edit import QuestionEdit
from app.ui.chat.size_check import SizeCheck
from app.ui.state.repository import OpenChat


@dataclass
class TurnFinished(Message):
    """A turn has finished. `seconds` is its duration."""

    summary: str
    seconds: float


class Submission:
    """A question is stored before it is sent to the engine."""

    def __init__(
        self,
        context: ChatContext,
        loader: PairLoader,
        cost_estimate: CostEstimate,
        edit: QuestionEdit,
        attachments: Attachments,
        keep_preview: KeepPreview,
    ) -> None:
        self._context, self._open_chats = context, context.open_chats
        self._loader, self._edit = loader, edit
        self._size_check = SizeCheck(context, cost_estimate, edit)
        self._attachments, self._keep_preview = attachments, keep_preview
        self._cancel_on_start = False
        self._edited_turn: Turn | None = None
        self._typed_turn: Turn | None = None
        """The turn that came from the composer, while it runs."""

    @property
    def broken(self) -> bool:
        """Whether no question can be asked any more."""
        return self._context.engine_closed or self._loader.failed

    @property
    def busy(self) -> bool:
        open_chats = self._open_chats
        return self._loader.busy or open_chats.repository.opening or open_chats.busy

    def may_ask(self) -> bool:
        """Whether a question can be asked now; if not, a notice says why."""
        if self.busy:
            elsewhere = self._open_chats.answering not in (None, self._open_chats.shown)
            other = "Still answering in another conversation. Esc stops it." if elsewhere else ""
            opening = "Opening the conversations…"
            self._context.notice.show(other or self._loader.blocked_reason() or opening)
        elif self.broken:
            self._context.notice.show("No model is loaded. Ctrl+L loads one.")
        return not self.busy and not self.broken

    async def submit(self, typed: str) -> None:
        """Ask the question in the composer, or queue it."""
        context, chat = self._context, self._open_chats.shown
        text, draft = typed.strip(), context.composer.draft
        reason = self._blocked_reason(text, bool(draft.attached))
        if reason is not None:
            context.notice.show(reason)
        if not text or reason is not None:
            return
        if self._size_check.rejects():
            return
        question = self._size_check.with_override(
            Question(text, documents_of(draft.attached), draft.next_mode.mode, draft.next_mode.keep)
        )
        chat.sent_attachments = draft.attached
        context.composer.clear_sent(typed)
        context.set_next_mode(draft.next_mode.after_send())
        if (edited := self._edit.take(question)) is not None:
            self.ask(chat, *edited)
        elif self.busy:
            self._open_chats.enqueue(chat, question)
            await context.transcript.show_queued(question)
            context.refresh()
        else:
            self.ask(chat, question)

    def _blocked_reason(self, text: str, attached: bool) -> str | None:
        if not text:
            hint = "Type a question about the attachments, then press Enter."
            return hint if attached else None
        if self.broken:
            return "No model is loaded. Ctrl+L loads one."
        if self._open_chats.shown.conversation.queued is not None:
            return "A question is already queued. Esc takes it back."
        if self.busy and self._edit.active:
            return "Still answering: an edited question cannot be queued. Esc stops the answer."
        if not attached and self._needs_document():
            return (
                "The embedded models only answer questions about documents: paste one, or type @"
                " for a file. F6 fetches a small model that chats (93 MB)."
            )
        return None

    def _needs_document(self) -> bool:
        branch = self._open_chats.shown.conversation.branch
        return lacks_document(self._loader.load, branch, ())

    def ask(self, chat: OpenChat, question: Question, edits: Turn | None = None) -> None:
        self._edited_turn = edits
        self._start(chat, self._open_chats.repository.ask(chat, question, edits), question)

    def ask_again(
        self,
        mode: Mode,
        keep: float,
        turn: Turn | None = None,
        pins: Pins | None = None,
        choose_files: bool = False,
    ) -> None:
        self._context.composer.box.focus()
        chat, repository = self._open_chats.shown, self._open_chats.repository
        asked = repository.ask_again(chat, mode, keep, turn, pins, choose_files)
        self._start(chat, asked, None)

    def continue_answer(self) -> None:
        """Continue the last answer if it was cut off or stopped."""
        context, chat = self._context, self._open_chats.shown
        turn = next(iter(reversed(chat.conversation.branch)), None)
        if turn is None or not turn.can_continue:
            context.notice.show(f"Nothing to continue: {_why_ended(turn)}.")
            return
        context.composer.box.focus()
        self._start(chat, self._open_chats.repository.continue_answer(chat, turn), None)

    def submit_queued(self) -> None:
        """Ask the next queued question, of any conversation, unless something is answered."""
        queued = None if self.busy or self.broken else self._open_chats.pop_queued()
        if queued is not None:
            self.ask(*queued)

    async def on_finished(self, chat: OpenChat) -> None:
        last = chat.conversation.last
        if chat is self._open_chats.shown:
            self._context.notice.show("")
            await self._context.transcript.show_branch()
            self._keep_preview.on_finished()
        if last is not None:
            self._context.screen.post_message(self._finished_message(chat, last))
        if last is not None and last.state is TurnState.FAILED:
            await self.take_back(chat)
            if last is self._typed_turn and self._size_check.is_too_large(last.failure):
                await self._return_question(chat, last)
        self.submit_queued()
        self._context.refresh()

    async def _return_question(self, chat: OpenChat, turn: Turn) -> None:
        await self._restore_draft(chat, turn.question)
        try:
            await self._size_check.on_returned(chat, turn, self._edited_turn)
        except UserError as error:
            self._context.notice.show(str(error))

    def _finished_message(self, chat: OpenChat, turn: Turn) -> TurnFinished:
        failed = turn.state is TurnState.FAILED
        summary = f"{'Failed' if failed else 'Answered'}: {turn.question.text}"
        return TurnFinished(summary, turn.progress.elapsed(0.0))

    async def stop(self) -> None:
        context, chat = self._context, self._open_chats.shown
        if chat.conversation.queued is not None:
            await self.take_back(chat)
        elif self._open_chats.running is not None:
            self._cancel_on_start = True  # it may still be drawn before the engine is asked
            self._open_chats.cancel()
            context.notice.show("Stopping.")
        elif self._open_chats.committing is chat:
            self._cancel_on_start = True
            context.notice.show("Stopping.")
        elif self._edit.cancel() is not None:
            context.refresh()
        else:
            context.composer.box.focus()

    async def take_back(self, chat: OpenChat) -> None:
        """Put a queued question back into the composer, before what was typed since."""
        question = self._open_chats.unqueue(chat)
        if question is not None:
            await self._restore_draft(chat, question)

    async def _restore_draft(self, chat: OpenChat, question: Question) -> None:
        context = self._context
        if chat is not self._open_chats.shown:
            chat.draft = chat.draft.prepend(question, chat.sent_attachments)
            self._open_chats.stash(chat)
            return
        # One update, so that every frame shows the question in one of its two places.
        with context.screen.app.batch_update():
            await context.transcript.show_queued(None)
            draft = context.composer.draft.prepend(question, chat.sent_attachments)
            context.composer.show(draft, self._attachments.jobs(chat))
            context.set_next_mode(draft.next_mode)
            context.refresh()

    def _start(
        self,
        chat: OpenChat,
        committed: Coroutine[Any, Any, StoredTurn],
        question: Question | None,
    ) -> None:
        self._cancel_on_start = False
        self._open_chats.committing = chat
        self._keep_preview.end()
        start_task(self._context.screen, lambda: self._commit(chat, committed, question))
        self._context.refresh()

    async def _commit(
        self,
        chat: OpenChat,
        committed: Coroutine[Any, Any, StoredTurn],
        question: Question | None,
    ) -> None:
        context = self._context
        if question is not None and chat is self._open_chats.shown:
            await context.transcript.show_queued(question, committing=True)
        try:
            pending = await committed
        except UserError as error:
            self._open_chats.committing = None
            if question is not None:
                await self._restore_draft(chat, question)
            context.notice.show(str(error))
            context.refresh()
            return
        async with context.draw_lock:
            self._open_chats.start_turn(chat, pending)
            self._typed_turn = pending.turn if question is not None else None
            if chat is self._open_chats.shown:
                await context.transcript.show_queued(None)
                await context.transcript.add_turn(pending.turn)
        within = context.settings.reading.first_word_within
        ask = replace(pending.command, within_seconds=within)
        chat.asked = context.engine.ask(ask, context.on_engine_event)
        if self._cancel_on_start:
            chat.asked.cancel()
        context.refresh()


def _why_ended(last: Turn | None) -> str:
    if last is None:
        return "nothing has been asked yet"
    if last.state is TurnState.DONE:
        return "the last answer is complete"
    return "the last answer is empty. ^A asks again, ^R reading in full"

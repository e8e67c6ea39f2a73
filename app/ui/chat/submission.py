"""Asking: from a sent question to the engine's command, and everything that comes between."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from app.chat.conversation import Pins, Question, Turn, TurnState
from app.chat.model_pairs import lacks_document
from app.chat.unkept import AskedTurn
from app.errors import UserError
from app.protocol.commands import Cancel
from app.protocol.options import Mode
from app.ui.attach.attachment import documents_of
from app.ui.chat.size_check import SizeCheck
from app.ui.state.repository import OpenChat

if TYPE_CHECKING:
    from app.ui.chat.screen import ChatScreen


class Submission:
    """A question is on the disk before the engine hears of it."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen, self._desk = screen, screen.open_chats
        self._fitting = SizeCheck(screen)
        self._cancel_on_start = False
        self._edited_turn: Turn | None = None
        self._typed_turn: Turn | None = None
        """The turn that came from what was written, while it runs."""

    async def submit(self, typed: str) -> None:
        """Ask what is written, or let it wait for its turn."""
        screen, chat = self._screen, self._desk.shown
        text, draft = typed.strip(), screen.composer.draft
        refusal = self._blocked_reason(text, bool(draft.attached))
        if refusal is not None:
            screen.notice.show(refusal)
        if not text or refusal is not None:
            return
        if self._fitting.rejects():
            return
        question = self._fitting.with_override(
            Question(text, documents_of(draft.attached), draft.next_mode.mode, draft.next_mode.keep)
        )
        chat.sent_attachments = draft.attached
        screen.composer.clear_sent(typed)
        screen.set_next_mode(draft.next_mode.after_send())
        if (edited := screen.actions.take_edit(question)) is not None:
            self.ask(chat, *edited)
        elif screen.busy:
            self._desk.enqueue(chat, question)
            await screen.transcript.show_queued(question)
            screen.show_hints()
        else:
            self.ask(chat, question)

    def _blocked_reason(self, text: str, attached: bool) -> str | None:
        if not text:
            asked = "Type a question about what is attached, then press Enter."
            return asked if attached else None
        if self._screen.broken:
            return "No model is loaded, so nothing can be asked."
        if self._desk.shown.conversation.queued is not None:
            return "One question waits already. Esc takes it back."
        if self._screen.busy and self._screen.actions.editing:
            return "An answer is under way: an edited question cannot wait for it. Esc stops it."
        if not attached and self._needs_document():
            return (
                "The embedded pair answers questions about documents: paste one, or type @ for a"
                " file. ^L has pairs that chat."
            )
        return None

    def _needs_document(self) -> bool:
        branch = self._desk.shown.conversation.branch
        return lacks_document(self._screen.loader.load, branch, ())

    def ask(self, chat: OpenChat, question: Question, edits: Turn | None = None) -> None:
        self._edited_turn = edits
        self._start(chat, self._desk.repository.ask(chat, question, edits), question)

    def ask_again(
        self, mode: Mode, keep: float, turn: Turn | None = None, pins: Pins | None = None
    ) -> None:
        chat = self._desk.shown
        self._start(chat, self._desk.repository.ask_again(chat, mode, keep, turn, pins), None)

    def continue_answer(self) -> None:
        """Have the last answer continued, if it was cut off or stopped."""
        screen, chat = self._screen, self._desk.shown
        turn = next(iter(reversed(chat.conversation.branch)), None)
        if turn is None or not turn.can_continue:
            screen.notice.show(f"There is nothing to continue: {_why_ended(turn)}.")
            return
        screen.composer.box.focus()
        self._start(chat, self._desk.repository.continue_answer(chat, turn), None)

    def submit_queued(self) -> None:
        """The next question that waits, in whichever conversation, if its turn has come."""
        waiting = None if self._screen.busy else self._desk.pop_queued()
        if waiting is not None:
            self.ask(*waiting)

    async def on_finished(self, chat: OpenChat) -> None:
        last = chat.conversation.last
        if chat is self._desk.shown:
            self._screen.notice.show("")
            await self._screen.transcript.show_branch()
        if last is not None:
            self._screen.post_message(self._answered(chat, last))
        if last is not None and last.state is TurnState.FAILED:
            await self.take_back(chat)
            if last is self._typed_turn and self._fitting.is_too_large(last.failure):
                await self._come_back(chat, last)
        self.submit_queued()
        self._screen.show_hints()

    async def _come_back(self, chat: OpenChat, turn: Turn) -> None:
        await self._restore_draft(chat, turn.question)
        try:
            await self._fitting.on_returned(chat, turn, self._edited_turn)
        except UserError as error:
            self._screen.notice.show(str(error))

    def _answered(self, chat: OpenChat, turn: Turn) -> ChatScreen.Finished:
        failed = turn.state is TurnState.FAILED
        sentence = f"{'Failed' if failed else 'Answered'}: {turn.question.text}"
        progress = chat.progress[turn.number]
        seconds = (progress.stopped_at or progress.started_at) - progress.started_at
        return self._screen.Finished(sentence, seconds)

    async def stop(self) -> None:
        screen, chat = self._screen, self._desk.shown
        if chat.conversation.queued is not None:
            await self.take_back(chat)
        elif self._desk.running is not None:
            screen.engine.send(Cancel(self._desk.running.number))
            screen.notice.show("Stopping.")
        elif self._desk.committing is chat:
            self._cancel_on_start = True
            screen.notice.show("Stopping.")
        elif screen.actions.cancel_edit() is not None:
            screen.show_hints()
        else:
            screen.composer.box.focus()

    async def take_back(self, chat: OpenChat) -> None:
        """Put what waits back to where it was written, before what was written since."""
        question = self._desk.unqueue(chat)
        if question is not None:
            await self._restore_draft(chat, question)

    async def _restore_draft(self, chat: OpenChat, question: Question) -> None:
        screen = self._screen
        if chat is not self._desk.shown:
            chat.draft = chat.draft.prepend(question, chat.sent_attachments)
            self._desk.stash(chat)
            return
        with screen.app.batch_update():  # no frame shows it in neither place
            await screen.transcript.show_queued(None)
            draft = screen.composer.draft.prepend(question, chat.sent_attachments)
            screen.composer.show(draft, screen.attachments.jobs(chat))
            screen.set_next_mode(draft.next_mode)
            screen.show_hints()

    def _start(
        self,
        chat: OpenChat,
        committed: Coroutine[Any, Any, AskedTurn],
        question: Question | None,
    ) -> None:
        self._cancel_on_start = False
        self._desk.committing = chat
        self._screen.keep_preview.end()
        self._screen.run_worker(self._commit(chat, committed, question))
        self._screen.show_hints()

    async def _commit(
        self,
        chat: OpenChat,
        committed: Coroutine[Any, Any, AskedTurn],
        question: Question | None,
    ) -> None:
        screen = self._screen
        if question is not None and chat is self._desk.shown:
            await screen.transcript.show_queued(question, committing=True)
        try:
            asked = await committed
        except UserError as error:
            self._desk.committing = None
            if question is not None:
                await self._restore_draft(chat, question)
            screen.notice.show(str(error))
            screen.show_hints()
            return
        async with screen.drawing:
            self._desk.start_turn(chat, asked)
            self._typed_turn = asked.turn if question is not None else None
            if chat is self._desk.shown:
                await screen.transcript.show_queued(None)
                await screen.transcript.add_turn(asked.turn)
        screen.engine.send(asked.command)
        if self._cancel_on_start:
            screen.engine.send(Cancel(asked.turn.number))
        screen.show_hints()


def _why_ended(last: Turn | None) -> str:
    if last is None:
        return "nothing was asked yet"
    if last.state is TurnState.DONE:
        return "the last answer ended by itself"
    return "the last answer has no words. ^R asks again, in full"

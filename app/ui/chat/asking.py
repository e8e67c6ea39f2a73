"""Asking: what happens between Enter and the engine's command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from textual import on
from textual.message import Message
from textual.screen import Screen

from app.chat import wording
from app.chat.conversation import Pins, Question, Turn, TurnPart, TurnState
from app.chat.model_pairs import lacks_document
from app.chat.stored_conversation import StoredConversation, StoredTurn
from app.errors import UserError
from app.models.first_model import first_model
from app.protocol.commands import Load
from app.protocol.engine import Engine
from app.protocol.options import Mode
from app.settings.definitions import Settings
from app.settings.file import SettingsFile
from app.ui.attach.attachment import documents_of
from app.ui.background import Bridge, start_task
from app.ui.chat.attachments import AttachmentReader, QuestionReady
from app.ui.chat.chrome import Footer, Header, Notice
from app.ui.chat.composer import ComposeBox, Composer
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.keep_preview import KeepPreview
from app.ui.chat.model_loading import PairChanged, PairFailed, PairLoader, PairReady, RealModel
from app.ui.conversations.list_rows import Sidebar
from app.ui.state.draft import NextMode, default_next_mode
from app.ui.state.open_chats import OpenChats
from app.ui.state.repository import ChatRepository, OpenChat
from app.ui.transcript.transcript import Transcript

OPENING = "Opening the conversations…"
NO_MODEL = "No model is loaded. Ctrl+L loads one."
TRY_ANYWAY = "Press Enter again to try anyway."


@dataclass
class TurnFinished(Message):
    """A turn has finished. `seconds` is its duration."""

    summary: str
    seconds: float


class AskingScreen(Screen[None]):
    """What the chat screen consists of, and asking: a question is stored before it is sent to the
    engine. While something is answered, a question is queued."""

    def __init__(
        self,
        engine: Engine,
        load: Load,
        settings_file: SettingsFile,
        clock: Callable[[], float],
        folder: Path | None,
    ) -> None:
        super().__init__()
        self.engine, self.settings_file = engine, settings_file
        self.bridge = Bridge(self)
        self.engine_closed = False
        """Whether the engine has been closed."""
        next_mode = default_next_mode(settings_file.settings)
        self.repository = ChatRepository(folder, load, settings_file.settings)
        self.open_chats = OpenChats(self.repository, self.repository.new(next_mode), clock)
        self.header = Header(*load.names)
        self.transcript = Transcript(clock, self.open_chats.shown)
        self.sidebar = Sidebar(self.repository, self.open_chats.statuses)
        self.composer = Composer(next_mode)
        self.footer = Footer()
        self.keep_preview = KeepPreview(
            engine, self.open_chats, self.transcript, self.composer.slider
        )
        self.attachments = AttachmentReader(
            self.composer, self.open_chats, settings_file, load.target
        )
        self.loader = PairLoader(
            engine,
            self.open_chats,
            self.header,
            self.transcript.banner,
            self.notice,
            load,
            clock,
        )
        self.real_model = RealModel(self.loader, self.open_chats, self.notice)
        self.cost_estimate = CostEstimate(
            self.composer, self.open_chats, self.attachments, self.loader
        )
        self.draw_lock = asyncio.Lock()
        """Locked while another conversation or turn is put on the screen."""
        self._cancel_on_start = False
        self._edited_turn: Turn | None = None
        """The turn whose question was replaced by the one asked last, if that was edited."""
        self._typed_turn: Turn | None = None
        """The turn that came from the composer, while it runs."""
        self._rejected: Question | None = None
        """The question that was predicted not to fit in memory."""

    # -------------------------------------------------------------------------- what is next

    @property
    def settings(self) -> Settings:
        return self.settings_file.settings

    @property
    def notice(self) -> Notice:
        return self.composer.notice

    @property
    def next_mode(self) -> NextMode:
        return self.composer.draft.next_mode

    @property
    def default_mode(self) -> NextMode:
        """How messages are read if nothing was chosen for their conversation."""
        return default_next_mode(self.settings)

    def set_next_mode(self, next_mode: NextMode) -> None:
        """Choose how the next message is read."""
        self.composer.show_next_mode(next_mode)
        self.open_chats.shown.draft = self.composer.draft
        self._show_next_message()

    def _show_next_message(self) -> None:
        self.footer.next_mode = self.next_mode
        self.footer.meter = self.cost_estimate.meter()

    @on(PairChanged)
    def show_state(self) -> None:
        """Show the keys that work now, how the next message is read, and the title."""
        chat, selected = self.open_chats.shown, self.transcript.selected
        hints = ["⏎ queue" if self.busy else "⏎ send", "^G keep", "F1 keys", "^J new line"]
        if chat.conversation.queued is not None:
            hints.insert(0, "Esc take back")
        elif self.loader.changing:
            hints.insert(0, "Esc go back")
        elif self.open_chats.running is not None:
            hints.insert(0, "Esc stop")
        elif (last := chat.conversation.last) is not None:
            hints[1:1] = _hints_after(last)
        if self.composer.slider.display:  # which shows its own keys
            hints = ["F1 keys"]
        elif selected is not None:
            branch = chat.conversation.branch
            hints = selected.hints(bool(branch) and selected.turn is branch[-1])
        self.footer.hints, self.footer.hides_mode = hints, selected is not None
        self._show_next_message()
        self.sub_title = chat.title
        self.sidebar.update_list(chat.id)
        self.header.title, self.header.status = chat.title, self.repository.status

    @property
    def broken(self) -> bool:
        """Whether no question can be asked any more."""
        return self.engine_closed or self.loader.failed

    @property
    def busy(self) -> bool:
        """Whether a question has to wait."""
        return self.loader.busy or self.repository.opening or self.open_chats.busy

    def may_ask(self) -> bool:
        """Whether a question can be asked now; if not, a notice says why."""
        if self.busy:
            elsewhere = self.open_chats.answering not in (None, self.open_chats.shown)
            other = "Still answering in another conversation. Esc stops it." if elsewhere else ""
            self.notice.show(other or self.loader.blocked_reason() or OPENING)
        elif self.broken:
            self.notice.show(NO_MODEL)
        return not self.busy and not self.broken

    # -------------------------------------------------------------------------- asking

    async def on_compose_box_submitted(self, event: ComposeBox.Submitted) -> None:
        question = await self.attachments.question(event.text)
        if question is not None:
            await self._submit(question)

    @on(QuestionReady)
    async def _submit_ready(self, event: QuestionReady) -> None:
        if event.chat is self.open_chats.shown:
            await self._submit(event.typed)

    async def _submit(self, typed: str) -> None:
        """Ask the question in the composer, or queue it."""
        chat, composer = self.open_chats.shown, self.composer
        text, draft, edited = typed.strip(), composer.draft, composer.edited
        reason = self._refusal(text, bool(draft.attached))
        if reason:
            self.notice.show(reason)
        if not text or reason:
            return
        next_mode = draft.next_mode
        documents = documents_of(draft.attached)
        question = Question(text, documents, next_mode.mode, next_mode.keep)
        rejected, self._rejected = self._rejected, None
        if question == rejected:
            question = replace(question, despite_memory=True)
        chat.sent_attachments = draft.attached
        composer.clear_sent(typed)
        self.set_next_mode(next_mode.after_send())
        if edited is not None:
            composer.cancel_edit()
            self.set_next_mode(self.next_mode)
            # Documents that it still has stay the very same, with what is known about them.
            known = {document.text: document for document in edited.question.documents}
            documents = tuple(known.get(each.text, each) for each in documents)
            self.ask(chat, replace(question, documents=documents), edited)
        elif self.busy:
            self.open_chats.enqueue(chat, question)
            await self.transcript.show_queued(question)
            self.show_state()
        else:
            self.ask(chat, question)

    def _refusal(self, text: str, attached: bool) -> str:
        """Why what is typed cannot be asked; empty if it can."""
        if not text:
            hint = "Type a question about the attachments, then press Enter."
            return hint if attached else ""
        if self.broken:
            return NO_MODEL
        conversation = self.open_chats.shown.conversation
        if conversation.queued is not None:
            return "A question is already queued. Esc takes it back."
        if self.busy and self.composer.edited is not None:
            return "Still answering: an edited question cannot be queued. Esc stops the answer."
        if not attached and lacks_document(self.loader.load, conversation.branch, ()):
            return (
                "The demo model only answers questions about documents: paste one, or type @ for a"
                f" file. F6 downloads {first_model().name_and_size}, which also chats."
            )
        return self.cost_estimate.warning

    def ask(self, chat: OpenChat, question: Question, edits: Turn | None = None) -> None:
        """Ask a new question, which replaces the one of the turn that it `edits`."""
        self._edited_turn = edits
        self._store_and_send(chat, lambda stored: stored.ask(question, edits), question)

    def ask_again(
        self,
        mode: Mode,
        keep: float,
        turn: Turn | None = None,
        pins: Pins | None = None,
        choose_files: bool = False,
    ) -> None:
        """Ask the question of a turn again, by default the last one."""
        self.composer.box.focus()
        self._store_and_send(
            self.open_chats.shown,
            lambda stored: stored.ask_again(mode, keep, turn, pins, choose_files),
        )

    def ask_same(self, turn: Turn) -> None:
        """Ask again with the same mode and keep, if a question can be asked now. An automatic keep
        is chosen again."""
        if self.may_ask():
            self.ask_again(turn.question.mode, turn.question.keep, turn)

    def action_ask_again(self, in_full: bool = False) -> None:
        """Ask the last question again, as it was asked or in full."""
        last = self.open_chats.shown.conversation.last
        if self.broken or last is None:
            self.notice.show("There is no question to ask again.")
        elif self.may_ask():
            mode = Mode.FULL if in_full else last.question.mode
            self.ask_again(mode, last.question.keep)

    def action_continue_answer(self) -> None:
        """Continue the last answer if it was cut off or stopped."""
        if not self.may_ask():
            return
        chat = self.open_chats.shown
        branch = chat.conversation.branch
        turn = branch[-1] if branch else None
        if turn is None or not turn.can_continue:
            self.notice.show(f"Nothing to continue: {_why_ended(turn)}.")
            return
        self.composer.box.focus()
        self._store_and_send(chat, lambda stored: stored.resume(turn))

    def ask_queued(self) -> None:
        """Ask the next queued question, of any conversation, unless something is answered."""
        queued = None if self.busy or self.broken else self.open_chats.pop_queued()
        if queued is not None:
            self.ask(*queued)

    def _store_and_send(
        self,
        chat: OpenChat,
        ask: Callable[[StoredConversation], StoredTurn],
        typed: Question | None = None,
    ) -> None:
        """`typed` is the question if it comes from the composer."""
        self._cancel_on_start = False
        self.open_chats.committing = chat
        self.keep_preview.end()

        async def store_and_send() -> None:
            if typed is not None and chat is self.open_chats.shown:
                await self.transcript.show_queued(typed, committing=True)
            try:
                pending = await self.repository.ask(chat, ask)
            except UserError as error:
                self.open_chats.committing = None
                if typed is not None:
                    await self._restore_draft(chat, typed)
                self.notice.show(str(error))
            else:
                await self._send(chat, pending, typed is not None)
            self.show_state()

        start_task(self, store_and_send)
        self.show_state()

    async def _send(self, chat: OpenChat, pending: StoredTurn, typed: bool) -> None:
        async with self.draw_lock:
            self.open_chats.start_turn(chat, pending)
            self._typed_turn = pending.turn if typed else None
            if chat is self.open_chats.shown:
                await self.transcript.show_queued(None)
                await self.transcript.add_turn(pending.turn)
                self.attachments.check()
        within = self.settings.reading.first_word_within_s
        ask = replace(pending.command, within_seconds=within)
        chat.asked = self.engine.ask(ask, self.bridge.listener)
        if self._cancel_on_start:
            chat.asked.cancel()

    # -------------------------------------------------------------------------- the end of a turn

    async def finish_turn(self, chat: OpenChat) -> None:
        last = chat.conversation.last
        if chat is self.open_chats.shown:
            self.notice.show("")
            await self.transcript.show_branch()
            self.keep_preview.on_finished()
        if last is not None:
            ended = "Failed" if last.state is TurnState.FAILED else "Answered"
            summary = f"{ended}: {last.question.text}"
            self.post_message(TurnFinished(summary, last.progress.elapsed(0.0)))
        if last is not None and last.state is TurnState.FAILED:
            await self._take_back(chat)
            if last is self._typed_turn:
                await self._return_too_large(chat, last)
        self.ask_queued()
        self.show_state()

    async def _return_too_large(self, chat: OpenChat, turn: Turn) -> None:
        """A question that failed before anything was read, because it does not fit, returns to the
        composer with its attachments, and its turn is deleted."""
        failure = turn.failure
        if failure is None or not (failure.predicted or failure.excess_tokens > 0):
            return
        await self._restore_draft(chat, turn.question)
        if failure.predicted:
            self._rejected = replace(turn.question, despite_memory=False)
        try:
            await self.repository.change_branch(
                chat, lambda stored: stored.delete(turn, TurnPart.QUESTION)
            )
        except UserError as error:
            self.notice.show(str(error))
            return
        if chat is not self.open_chats.shown:
            return
        async with self.draw_lock:
            await self.transcript.show_branch()
        if self._edited_turn is not None:
            self.composer.resume_edit(self._edited_turn)
        hint = f" {TRY_ANYWAY}" if failure.predicted else ""
        self.notice.show(wording.failure(failure.failure).text + hint)

    async def action_stop(self) -> None:
        """Cancel the innermost running action."""
        chat = self.open_chats.shown
        if self.attachments.cancel_deferred():
            return
        if chat.conversation.queued is not None:
            await self._take_back(chat)
        elif self.open_chats.running is not None:
            self._cancel_on_start = True  # it may still be drawn before the engine is asked
            self.open_chats.cancel()
            self.notice.show("Stopping.")
        elif self.loader.cancel() or self.real_model.cancel():
            pass
        elif self.open_chats.committing is chat:
            self._cancel_on_start = True
            self.notice.show("Stopping.")
        elif self.composer.cancel_edit():
            self.show_state()
        else:
            self.composer.box.focus()

    async def _take_back(self, chat: OpenChat) -> None:
        """Put a queued question back into the composer, before what was typed since."""
        question = self.open_chats.unqueue(chat)
        if question is not None:
            await self._restore_draft(chat, question)

    async def _restore_draft(self, chat: OpenChat, question: Question) -> None:
        if chat is not self.open_chats.shown:
            chat.draft = chat.draft.prepend(question, chat.sent_attachments)
            self.open_chats.stash(chat)
            return
        # One update, so that every frame shows the question in one of its two places.
        with self.app.batch_update():
            await self.transcript.show_queued(None)
            draft = self.composer.draft.prepend(question, chat.sent_attachments)
            self.composer.show(draft, self.attachments.jobs(chat))
            self.set_next_mode(draft.next_mode)
            self.show_state()

    # -------------------------------------------------------------------------- the model pair

    @on(PairReady)
    def _pair_ready(self) -> None:
        self.attachments.count_for(self.loader.load.target)
        self.show_state()
        self.ask_queued()
        turn = self.real_model.pop_question()
        if turn is not None and not self.busy:
            self.ask_again(turn.question.mode, turn.question.keep, turn)

    @on(PairFailed)
    async def _pair_failed(self) -> None:
        self.show_state()
        await self._take_back(self.open_chats.shown)


def _hints_after(last: Turn) -> list[str]:
    """Key hints after an answer. An incomplete answer is more likely to be asked again."""
    if last.state is TurnState.DONE and not last.can_continue:
        return ["^R read in full"]
    return [*(["F4 continue"] if last.can_continue else []), "^A again", "^R read in full"]


def _why_ended(last: Turn | None) -> str:
    if last is None:
        return "nothing has been asked yet"
    if last.state is TurnState.DONE:
        return "the last answer is complete"
    return "the last answer is empty. ^A asks again, ^R asks again and reads in full"

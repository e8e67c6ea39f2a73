"""Draws the state of the chat in its widgets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from textual.app import App

from app.chat.conversation import Question, Turn
from app.ui.background import start_task
from app.ui.chat.attachments import AttachmentReader
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.keep_preview import KeepPreview
from app.ui.chat.widgets import ChatWidgets
from app.ui.state.asking import Readiness
from app.ui.state.draft import NextMode
from app.ui.state.repository import OpenChat


class ChatView:
    def __init__(
        self,
        widgets: ChatWidgets,
        readiness: Readiness,
        attachments: AttachmentReader,
        keep_preview: KeepPreview,
        cost_estimate: CostEstimate,
    ) -> None:
        self.transcript, self.composer = widgets.transcript, widgets.composer
        self.attachments, self.keep_preview = attachments, keep_preview
        self.open_chats = readiness.open_chats
        self._widgets, self._readiness = widgets, readiness
        self._cost_estimate = cost_estimate

    @property
    def app(self) -> App[Any]:
        return self.composer.app

    @property
    def next_mode(self) -> NextMode:
        return self.composer.draft.next_mode

    # -------------------------------------------------------------------------- around it

    def say(self, sentence: str) -> None:
        """Show a notice; an empty one hides it."""
        self.composer.notice.show(sentence)

    def run(self, task: Callable[[], Awaitable[None]]) -> None:
        start_task(self.composer, task)

    def set_next_mode(self, next_mode: NextMode) -> None:
        """Choose how the next message is read."""
        self.composer.show_next_mode(next_mode)
        self.open_chats.shown.draft = self.composer.draft
        self._show_next_message()

    def show_state(self) -> None:
        """Show the keys that work now, how the next message is read, and the title."""
        widgets, chat = self._widgets, self.open_chats.shown
        keys, selected = self._readiness.keys(), self.transcript.selected
        if self.composer.slider.display:  # which shows its own keys
            keys = ["F1 keys"]
        elif selected is not None:
            branch = chat.conversation.branch
            keys = selected.hints(bool(branch) and selected.turn is branch[-1])
        widgets.footer.hints, widgets.footer.hides_mode = keys, selected is not None
        self._show_next_message()
        widgets.sidebar.update_list(chat.id)
        widgets.header.title = chat.title
        widgets.header.status = self.open_chats.repository.status

    def show_meter(self) -> None:
        self._widgets.footer.meter = self._cost_estimate.meter()

    def _show_next_message(self) -> None:
        self._widgets.footer.next_mode = self.next_mode
        self.show_meter()

    # -------------------------------------------------------------------------- asking

    def clear_sent(self, typed: str, next_mode: NextMode) -> None:
        self.composer.clear_sent(typed)
        self.set_next_mode(next_mode)

    def edit(self, turn: Turn) -> None:
        """Edit the question of a turn in the text box."""
        self.composer.edit(turn)
        self.set_next_mode(self.next_mode)

    def end_edit(self) -> None:
        self.composer.cancel_edit()
        self.set_next_mode(self.next_mode)

    def resume_edit(self, turn: Turn) -> None:
        self.composer.resume_edit(turn)

    async def put_back(self, question: Question, chat: OpenChat) -> None:
        # One update, so that every frame shows the question in one of its two places.
        with self.app.batch_update():
            await self.transcript.show_queued(None)
            draft = self.composer.draft.prepend(question, chat.sent_attachments)
            self.composer.show(draft, self.attachments.jobs(chat))
            self.set_next_mode(draft.next_mode)
            self.show_state()

    def begin_turn(self, typed: bool) -> None:
        if not typed:
            self.composer.box.focus()
        self.keep_preview.end()

    async def show_queued(self, question: Question, committing: bool = False) -> None:
        await self.transcript.show_queued(question, committing)

    async def add_turn(self, turn: Turn) -> None:
        await self.transcript.show_queued(None)
        await self.transcript.add_turn(turn)
        self.attachments.changed.check()

    async def show_end(self) -> None:
        """Show the end of a turn."""
        self.say("")
        await self.transcript.show_branch()
        self.keep_preview.on_finished()

    # -------------------------------------------------------------------------- what is shown

    async def show_branch(self) -> None:
        await self.transcript.show_branch()

    async def show_chat(self, chat: OpenChat) -> None:
        """Show another conversation."""
        async with self.open_chats.draw_lock:
            self.keep_preview.end()
            self.open_chats.shown = chat
            self.composer.show(chat.draft, self.attachments.jobs(chat))
            self.composer.box.set_history(t.question.text for t in chat.conversation.branch)
            self.set_next_mode(chat.draft.next_mode)
            self.say("")
            self.transcript.banner.show_guide()
            await self.transcript.show(chat)
        self.show_state()
        self.composer.chips.offer(())
        self.attachments.changed.check(at_once=True)

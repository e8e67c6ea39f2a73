"""Which conversation is on the screen, from the start on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.conversation import TurnState
from app.errors import UserError
from app.protocol.commands import CachePolicy, DropConversation, PruneSnapshots
from app.store.records import DocumentHit
from app.ui.background import start_task
from app.ui.chat.attachments import Attachments
from app.ui.chat.context import ChatContext
from app.ui.chat.keep_preview import KeepPreview
from app.ui.chat.message_actions import MessageActions
from app.ui.chat.question_edit import QuestionEdit
from app.ui.state.repository import OpenChat

if TYPE_CHECKING:
    from app.ui.conversations.screen import ChosenConversation


class Navigation:
    """An answer continues while another conversation is on the screen."""

    def __init__(
        self,
        context: ChatContext,
        attachments: Attachments,
        edit: QuestionEdit,
        keep_preview: KeepPreview,
        actions: MessageActions,
        snapshots: Path | None,
        costs: Path | None,
        startup_message: str,
    ) -> None:
        self._attachments, self._edit = attachments, edit
        self._keep_preview, self._actions = keep_preview, actions
        self._context, self._open_chats = context, context.open_chats
        self._repository = context.open_chats.repository
        self._snapshots = None if snapshots is None else str(snapshots)
        self._costs = None if costs is None else str(costs)
        self._startup_message = startup_message
        self._cache_policy = CachePolicy()
        self._trashed: set[int] = set()
        self._discard_candidate: OpenChat | None = None

    async def open_store(self, problem: str, new: bool = False) -> None:
        """Open the conversation where the user was, or a `new` one, and show `problem` there. What
        was typed during loading stays as a draft, and is asked only if that conversation is new."""
        context, early = self._context, self._open_chats.shown
        opened = await self._repository.open(context.next_mode)
        if new and opened.id is not None:
            opened = await self._repository.load_chat(None, context.default_mode)
        self._prune_snapshots()
        self.apply_cache_policy()
        early.draft, messages = context.composer.draft, [self._startup_message, problem]
        question = self._open_chats.unqueue(early)
        if question is not None and opened.conversation.turns:
            early.draft = early.draft.prepend(question, early.sent_attachments)
            messages.append("Not asked yet: this conversation was still being opened.")
        elif question is not None:
            opened.sent_attachments = early.sent_attachments
            self._open_chats.enqueue(opened, question)
        opened.draft = opened.draft.append(early.draft.text, early.draft.attached)
        if self._repository.open_error is not None:
            messages.append(f"{self._repository.open_error} Nothing will be saved.")
        messages += self._repository.unread_notices()
        last = opened.conversation.last
        unanswered = TurnState.STOPPED, TurnState.FAILED
        if self._startup_message and last is not None and last.state in unanswered:
            continues = "F4 continues the last answer, " if last.can_continue else ""
            messages.append(f"{continues}^A asks the last question again, ^R reads it all.")
        self._attachments.reassign(early, opened)
        await self._show(opened)
        context.notice.show(" ".join(filter(None, messages)))

    def _prune_snapshots(self) -> None:
        """Delete what was saved of conversations that are gone or in the trash: a program that was
        killed has not. Before any question, which might start from one of them."""
        stored = self._repository.stored
        if self._snapshots is not None and self._repository.writable and stored is not None:
            self._context.engine.send(PruneSnapshots(self._snapshots, stored))

    def apply_cache_policy(self) -> None:
        """Tell the engine how to cache and save what it has read, if that has changed."""
        snapshots = self._snapshots if self._repository.writable else None
        policy = self._context.settings.cache_policy(snapshots, self._costs)
        if policy != self._cache_policy and not self._repository.opening:
            self._cache_policy = policy
            self._context.engine.send(policy)

    def open_chat(
        self, id: int | None, message: int | None = None, document: DocumentHit | None = None
    ) -> None:
        """Show a conversation, a message in it and a place in a document of that, or (None) a new
        conversation. What is typed before it is there is typed into it."""
        self._context.composer.box.hold()
        start_task(self._context.screen, lambda: self._open_chat(id, message, document))

    async def _open_chat(
        self, id: int | None, message: int | None, document: DocumentHit | None
    ) -> None:
        try:
            await self._load_and_show(id, message, document)
        finally:
            self._context.composer.box.release()

    async def _load_and_show(
        self, id: int | None, message: int | None, document: DocumentHit | None
    ) -> None:
        self._edit.cancel()
        chat = None if id is None else self._open_chats.get(id)
        if chat is None:
            try:
                chat = await self._repository.load_chat(id, self._context.default_mode)
            except UserError as error:
                self._context.notice.show(str(error))
                return
        self._open_chats.shown.draft = self._context.composer.draft
        self._open_chats.stash(self._open_chats.shown)
        await self._show(chat)
        if message is not None:
            self._actions.open_message(message, document)

    async def _show(self, chat: OpenChat) -> None:
        context = self._context
        async with context.draw_lock:
            self._keep_preview.end()
            self._open_chats.shown = chat
            context.composer.show(chat.draft, self._attachments.jobs(chat))
            context.composer.box.set_history(t.question.text for t in chat.conversation.branch)
            context.set_next_mode(chat.draft.next_mode)
            context.notice.show("")
            context.transcript.banner.show_guide()
            await context.transcript.show(chat)
        context.refresh()

    def new_chat(self) -> None:
        """Start a new conversation; ask first if this one would be lost."""
        chat = self._open_chats.shown
        if self._repository.opening or not (chat.conversation.turns or chat.conversation.queued):
            self._context.composer.box.focus()
        elif (
            chat.id is None
            and not self._repository.writable
            and self._discard_candidate is not chat
        ):
            self._discard_candidate = chat
            self._context.notice.show(
                "This conversation is not saved. Press ^N again to discard it."
            )
        else:
            if chat is self._discard_candidate:
                self._cancel(chat)
            self.open_chat(None)

    def show_list(self) -> None:
        if not self._repository.readable:
            opening = self._repository.opening
            reason = "Opening the conversations…" if opening else "Nothing is saved here."
            self._context.notice.show(reason)
            return
        from app.ui.conversations.screen import ConversationsScreen

        shown, statuses = self._open_chats.shown.id, self._open_chats.statuses
        screen = ConversationsScreen(self._repository, shown, statuses, self._on_trashed)
        self._context.screen.app.push_screen(screen, self._on_list_closed)

    def _on_list_closed(self, chosen: ChosenConversation | None) -> None:
        self.drop_trashed_caches()
        if chosen is not None and (chosen.id is None or chosen.id != self._open_chats.shown.id):
            self.open_chat(chosen.id, chosen.message, chosen.document)
        elif chosen is not None and chosen.message is not None:
            self._actions.open_message(chosen.message, chosen.document)
        start_task(self._context.screen, self._read_titles)

    async def _read_titles(self) -> None:
        """Conversations may have been renamed in the list."""
        try:
            stored = await self._repository.read(lambda store: store.conversations())
        except UserError:  # shown where it matters
            return
        titles = {each.id: each.title for each in stored}
        for chat in self._open_chats.all_open():
            chat.title = titles.get(chat.id or 0, chat.title)
        self._context.refresh()

    def _on_trashed(self, id: int, trashed: bool) -> None:
        """A conversation was moved to the trash, or restored."""
        if not trashed:
            self._trashed.discard(id)
            return
        self._trashed.add(id)
        chat = self._open_chats.get(id)
        if chat is not None:
            self._cancel(chat)
        if self._open_chats.shown.id == id:
            self.open_chat(None)

    def _cancel(self, chat: OpenChat) -> None:
        question = self._open_chats.unqueue(chat)
        if question is not None:
            chat.draft = chat.draft.prepend(question, chat.sent_attachments)
        if self._open_chats.answering is chat:
            self._open_chats.cancel()

    def drop_trashed_caches(self) -> None:
        """Drop the caches of trashed conversations, once deleting them cannot be undone here."""
        for id in self._trashed:
            self._context.engine.send(DropConversation(str(id), self._snapshots))
        self._trashed.clear()

"""Which conversation is on the screen: at the start, and when the user goes to another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.conversation import TurnState
from app.errors import UserError
from app.protocol.commands import CachePolicy, Cancel, DropConversation
from app.ui.state.repository import OpenChat

if TYPE_CHECKING:
    from app.ui.chat.screen import ChatScreen
    from app.ui.conversations.screen import ChosenConversation


class Navigation:
    """An answer goes on while another conversation is on the screen."""

    def __init__(
        self, screen: ChatScreen, snapshots: Path | None, costs: Path | None, news: str
    ) -> None:
        self._screen, self._desk, self._shelf = (
            screen,
            screen.open_chats,
            screen.open_chats.repository,
        )
        self._snapshots = None if snapshots is None else str(snapshots)
        self._costs = None if costs is None else str(costs)
        self._startup_message = news
        self._cache_policy = CachePolicy()
        self._trashed: set[int] = set()
        self._discard_candidate: OpenChat | None = None

    async def open_store(self, problem: str) -> None:
        """Go to where the user was, and say `problem` there. What was typed meanwhile stays, and is
        not asked of what was not yet to be seen."""
        screen, early = self._screen, self._desk.shown
        opened = await self._shelf.open(screen.next_mode)
        self.apply_cache_policy()
        early.draft, said = screen.composer.draft, [self._startup_message, problem]
        question = self._desk.unqueue(early)
        if question is not None and opened.conversation.turns:
            early.draft = early.draft.prepend(question, early.sent_attachments)
            said.append("Not asked yet, since this conversation was being opened.")
        elif question is not None:
            opened.sent_attachments = early.sent_attachments
            self._desk.enqueue(opened, question)
        opened.draft = opened.draft.append(early.draft.text, early.draft.attached)
        if self._shelf.open_error is not None:
            said.append(f"{self._shelf.open_error} Nothing is kept this time.")
        said += self._shelf.unread_notices()
        last = opened.conversation.last
        if self._startup_message and last is not None and last.state is TurnState.STOPPED:
            said.append("^R asks the last question again, in full.")
        screen.attachments.reassign(early, opened)
        await self._show(opened)
        screen.notice.show(" ".join(filter(None, said)))

    def apply_cache_policy(self) -> None:
        """Tell the engine what becomes of what was read, unless it knows."""
        snapshots = self._snapshots if self._shelf.writable else None
        upkeep = self._screen.settings.cache_policy(snapshots, self._costs)
        if upkeep != self._cache_policy and not self._shelf.opening:
            self._cache_policy = upkeep
            self._screen.engine.send(upkeep)

    async def open_chat(self, id: int | None, message: int | None = None) -> None:
        """Go to a conversation, there perhaps to a message, or to a new conversation."""
        self._screen.actions.cancel_edit()
        chat = None if id is None else self._desk.get(id)
        if chat is None:
            try:
                chat = await self._shelf.load_chat(id, self._screen.default_mode)
            except UserError as error:
                self._screen.notice.show(str(error))
                return
        self._desk.shown.draft = self._screen.composer.draft
        self._desk.stash(self._desk.shown)
        await self._show(chat)
        if message is not None:
            self._screen.actions.open_message(message)

    async def _show(self, chat: OpenChat) -> None:
        screen = self._screen
        async with screen.drawing:
            screen.keep_preview.end()
            self._desk.shown = chat
            screen.composer.show(chat.draft, screen.attachments.jobs(chat))
            screen.composer.box.set_history(t.question.text for t in chat.conversation.branch)
            screen.set_next_mode(chat.draft.next_mode)
            screen.notice.show("")
            screen.transcript.banner.show_guide()
            await screen.transcript.show(chat)
        screen.show_hints()

    def new_chat(self) -> None:
        """Go to a new conversation; ask first where that forgets this one."""
        chat = self._desk.shown
        if self._shelf.opening or not (chat.conversation.turns or chat.conversation.queued):
            self._screen.composer.box.focus()
        elif chat.id is None and not self._shelf.writable and self._discard_candidate is not chat:
            self._discard_candidate = chat
            self._screen.notice.show("This conversation is not kept: ^N once more forgets it.")
        else:
            if chat is self._discard_candidate:
                self._cancel(chat)
            self._screen.run_worker(self.open_chat(None))

    def show_list(self) -> None:
        if not self._shelf.readable:
            opening = self._shelf.opening
            words = "The conversations are being opened." if opening else "Nothing is kept here."
            self._screen.notice.show(words)
            return
        from app.ui.conversations.screen import ConversationsScreen

        shown, statuses = self._desk.shown.id, self._desk.statuses
        screen = ConversationsScreen(self._shelf, shown, statuses, self._on_trashed)
        self._screen.app.push_screen(screen, self._on_list_closed)

    def _on_list_closed(self, chosen: ChosenConversation | None) -> None:
        self.drop_trashed_caches()
        if chosen is not None and (chosen.id is None or chosen.id != self._desk.shown.id):
            self._screen.run_worker(self.open_chat(chosen.id, chosen.message))
        elif chosen is not None and chosen.message is not None:
            self._screen.actions.open_message(chosen.message)
        self._screen.run_worker(self._read_titles())

    async def _read_titles(self) -> None:
        """They may have been renamed."""
        try:
            every = await self._shelf.read(lambda store: store.conversations())
        except UserError:  # said where it matters
            return
        titles = {each.id: each.title for each in every}
        for chat in self._desk.all_open():
            chat.title = titles.get(chat.id or 0, chat.title)
        self._screen.show_hints()

    def _on_trashed(self, id: int, trashed: bool) -> None:
        """A conversation went into the trash, or came back."""
        if not trashed:
            self._trashed.discard(id)
            return
        self._trashed.add(id)
        chat = self._desk.get(id)
        if chat is not None:
            self._cancel(chat)
        if self._desk.shown.id == id:
            self._screen.run_worker(self.open_chat(None))

    def _cancel(self, chat: OpenChat) -> None:
        question = self._desk.unqueue(chat)
        if question is not None:
            chat.draft = chat.draft.prepend(question, chat.sent_attachments)
        if self._desk.answering is chat and self._desk.last_sent is not None:
            self._screen.engine.send(Cancel(self._desk.last_sent.turn.number))

    def drop_trashed_caches(self) -> None:
        """What was read of them goes only now that their deletion cannot be undone at once."""
        for id in self._trashed:
            self._screen.engine.send(DropConversation(str(id)))
        self._trashed.clear()

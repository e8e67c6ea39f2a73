"""Which conversation is on the screen: at the start, and when the user goes to another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.conversation import TurnState
from app.errors import UserError
from app.protocol.commands import Cancel, Forget, Upkeep
from app.ui.state.repository import OpenChat

if TYPE_CHECKING:
    from app.ui.chat.screen import ChatScreen
    from app.ui.conversations.screen import Chosen


class Switching:
    """An answer goes on while another conversation is on the screen."""

    def __init__(
        self, screen: ChatScreen, snapshots: Path | None, costs: Path | None, news: str
    ) -> None:
        self._screen, self._desk, self._shelf = screen, screen.desk, screen.desk.shelf
        self._snapshots = None if snapshots is None else str(snapshots)
        self._costs = None if costs is None else str(costs)
        self._news = news
        self._upkeep = Upkeep()
        self._trashed: set[int] = set()
        self._would_forget: OpenChat | None = None

    async def open_store(self, problem: str) -> None:
        """Go to where the user was, and say `problem` there. What was typed meanwhile stays, and is
        not asked of what was not yet to be seen."""
        screen, early = self._screen, self._desk.shown
        opened = await self._shelf.open(screen.next_mode)
        self.look_after()
        early.draft, said = screen.entry.draft, [self._news, problem]
        question = self._desk.take_back(early)
        if question is not None and opened.conversation.turns:
            early.draft = early.draft.behind(question, early.sent)
            said.append("Not asked yet, since this conversation was being opened.")
        elif question is not None:
            opened.sent = early.sent
            self._desk.queue(opened, question)
        opened.draft = opened.draft.before(early.draft.text, early.draft.attached)
        if self._shelf.refusal is not None:
            said.append(f"{self._shelf.refusal} Nothing is kept this time.")
        said += self._shelf.news()
        last = opened.conversation.last
        if self._news and last is not None and last.state is TurnState.STOPPED:
            said.append("^R asks the last question again, in full.")
        screen.attaching.move(early, opened)
        await self._show(opened)
        screen.notice.say(" ".join(filter(None, said)))

    def look_after(self) -> None:
        """Tell the engine what becomes of what was read, unless it knows."""
        snapshots = self._snapshots if self._shelf.keeps else None
        upkeep = self._screen.settings.upkeep(snapshots, self._costs)
        if upkeep != self._upkeep and not self._shelf.opening:
            self._upkeep = upkeep
            self._screen.engine.send(upkeep)

    async def switch(self, id: int | None, message: int | None = None) -> None:
        """Go to a conversation, there perhaps to a message, or to a new conversation."""
        self._screen.acting.give_up()
        chat = None if id is None else self._desk.find(id)
        if chat is None:
            try:
                chat = await self._shelf.read(id, self._screen.default_next)
            except UserError as error:
                self._screen.notice.say(str(error))
                return
        self._desk.shown.draft = self._screen.entry.draft
        self._desk.leave(self._desk.shown)
        await self._show(chat)
        if message is not None:
            self._screen.acting.show_message(message)

    async def _show(self, chat: OpenChat) -> None:
        screen = self._screen
        async with screen.drawing:
            screen.trying.end()
            self._desk.shown = chat
            screen.entry.show(chat.draft, screen.attaching.readings(chat))
            screen.entry.box.remember_only(t.question.text for t in chat.conversation.branch)
            screen.set_next(chat.draft.next_mode)
            screen.notice.say("")
            screen.transcript.opening.show_guide()
            await screen.transcript.show(chat)
        screen.show_hints()

    def new(self) -> None:
        """Go to a new conversation; ask first where that forgets this one."""
        chat = self._desk.shown
        if self._shelf.opening or not (chat.conversation.turns or chat.conversation.queued):
            self._screen.entry.box.focus()
        elif chat.id is None and not self._shelf.keeps and self._would_forget is not chat:
            self._would_forget = chat
            self._screen.notice.say("This conversation is not kept: ^N once more forgets it.")
        else:
            if chat is self._would_forget:
                self._cancel(chat)
            self._screen.run_worker(self.switch(None))

    def show_list(self) -> None:
        if not self._shelf.readable:
            opening = self._shelf.opening
            words = "The conversations are being opened." if opening else "Nothing is kept here."
            self._screen.notice.say(words)
            return
        from app.ui.conversations.screen import ConversationsScreen

        shown, statuses = self._desk.shown.id, self._desk.statuses
        screen = ConversationsScreen(self._shelf, shown, statuses, self._in_trash)
        self._screen.app.push_screen(screen, self._list_left)

    def _list_left(self, chosen: Chosen | None) -> None:
        self.forget_trashed()
        if chosen is not None and (chosen.id is None or chosen.id != self._desk.shown.id):
            self._screen.run_worker(self.switch(chosen.id, chosen.message))
        elif chosen is not None and chosen.message is not None:
            self._screen.acting.show_message(chosen.message)
        self._screen.run_worker(self._read_titles())

    async def _read_titles(self) -> None:
        """They may have been renamed."""
        try:
            every = await self._shelf.look(lambda store: store.conversations())
        except UserError:  # said where it matters
            return
        titles = {each.id: each.title for each in every}
        for chat in self._desk.open_chats():
            chat.title = titles.get(chat.id or 0, chat.title)
        self._screen.show_hints()

    def _in_trash(self, id: int, trashed: bool) -> None:
        """A conversation went into the trash, or came back."""
        if not trashed:
            self._trashed.discard(id)
            return
        self._trashed.add(id)
        chat = self._desk.find(id)
        if chat is not None:
            self._cancel(chat)
        if self._desk.shown.id == id:
            self._screen.run_worker(self.switch(None))

    def _cancel(self, chat: OpenChat) -> None:
        question = self._desk.take_back(chat)
        if question is not None:
            chat.draft = chat.draft.behind(question, chat.sent)
        if self._desk.answering is chat and self._desk.asked is not None:
            self._screen.engine.send(Cancel(self._desk.asked.turn.number))

    def forget_trashed(self) -> None:
        """What was read of them goes only now that their deletion cannot be undone at once."""
        for id in self._trashed:
            self._screen.engine.send(Forget(str(id)))
        self._trashed.clear()

"""Which conversation is on the screen: at the start, a new one, or one from the list."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from app.chat.conversation import TurnState
from app.errors import UserError
from app.settings.definitions import Settings
from app.settings.file import SettingsFile
from app.store.records import DocumentHit, KnownDocument, Overrides, StoreError
from app.ui.chat.message_actions import MessageActions
from app.ui.chat.view import ChatView
from app.ui.chat.welcome import show_welcome
from app.ui.completion import typed_path
from app.ui.start import Start
from app.ui.state.asking import OPENING, Asking
from app.ui.state.caches import EngineCaches
from app.ui.state.draft import NextMode, default_next_mode, next_mode_for
from app.ui.state.repository import OpenChat

if TYPE_CHECKING:
    from app.ui.conversations.screen import ChosenConversation

SYSTEM_PROMPT_CHANGED = (
    "The system prompt has changed: the next question reads the whole conversation again."
)


class Conversations:
    def __init__(
        self,
        view: ChatView,
        asking: Asking,
        messages: MessageActions,
        settings_file: SettingsFile,
        caches: EngineCaches,
    ) -> None:
        self._view, self._asking, self._messages = view, asking, messages
        self._settings_file, self._caches = settings_file, caches
        self._open_chats, self._repository = view.open_chats, view.open_chats.repository
        self._composer, self._attachments = view.composer, view.attachments
        self._discard_candidate: OpenChat | None = None

    @property
    def _default_mode(self) -> NextMode:
        """How messages are read if nothing was chosen for their conversation."""
        return default_next_mode(self._settings_file.settings)

    # -------------------------------------------------------------------------- the store

    async def open_store(self, start: Start) -> None:
        """Open the conversation where the user was, or a new one for files that are attached at
        the start. What was typed during loading stays as a draft, and is asked only if that
        conversation is new."""
        early, repository = self._open_chats.shown, self._repository
        opened = await repository.open(self._view.next_mode)
        if start.attached and opened.id is not None:
            opened = await repository.load_chat(None, self._default_mode)
        self._caches.prune()
        self._caches.apply_policy()
        early.draft = self._composer.draft
        messages = [start.startup_message, self._settings_file.problem]
        messages.append(self._asking.move_early(early, opened))
        if repository.open_error is not None:
            messages.append(f"{repository.open_error} Nothing will be saved.")
        messages += repository.unread_notices()
        last = opened.conversation.last
        unanswered = TurnState.STOPPED, TurnState.FAILED
        if start.startup_message and last is not None and last.state in unanswered:
            continues = "F4 continues the last answer, " if last.can_continue else ""
            messages.append(f"{continues}^A asks the last question again, ^R reads it in full.")
        self._attachments.reassign(early, opened)
        await self._view.show_chat(opened)
        if sentences := " ".join(filter(None, messages)):  # else keep the answer to an early key
            self._view.say(sentences)
        self.attach_paths(start)
        self._asking.ask_queued()
        if start.show_welcome and start.settings.is_new and repository.is_first_run:
            banner = self._view.transcript.banner
            await show_welcome(self._open_chats, self._composer, self._attachments, banner)

    def attach_paths(self, start: Start) -> None:
        for path in start.attached:
            self._attachments.attach(path, typed_path(path))

    def apply_settings(self, before: Settings) -> None:
        """The settings have changed from `before`: apply them, to open conversations too."""
        self._open_chats.apply_settings(self._settings_file.settings)
        self._caches.apply_policy()
        overrides = self._open_chats.shown.conversation.overrides
        if self._view.next_mode == next_mode_for(overrides, default_next_mode(before)):
            self._view.set_next_mode(next_mode_for(overrides, self._default_mode))

    # -------------------------------------------------------------------------- another one

    def open(self, id: int) -> None:
        if id != self._open_chats.shown.id:
            self._open(id)
        self._composer.box.focus()

    def _open(
        self, id: int | None, message: int | None = None, document: DocumentHit | None = None
    ) -> None:
        """Show a conversation, optionally at a message and a place in one of its documents, or
        (None) a new conversation. What is typed meanwhile goes into its text box."""
        self._composer.box.hold()

        async def open_chat() -> None:
            try:
                await self._load_and_show(id)
            finally:
                self._composer.box.release()
            if message is not None:
                self._messages.open_message(message, document)

        self._view.run(open_chat)

    async def _load_and_show(self, id: int | None) -> None:
        """Raises UserError."""
        self._composer.cancel_edit()
        chat = None if id is None else self._open_chats.get(id)
        if chat is None:
            chat = await self._repository.load_chat(id, self._default_mode)
        self._open_chats.shown.draft = self._composer.draft
        self._open_chats.stash(self._open_chats.shown)
        await self._view.show_chat(chat)

    def new(self) -> None:
        """Start a new conversation; ask first if this one would be lost."""
        chat, saved = self._open_chats.shown, self._repository.writable
        is_empty = not (chat.conversation.turns or chat.conversation.queued)
        if self._repository.opening or is_empty:
            self._composer.box.focus()
        elif chat.id is None and not saved and self._discard_candidate is not chat:
            self._discard_candidate = chat
            self._view.say("This conversation is not saved. Press ^N again to discard it.")
        else:
            if chat is self._discard_candidate:
                self._asking.abandon(chat)
            self._open(None)

    # -------------------------------------------------------------------------- the list

    def show_list(self) -> None:
        if not self._repository.readable:
            opening = self._repository.opening
            self._view.say(OPENING if opening else "Conversations are not being saved.")
            return
        from app.ui.conversations.screen import ConversationsScreen

        shown, statuses = self._open_chats.shown.id, self._open_chats.statuses
        screen = ConversationsScreen(self._repository, shown, statuses, self._on_trashed)
        self._view.app.push_screen(screen, self._on_list_closed)

    def _on_list_closed(self, chosen: ChosenConversation | None) -> None:
        self._caches.drop_trashed()
        if chosen is not None and chosen.attach is not None:
            self._ask_again_about(chosen.attach)
        elif chosen is not None and (chosen.id is None or chosen.id != self._open_chats.shown.id):
            self._open(chosen.id, chosen.message, chosen.document)
        elif chosen is not None and chosen.message is not None:
            self._messages.open_message(chosen.message, chosen.document)
        self._view.run(self._read_titles)

    def _ask_again_about(self, known: KnownDocument) -> None:
        """Attach a document of an earlier conversation to a new one."""
        self._composer.box.hold()

        async def attach() -> None:
            try:
                shown = self._open_chats.shown
                if shown.id is not None or shown.conversation.turns:
                    await self._load_and_show(None)
                try:
                    documents = await self._repository.known_document(known)
                except StoreError as error:
                    if not known.path:
                        raise
                    self._attachments.attach(known.path, typed_path(known.path))
                    self._view.say(f"{error.problem}, so the file is read again.")
                    return
            finally:
                self._composer.box.release()
            await self._attachments.attach_again(documents)

        self._view.run(attach)

    async def _read_titles(self) -> None:
        """Conversations may have been renamed in the list."""
        try:
            stored = await self._repository.read(lambda store: store.conversations())
        except UserError:  # shown where it matters
            return
        titles = {each.id: each.title for each in stored}
        for chat in self._open_chats.all_open():
            chat.title = titles.get(chat.id or 0, chat.title)
        self._view.show_state()

    def _on_trashed(self, id: int, trashed: bool) -> None:
        """A conversation was moved to the trash, or restored."""
        self._caches.on_trashed(id, trashed)
        if not trashed:
            return
        chat = self._open_chats.get(id)
        if chat is not None:
            self._asking.abandon(chat)
        if self._open_chats.shown.id == id:
            self._open(None)

    # -------------------------------------------------------------------------- its settings

    def show_settings(self) -> None:
        # Imported here, so that the first frame does not wait for it.
        from app.ui.settings.conversation_screen import ConversationSettingsScreen

        if self._repository.opening:
            self._view.say(OPENING)
            return
        chat, settings = self._open_chats.shown, self._settings_file.settings
        screen = ConversationSettingsScreen(chat.title, chat.conversation, settings)
        self._view.app.push_screen(screen, partial(self._settings_closed, chat))

    def _settings_closed(self, chat: OpenChat, overrides: Overrides | None) -> None:
        if overrides is not None and overrides != chat.conversation.overrides:
            self._view.run(lambda: self._apply_overrides(chat, overrides))

    async def _apply_overrides(self, chat: OpenChat, overrides: Overrides) -> None:
        """Raises UserError."""
        conversation = chat.conversation
        before, prompt = conversation.overrides, conversation.system_prompt
        await self._repository.set_overrides(chat, overrides)
        if chat is not self._open_chats.shown:
            return
        after = next_mode_for(overrides, self._default_mode)
        if after != next_mode_for(before, self._default_mode):
            self._view.set_next_mode(after)
        if conversation.turns and conversation.system_prompt != prompt:
            self._view.say(SYSTEM_PROMPT_CHANGED)
        self._view.show_state()

"""What is set for the conversation on the screen alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from app.errors import UserError
from app.sessions.records import Overrides
from app.ui.keep.next_mode import next_mode_for
from app.ui.state.repository import OpenChat

if TYPE_CHECKING:
    from app.ui.chat.screen import ChatScreen

SYSTEM_PROMPT_CHANGED = (
    "The system prompt stands before everything, so what was read is read again with the next"
    " question."
)


class ConversationSettings:
    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def open(self) -> None:
        from app.ui.settings.conversation_screen import (
            ConversationSettingsScreen,  # here: the first drawing waits for no other
        )

        if self._screen.open_chats.repository.opening:
            self._screen.notice.show("The conversations are being opened.")
            return
        chat = self._screen.open_chats.shown
        own = ConversationSettingsScreen(chat.title, chat.conversation, self._screen.settings)
        self._screen.app.push_screen(own, partial(self._closed, chat))

    def _closed(self, chat: OpenChat, choices: Overrides | None) -> None:
        if choices is not None and choices != chat.conversation.overrides:
            self._screen.run_worker(self._choose(chat, choices))

    async def _choose(self, chat: OpenChat, choices: Overrides) -> None:
        screen, before = self._screen, chat.conversation.overrides
        prompt = chat.conversation.system_prompt
        try:
            await screen.open_chats.repository.set_overrides(chat, choices)
        except UserError as error:
            screen.notice.show(str(error))
            return
        if chat is not screen.open_chats.shown:
            return
        after = next_mode_for(choices, screen.default_mode)
        if after != next_mode_for(before, screen.default_mode):
            screen.set_next_mode(after)
        if chat.conversation.turns and chat.conversation.system_prompt != prompt:
            screen.notice.show(SYSTEM_PROMPT_CHANGED)
        screen.show_hints()

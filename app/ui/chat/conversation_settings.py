"""What is set for the conversation on the screen alone."""

from __future__ import annotations

from functools import partial

from app.errors import UserError
from app.sessions.records import Overrides
from app.ui.chat.context import ChatContext
from app.ui.keep.next_mode import next_mode_for
from app.ui.state.repository import OpenChat

SYSTEM_PROMPT_CHANGED = (
    "The system prompt stands before everything, so what was read is read again with the next"
    " question."
)


class ConversationSettings:
    def __init__(self, context: ChatContext) -> None:
        self._context = context

    def open(self) -> None:
        from app.ui.settings.conversation_screen import (
            ConversationSettingsScreen,  # here: the first drawing waits for no other
        )

        if self._context.open_chats.repository.opening:
            self._context.notice.show("The conversations are being opened.")
            return
        chat = self._context.open_chats.shown
        own = ConversationSettingsScreen(chat.title, chat.conversation, self._context.settings)
        self._context.screen.app.push_screen(own, partial(self._closed, chat))

    def _closed(self, chat: OpenChat, choices: Overrides | None) -> None:
        if choices is not None and choices != chat.conversation.overrides:
            self._context.screen.run_worker(self._choose(chat, choices))

    async def _choose(self, chat: OpenChat, choices: Overrides) -> None:
        context, before = self._context, chat.conversation.overrides
        prompt = chat.conversation.system_prompt
        try:
            await context.open_chats.repository.set_overrides(chat, choices)
        except UserError as error:
            context.notice.show(str(error))
            return
        if chat is not context.open_chats.shown:
            return
        after = next_mode_for(choices, context.default_mode)
        if after != next_mode_for(before, context.default_mode):
            context.set_next_mode(after)
        if chat.conversation.turns and chat.conversation.system_prompt != prompt:
            context.notice.show(SYSTEM_PROMPT_CHANGED)
        context.refresh()

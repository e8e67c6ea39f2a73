"""Opens the settings of the conversation on the screen and applies them."""

from __future__ import annotations

from functools import partial

from app.errors import UserError
from app.store.records import Overrides
from app.ui.background import start_task
from app.ui.chat.context import ChatContext
from app.ui.state.draft import next_mode_for
from app.ui.state.repository import OpenChat

SYSTEM_PROMPT_CHANGED = (
    "The system prompt comes first, so the conversation will be read again with the next question."
)


class ConversationSettings:
    def __init__(self, context: ChatContext) -> None:
        self._context = context

    def open(self) -> None:
        # Imported here, so that the first frame does not wait for it.
        from app.ui.settings.conversation_screen import ConversationSettingsScreen

        if self._context.open_chats.repository.opening:
            self._context.notice.show("Opening the conversations…")
            return
        chat = self._context.open_chats.shown
        screen = ConversationSettingsScreen(chat.title, chat.conversation, self._context.settings)
        self._context.screen.app.push_screen(screen, partial(self._closed, chat))

    def _closed(self, chat: OpenChat, overrides: Overrides | None) -> None:
        if overrides is not None and overrides != chat.conversation.overrides:
            start_task(self._context.screen, lambda: self._apply(chat, overrides))

    async def _apply(self, chat: OpenChat, overrides: Overrides) -> None:
        context, before = self._context, chat.conversation.overrides
        prompt = chat.conversation.system_prompt
        try:
            await context.open_chats.repository.set_overrides(chat, overrides)
        except UserError as error:
            context.notice.show(str(error))
            return
        if chat is not context.open_chats.shown:
            return
        after = next_mode_for(overrides, context.default_mode)
        if after != next_mode_for(before, context.default_mode):
            context.set_next_mode(after)
        if chat.conversation.turns and chat.conversation.system_prompt != prompt:
            context.notice.show(SYSTEM_PROMPT_CHANGED)
        context.refresh()

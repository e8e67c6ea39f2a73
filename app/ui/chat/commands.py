"""The commands that can be typed after a `/` or found in the palette: every binding of the chat, of
the widgets in it, and of the screens that it opens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from textual.screen import Screen

from app.ui.attach.chips import Chip
from app.ui.chat.composer import ComposeBox
from app.ui.chat.slider import KeepSlider
from app.ui.chat.view import ChatView
from app.ui.completion import ActsAtOnce, Owner
from app.ui.transcript.message import MessageView


class ChatCommands:
    def __init__(self, view: ChatView) -> None:
        self._view = view

    def owners(self, screen: Screen[Any]) -> Iterator[Owner]:
        """`screen` is that of the chat."""
        from app.ui.conversations.screen import ConversationsScreen
        from app.ui.models.screen import ModelsScreen
        from app.ui.spans.screen import SpansScreen

        app = screen.app
        yield Owner("box", ComposeBox, self._run_on_box)
        yield Owner("chat", type(screen), screen.run_action)
        yield Owner("app", type(app), app.run_action)
        yield Owner("message", MessageView, self._run_on_message)
        yield Owner("attached", Chip, self._run_on_chip)
        yield Owner("keep", KeepSlider, self._run_on_slider, "^G", "Keep")
        for prefix, title, kind, key, action in (
            ("conversations", "Conversation", ConversationsScreen, "^O", "screen.conversations"),
            ("spans", "What was read", SpansScreen, "^S", "screen.show_spans"),
            ("models", "Models", ModelsScreen, "^L", "app.models"),
        ):
            run = partial(self._run_on_screen, screen, kind, action)
            yield Owner(prefix, kind, run, key, title)

    async def _run_on_box(self, action: str) -> None:
        box = self._view.composer.box
        box.focus()
        await box.run_action(action)

    async def _run_on_message(self, action: str) -> None:
        """Run an action on the selected message, or else the last answer."""
        transcript = self._view.transcript
        message = transcript.selected or next(reversed(transcript.messages), None)
        if message is None:
            self._view.say("Nothing has been asked yet.")
        else:
            await message.run_action(action)

    async def _run_on_chip(self, action: str) -> None:
        """Run an action on the last chip; reading again, on the first one that has changed."""
        chips = [*self._view.composer.chips.query(Chip)]
        if action == "read_again":
            if not await self._view.attachments.read_changed():
                self._view.say("No attached file has changed.")
        elif chips:
            await chips[-1].run_action(action)
        else:
            self._view.say("Nothing is attached.")

    async def _run_on_slider(self, action: str) -> None:
        self._view.keep_preview.open_slider(self._view.next_mode.keep)
        await self._view.composer.slider.run_action(action)

    async def _run_on_screen(
        self, chat: Screen[Any], kind: type[Screen[Any]], opens: str, action: str
    ) -> None:
        """Open a screen, and act there if that is safe. Runs in a task of its own, because the new
        screen may wait for this one."""

        async def act() -> None:
            await chat.run_action(opens)
            screen = chat.app.screen
            if not isinstance(screen, kind):  # a notice says why
                return
            if isinstance(screen, ActsAtOnce) and await screen.has_chosen():
                await screen.run_action(action)

        self._view.run(act)

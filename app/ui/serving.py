"""The server for other programs: F5 starts and stops it, and requests that it has answered may be
saved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from textual.app import App
from textual.message import Message

from app.errors import UserError
from app.extras import SERVE
from app.protocol.commands import Ask
from app.protocol.engine import LocalServer
from app.protocol.events import Event
from app.ui.background import start_task
from app.ui.chat.screen import ChatScreen
from app.ui.start import Start

_log = logging.getLogger(__name__)


class Answered(Message):
    """A request of another program has been answered."""

    def __init__(self, ask: Ask, events: Sequence[Event]) -> None:
        super().__init__()
        self.ask, self.events = ask, events


class Serving:
    def __init__(self, app: App[Any], start: Start, chat: ChatScreen) -> None:
        """The app gets the messages."""
        self._app, self._chat = app, chat
        self._server, self._settings_file = start.server, start.settings
        if self._server is not None:
            self._server.report_answers(self._answered)

    def _answered(self, ask: Ask, events: Sequence[Event]) -> None:
        self._app.post_message(Answered(ask, events))

    def switch(self) -> None:
        """Start the server, or stop it if it runs."""
        if (server := self._server) is None:
            self._chat.notice.show(str(SERVE.missing))
        else:
            start_task(self._app, lambda: self._switch(server), "server", exclusive=True)

    async def _switch(self, server: LocalServer) -> None:
        try:
            message = await asyncio.to_thread(server.switch)
        except UserError as error:
            message = str(error)
        self._chat.notice.show(message)

    def stop(self) -> None:
        """At exit. Waits at most a second."""
        if self._server is not None:
            self._server.stop()

    def save(self, request: Answered) -> None:
        """Save a request as a conversation, if the user wants that."""
        wanted = self._settings_file.settings.storage.save_requests
        if wanted and self._chat.open_chats.repository.writable:
            start_task(self._app, lambda: self._save(request))

    async def _save(self, request: Answered) -> None:
        chats = self._chat.open_chats
        try:
            await chats.repository.save_request(request.ask, request.events)
        except Exception as error:  # a bad request must not end the app
            _log.warning("A request could not be saved", exc_info=error)
            why = error if isinstance(error, UserError) else "See specchat.log."
            self._chat.notice.show(f"A request of another program was not saved: {why}")
        self._chat.widgets.sidebar.update_list(chats.shown.id)

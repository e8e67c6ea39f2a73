"""Settings that are changed while the app runs: applied at once, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual import constants
from textual.app import App

from app.settings.file import SettingsError, SettingsFile
from app.settings.schema import Setting, Value
from app.settings.values import Settings
from app.ui.chat.screen import ChatScreen


class LiveSettings:
    """The screen changes at once; the disk follows on a thread."""

    def __init__(self, app: App[Any], file: SettingsFile, chat: ChatScreen) -> None:
        self.file = file
        self.problem = file.problem
        """Why something is not as it was set or is not kept: a sentence, or nothing."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a value or `problem` changed."""
        self._app, self._chat = app, chat
        self._saving = False
        self._paint()

    @property
    def values(self) -> Settings:
        return self.file.settings

    def change(self, setting: Setting, value: Value) -> None:
        """Raises ValueError for one that it cannot have."""
        before = self.values
        self.file.set(setting, value)
        self._paint()
        self._chat.apply_settings(before)
        self.on_change()
        if not self._saving:
            self._saving = True
            self._app.run_worker(self._save())

    def save_now(self) -> str:
        """At the end of the program: keep what could not be kept before. Says why it cannot."""
        try:
            self.file.save()
        except SettingsError as error:
            return str(error)
        return ""

    def _paint(self) -> None:
        look = self.values.look
        if self._app.theme != look.theme:
            self._app.theme = str(look.theme)
        self._app.animation_level = constants.TEXTUAL_ANIMATIONS if look.animations else "none"

    async def _save(self) -> None:
        problem = ""
        while self.file.has_unsaved and not problem:
            try:
                await asyncio.to_thread(self.file.save)
            except SettingsError as error:
                problem = str(error)
        self._saving = False
        if problem or self.problem:
            self.problem = problem
            self._chat.notice.show(problem)
            self.on_change()

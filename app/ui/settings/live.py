"""Settings that are changed while the app runs: applied at once, and saved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual import constants
from textual.app import App

from app.settings.definitions import Setting, Settings, ThemeName, Value
from app.settings.file import SettingsError, SettingsFile
from app.ui.background import start_task


class LiveSettings:
    """A change is applied at once; it is saved on a thread. `apply` gets the settings before a
    change."""

    def __init__(
        self,
        app: App[Any],
        file: SettingsFile,
        apply: Callable[[Settings], None],
        show_message: Callable[[str], None],
    ) -> None:
        self.file = file
        self.problem = file.problem
        """Why a setting was not applied or not saved; empty if there is no problem."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a value or `problem` has changed."""
        self._app, self._apply, self._show_message = app, apply, show_message
        self._saving = False
        self._is_dark = True
        self._apply_appearance()

    @property
    def values(self) -> Settings:
        return self.file.settings

    def change(self, setting: Setting, value: Value) -> None:
        """Raises ValueError for a value that the setting cannot have."""
        before = self.values
        self.file.set(setting, value)
        self._apply_appearance()
        self._apply(before)
        self.on_change()
        if not self._saving:
            self._saving = True
            start_task(self._app, self._save)

    def set_background(self, is_dark: bool) -> None:
        """The terminal's background, for the theme `auto`."""
        self._is_dark = is_dark
        self._apply_appearance()

    def save_now(self) -> str:
        """At exit: try again to save what is not saved yet. Returns why it fails, or nothing."""
        try:
            self.file.save()
        except SettingsError as error:
            return str(error)
        return ""

    def _apply_appearance(self) -> None:
        appearance = self.values.appearance
        theme = appearance.theme
        if theme is ThemeName.AUTO:
            theme = ThemeName.SPECCHAT if self._is_dark else ThemeName.SPECCHAT_LIGHT
        if self._app.theme != theme:
            self._app.theme = str(theme)
        self._app.animation_level = (
            constants.TEXTUAL_ANIMATIONS if appearance.animations else "none"
        )

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
            self._show_message(problem)
            self.on_change()

"""The app with everything fixed that could make a picture another one: clock, calendar, home
folder, engine, figures and size."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Self
from unittest.mock import patch

from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from app.protocol.commands import Load
from app.protocol.events import Event
from app.settings.definitions import find
from app.settings.file import SettingsFile
from app.ui.app import SpecchatApp
from app.ui.start import Start
from tests.fakes import FakeEngine
from tests.ui import helpers
from tests.ui.pictures.svg import drawn

ALIKE = 3
"""Drawings in a row that must not differ before one is taken."""
KEY_SECONDS = 0.02
"""Between two keys: what a key scrolls to must not depend on how fast the next one comes."""
LIGHT = "specchat-light"
TARGET, DRAFT = "Qwen3-8B-4bit", "Qwen3-0.6B-4bit"


class Today(datetime):
    """Friday, 13 March 2026, ten to three, in whatever zone."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls(2026, 3, 13, 14, 50, tzinfo=tz)

    def astimezone(self, tz: tzinfo | None = None) -> Self:
        return super().astimezone(tz or UTC) if self.tzinfo else self.replace(tzinfo=tz or UTC)


@dataclass(frozen=True)
class Look:
    """How pictures are taken: how large, and in which colours."""

    name: str
    width: int
    height: int
    light: bool = False
    colour: bool = True


@dataclass
class Counted:
    """In the place of a tokenizer."""

    def count(self, texts: list[str], gone: Callable[[], bool]) -> int:
        return sum(len(text) for text in texts) // 4


@dataclass
class Stage:
    """Where a scene plays. `home` is an empty folder, in which the app is started."""

    look: Look
    home: Path
    pictures: dict[str, str] = field(default_factory=dict)
    now: float = 0.0
    """Seconds on the clock."""
    pilot: Pilot[None] = field(init=False)
    app: SpecchatApp = field(init=False)
    engine: FakeEngine = field(init=False)

    # -------------------------------------------------------------------------- the app

    @asynccontextmanager
    async def opened(
        self,
        engine: FakeEngine | None = None,
        *,
        news: str = "",
        show_welcome: bool = False,
        prepared: Callable[[SpecchatApp], None] = lambda app: None,
        tokens: bool = True,
    ) -> AsyncIterator[None]:
        """From its start to its proper end. What is kept lies in `home / "data"`."""
        self.engine, self.now = engine or FakeEngine(), 0.0
        self.engine.load_story = replace(self.engine.load_story, target=TARGET, draft=DRAFT)
        settings = SettingsFile(self.home / ".config" / "specchat" / "settings.toml")
        if self.look.light and settings.settings.appearance.theme == "auto":
            settings.settings = find("appearance.theme").with_value(settings.settings, LIGHT)
        self.app = SpecchatApp(
            Start(
                self.engine,
                Load("models/target", "models/draft", display_names=(TARGET, DRAFT)),
                settings=settings,
                clock=lambda: self.now,
                folder=self.home / "data",
                snapshots=self.home / "cache",
                startup_message=news,
                show_welcome=show_welcome,
            )
        )
        self.app.animation_level = "none"
        if tokens:
            self.app.chat.attachments.counts.counter = Counted()  # type: ignore[assignment]
        prepared(self.app)
        size = self.look.width, self.look.height
        async with AsyncExitStack() as stack:
            stack.callback(self.app.shutdown)
            self.pilot = await stack.enter_async_context(self.app.run_test(size=size))
            await self.until(lambda: not self.app.chat.open_chats.repository.opening, "the store")
            yield

    async def settle(self) -> str:
        """The picture of the screen, once it does not change any more."""
        before: list[list[object]] = []
        alike = 1
        while alike < ALIKE:
            self.app.chat._tick()  # what comes with time, now
            await self.pilot.pause(0.01)
            await self.pilot.pause()
            self._show_cursors()
            rows = self._rows()
            before, alike = rows, alike + 1 if rows == before else 1
        return drawn(before, self.app.size.width)

    def _show_cursors(self) -> None:
        """Those that blink could be caught at either moment."""
        for widget in self.app.screen.query("*"):
            if isinstance(widget, Input | TextArea):
                widget.cursor_blink = False
                widget._pause_blink(visible=widget.has_focus)

    def _rows(self) -> list[list[object]]:
        compositor = self.app.screen._compositor
        compositor.render_update(full=True, screen_stack=self.app._background_screens)
        return [list(strip.simplify()) for strip in compositor.render_strips()]

    async def take(self, name: str) -> None:
        """A picture of the screen as it is now."""
        assert name not in self.pictures, name
        self.pictures[name] = await self.settle()

    # -------------------------------------------------------------------------- playing

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        await helpers.until(self.pilot, condition, what)

    async def shown(self, *texts: str) -> None:
        await helpers.until_shown(self.pilot, *texts)

    async def gone(self, text: str) -> None:
        await helpers.until_gone(self.pilot, text)

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.pilot.pause(KEY_SECONDS)

    async def write(self, text: str) -> None:
        await helpers.type_in(self.pilot, text)

    async def paste(self, text: str) -> None:
        await helpers.paste(self.pilot, text)

    async def ask(self, question: str) -> None:
        await helpers.ask(self.pilot, self.engine, question)

    async def attach(self, path: str) -> None:
        self.app.chat.attachments.attach(str(self.home / path), f"@{path}")

    async def idle(self) -> None:
        """Nothing is answered any more."""
        await self.until(lambda: not self.app.chat.readiness.busy, "the end of the answer")

    def play(self, until: Callable[[Event], bool], seconds: float) -> None:
        """The engine goes on, and so many seconds pass."""
        self.engine.advance_to(until)
        self.now += seconds


@contextmanager
def fixed(look: Look, home: Path) -> Iterator[None]:
    """What is not the app's own, for as long as a scene plays."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    before = Path.cwd()
    environment = {"HOME": str(home), "TZ": "UTC"} | ({} if look.colour else {"NO_COLOR": "1"})
    with (
        patch.dict(os.environ, environment),
        patch("app.store.store.datetime", Today),
        patch("app.ui.conversations.screen.datetime", Today),
    ):
        if look.colour:
            os.environ.pop("NO_COLOR", None)
        os.chdir(home)
        try:
            yield
        finally:
            os.chdir(before)

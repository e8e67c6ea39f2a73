"""What the screen's tests share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from textual.events import Paste
from textual.pilot import Pilot

from app.protocol.commands import Load
from app.protocol.prompt import Document
from app.settings.file import SettingsFile
from app.store.records import StoreError
from app.store.store import Store
from app.ui.app import SpecchatApp
from app.ui.attach.attachment import make_attachment
from app.ui.chat.composer import ComposeBox
from app.ui.start import Start
from app.ui.terminal_input import PasteSafeParser
from tests.fakes import FakeEngine
from tests.patience import PATIENCE

WAIT_SECONDS = 20.0 * PATIENCE
SMALL = (80, 24)
DOCUMENT = "The quick brown fox jumps over the lazy dog.\n" * 2_276
"""100 KB of 2,276 lines: a paste that becomes a chip."""
LONG = "".join(f"line {number}\n" for number in range(1, 300))


def app_with(engine: FakeEngine, settings: SettingsFile | None = None, **more: Any) -> SpecchatApp:
    load = Load("models/target-model", "models/draft-model")
    return SpecchatApp(Start(engine, load, settings or SettingsFile(), **more))


@asynccontextmanager
async def started(
    engine: FakeEngine | None = None, size: tuple[int, int] = SMALL
) -> AsyncIterator[Pilot[None]]:
    """The app, once its models are loaded."""
    async with app_with(engine or FakeEngine()).run_test(size=size) as pilot:
        await until_shown(pilot, "ready")
        yield pilot


async def until(pilot: Pilot[None], condition: Callable[[], object], what: str = "") -> None:
    """Let the app run until `condition` holds, and look again more and more rarely."""
    deadline, pause = time.monotonic() + WAIT_SECONDS, 0.01
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never came: {what}\n{screen_text(pilot)}")
        await pilot.pause(pause)
        pause = min(0.1, 1.3 * pause)


async def until_shown(pilot: Pilot[None], *texts: str) -> None:
    for text in texts:
        await until(pilot, lambda text=text: text in screen_text(pilot), text)


async def until_gone(pilot: Pilot[None], text: str) -> None:
    await until(pilot, lambda: text not in screen_text(pilot), f"no {text}")


def screen_text(pilot: Pilot[None]) -> str:
    """All that is on the screen, as text."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


def box_text(pilot: Pilot[None]) -> str:
    """The question that is being typed."""
    assert isinstance(pilot.app, SpecchatApp)
    return pilot.app.chat.composer.box.text


async def paste(pilot: Pilot[None], text: str) -> None:
    pilot.app.post_message(Paste(text))
    await pilot.pause()


def in_one_read(pilot: Pilot[None], keys: str) -> None:
    """Type all of it at once, as over a slow line."""
    driver = pilot.app._driver
    assert driver is not None
    for message in PasteSafeParser().feed(keys):
        driver.process_message(message)


async def type_in(pilot: Pilot[None], text: str) -> None:
    """Into the compose box, without a key event per character."""
    box = pilot.app.screen.query_one(ComposeBox)
    await box._released.wait()
    box.insert(text)
    await pilot.pause()


async def ask(pilot: Pilot[None], engine: FakeEngine, question: str = "What is it?") -> None:
    asked = len(engine.asks)
    await type_in(pilot, question)
    await pilot.press("enter")
    await until(pilot, lambda: len(engine.asks) > asked, "the question to be sent")
    if not engine.stepping:
        await until(pilot, lambda: not pilot.app.chat.readiness.busy)  # type: ignore[attr-defined]


def repository(files: int = 30) -> list[Document]:
    """Folders of ten files, two files that say something, and a long one."""
    found = [
        Document("repo/", "a tree"),
        Document("repo/README.md", "Read me first.\n"),
        Document("repo/urls/resolvers.py", "def resolver(urlconf):\n    return urlconf\n"),
        Document("repo/urls/base.py", "from urls import resolver\n"),
        Document("repo/long.py", LONG + "the middleware\n" + LONG),
    ]
    for number in range(files - len(found) + 1):
        text = f"filler {number}\n"
        found.append(Document(f"repo/parts/part{number // 10}/file{number}.txt", text))
    return found


def attach(pilot: Pilot[None], documents: list[Document], tokens: int | None = None) -> None:
    assert isinstance(pilot.app, SpecchatApp)
    attachment = replace(make_attachment(documents), tokens=tokens)
    pilot.app.chat.composer.chips.add(attachment)


@asynccontextmanager
async def kept_app(
    folder: Path,
    engine: FakeEngine | None = None,
    size: tuple[int, int] = SMALL,
    settings: SettingsFile | None = None,
    attached: Sequence[str] = (),
    startup_message: str = "",
    restart_status: int | None = None,
) -> AsyncIterator[tuple[Pilot[None], SpecchatApp]]:
    """The app on the conversations of `folder`, from its start to its proper end."""
    if not (folder / "conversations.db").exists():
        with suppress(StoreError):
            Store(folder).close()  # the very first start is a slow one: it loads numpy
    load = Load("models/target-model", "models/draft-model")
    app = SpecchatApp(
        Start(
            engine or FakeEngine(),
            load,
            settings=settings or SettingsFile(),
            folder=folder,
            snapshots=folder / "snapshots",
            attached=attached,
            startup_message=startup_message,
            restart_status=restart_status,
        )
    )
    try:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: not app.chat.open_chats.repository.opening, "the store")
            yield pilot, app
    finally:
        await asyncio.to_thread(app.shutdown)

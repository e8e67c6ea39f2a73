"""The app on its real engine, and a camera that looks at its screen."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from textual.app import App
from textual.pilot import Pilot

from app.chat.model_pairs import resolve_pair
from app.chat.sample import FILE
from app.engine.engine import MlxEngine
from app.protocol.options import BackgroundPolicy, Mode
from app.settings.definitions import ReadingSettings, Settings
from app.settings.file import SettingsFile
from app.ui.app import SpecchatApp
from app.ui.start import Start
from app.util.assets import assets_path
from tests.ingest.test_pdf import assembled
from tests.ui.recording.film import Frame, film

WIDTH, HEIGHT = 100, 30
FRAME_SECONDS = 0.1
ABOUT = "One run of specchat on its demo pair, as long as it took."

DOCUMENT = "gpl-3.0.pdf"
"""The sample as a PDF file, so that the answer cites pages."""
LINES = 50
"""Lines of a page."""

Play = Callable[[Pilot[None]], Awaitable[None]]


async def recorded(play: Play) -> str:
    """The film of one run, in a home folder of its own that holds the sample as a PDF file."""
    with TemporaryDirectory(prefix="recording-") as folder:
        home, before = Path(folder).resolve(), Path.cwd()
        (home / DOCUMENT).write_bytes(_sample())
        with patch.dict(os.environ, {"HOME": str(home)}):
            os.environ.pop("NO_COLOR", None)
            os.chdir(home)
            try:
                return film(await _filmed(play, home), WIDTH, ABOUT)
            finally:
                os.chdir(before)


def _sample() -> bytes:
    lines = (assets_path() / "demo" / FILE).read_text(encoding="utf-8").splitlines()
    pages = []
    for at in range(0, len(lines), LINES):
        shown = (re.sub(r"([()\\\\])", r"\\\1", line) for line in lines[at : at + LINES])
        rows = " ".join(f"({line}) Tj T*" for line in shown)
        pages.append(f"BT /F1 9 Tf 60 740 Td 13 TL {rows} ET".encode())
    return assembled(pages)


async def _filmed(play: Play, home: Path) -> list[Frame]:
    # Not in auto mode: of a text this short it would read the rest for a second question. And
    # nothing is read between two questions, so that the second one shows what is recalled for it.
    settings = Settings(
        reading=ReadingSettings(mode=Mode.SPARSE, background_reading=BackgroundPolicy.OFF)
    )
    app = SpecchatApp(
        Start(
            MlxEngine(),
            resolve_pair(),
            settings=SettingsFile(settings=settings),
            folder=home / ".specchat",
            snapshots=home / ".snapshots",
        )
    )
    camera = Camera(app)
    try:
        async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
            filming = asyncio.create_task(camera.run())
            try:
                await play(pilot)
            finally:
                filming.cancel()
                with suppress(asyncio.CancelledError):
                    await filming
            camera.look()
    finally:
        await asyncio.to_thread(app.shutdown)
    return camera.frames


class Camera:
    """Looks at the screen again and again, and keeps what is new."""

    def __init__(self, app: App[None]) -> None:
        self._app = app
        self._started = time.monotonic()
        self.frames: list[Frame] = []

    async def run(self) -> None:
        self._started = time.monotonic()
        while True:
            self.look()
            await asyncio.sleep(FRAME_SECONDS)

    def look(self) -> None:
        compositor = self._app.screen._compositor
        compositor.render_update(full=True, screen_stack=self._app._background_screens)
        rows = tuple(tuple(strip.simplify()) for strip in compositor.render_strips())
        if len(rows) == HEIGHT and (not self.frames or rows != self.frames[-1].rows):
            self.frames.append(Frame(time.monotonic() - self._started, rows))

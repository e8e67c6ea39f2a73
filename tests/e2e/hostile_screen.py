"""Shows every hostile text on one surface of the app, in the terminal that it is started in.

python tests/e2e/hostile_screen.py SURFACE FOLDER

Ends with 0 when all of them were seen on the screen, made harmless.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest
from textual.pilot import Pilot

from app.protocol.commands import Load
from app.protocol.events import CommandFailed
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import Phase
from app.store.store import Store
from app.ui.app import SpecchatApp
from app.ui.keys import SafeInput
from app.ui.start import Start
from app.util.sanitize import sanitize_line
from tests import fakes
from tests.e2e.hostile import TEXTS
from tests.fakes import FakeEngine, LoadStory, Story
from tests.store.samples import answered
from tests.ui import quick
from tests.ui.helpers import paste, screen_text, type_in, until, until_gone, until_shown

SIZE = (120, 36)
Surface = Callable[["Shown", int, str], Awaitable[None]]


class Shown:
    """The app under way."""

    def __init__(self, pilot: Pilot[None], app: SpecchatApp, engine: FakeEngine) -> None:
        self.pilot, self.app, self.engine = pilot, app, engine

    async def ask(self, text: str) -> None:
        asked = len(self.engine.asks)
        await type_in(self.pilot, text)
        await self.pilot.press("enter")
        await until(
            self.pilot, lambda: len(self.engine.asks) > asked and not self.app.chat.readiness.busy
        )


def case(number: int) -> str:
    """What stands before each text, and is waited for."""
    return f"case{number:02d}x"


async def stored(shown: Shown, number: int, text: str) -> None:
    """Titles, snippets, questions and answers out of the store."""
    await shown.pilot.press("ctrl+o")
    await until_shown(shown.pilot, f"Conversations  {len(TEXTS)}")
    await type_in_list(shown.pilot, case(number))
    await until_shown(shown.pilot, f"You: {case(number)}")
    await shown.pilot.press("enter")
    await until_shown(shown.pilot, f"answer {case(number)}")
    await shown.pilot.press("f3")
    await until_shown(shown.pilot, f"This conversation  {case(number)}")
    await shown.pilot.press("escape")
    await until_gone(shown.pilot, "This conversation")


async def type_in_list(pilot: Pilot[None], text: str) -> None:
    pilot.app.screen.query_one(SafeInput).value = text
    await pilot.pause()


async def pasted(shown: Shown, number: int, text: str) -> None:
    """The compose box, and a question that was sent."""
    await paste(shown.pilot, f"{case(number)} {text}")
    await until_shown(shown.pilot, case(number))
    await shown.ask("?")


async def streamed(shown: Shown, number: int, text: str) -> None:
    """An answer that comes character by character, so that sequences are split."""
    await shown.pilot.press("ctrl+n")
    await until_gone(shown.pilot, case(number - 1))
    shown.engine.story = Story(answer=f"{case(number)} {text}")
    await shown.ask("What?")
    await until_shown(shown.pilot, case(number))


async def failed(shown: Shown, number: int, text: str) -> None:
    data = {"machine": case(number), "problem": text, "advice": text}
    refused = Failure(FailureKind.WORKER_REFUSES, data)
    shown.engine.story = Story(fails_in=Phase.PREFILL, failure=refused)
    await shown.ask("What?")
    await until_shown(shown.pilot, case(number))
    shown.app.chat.composer.box.clear()


async def fell_back(shown: Shown, number: int, text: str) -> None:
    shown.engine.story = Story(falls_back=f"{case(number)} {text}")
    await shown.ask("What?")
    await until_shown(shown.pilot, case(number))


async def spans(shown: Shown, number: int, text: str) -> None:
    """The document in full."""
    await shown.pilot.press("ctrl+n")
    await paste(shown.pilot, f"{case(number)} {text}\n" * 800)
    await until_shown(shown.pilot, "Paste 1")
    await shown.ask("What?")
    await shown.pilot.press("ctrl+s")
    await until_shown(shown.pilot, case(number), "passages")
    await shown.pilot.press("escape")


async def files(shown: Shown, number: int, text: str) -> None:
    """Names in the list of files, and on chips."""
    await shown.pilot.press("@", *case(number))
    await until_shown(shown.pilot, f"    {case(number)}")
    await shown.pilot.press("enter")
    await until_shown(shown.pilot, f"▣ {case(number)}")
    await shown.pilot.press("backspace")
    await until(shown.pilot, lambda: "▣" not in screen_text(shown.pilot))


SURFACES: dict[str, Surface] = {
    "stored": stored,
    "pasted": pasted,
    "streamed": streamed,
    "failed": failed,
    "fell back": fell_back,
    "spans": spans,
    "files": files,
}


def prepare(surface: str, folder: Path) -> None:
    if surface == "stored":
        with Store(folder / "conversations") as store:
            for number, text in enumerate(TEXTS):
                answered(store, f"{case(number)} {text}", f"answer {case(number)} {text}")
    if surface == "files":
        for number, text in enumerate(TEXTS):
            name = f"{case(number)} {text}".replace("/", "∕").replace("\0", "")
            (folder / name[:80]).write_text("text")


async def show(surface: str, folder: Path) -> None:
    prepare(surface, folder)
    engine = FakeEngine()
    app = SpecchatApp(Start(engine, Load("target", "draft"), folder=folder / "conversations"))
    async with app.run_test(headless=False, size=SIZE) as pilot:
        await until(pilot, lambda: not app.chat.open_chats.repository.opening)
        for number, text in enumerate(TEXTS):
            await SURFACES[surface](Shown(pilot, app, engine), number, text)
    app.shutdown()


async def show_models(folder: Path) -> None:
    """Names of models, and why they cannot be loaded: one start each."""
    for number, text in enumerate(TEXTS):
        name = f"{case(number)} {text}"
        story = LoadStory(target=name, draft=name, dense_only=name)
        if number % 2:
            refused = Failure(FailureKind.NO_SHARDING, {"model": name})
            story = replace(story, failure=CommandFailed(refused))
        app = SpecchatApp(Start(FakeEngine(load_story=story), Load(name, name)))
        async with app.run_test(headless=False, size=SIZE) as pilot:
            await until_shown(pilot, sanitize_line(case(number)))
        app.shutdown()


if __name__ == "__main__":
    fakes.pieces = list  # type: ignore[assignment]
    quick.install(pytest.MonkeyPatch())
    surface, folder = sys.argv[1], Path(sys.argv[2])
    try:
        asyncio.run(show_models(folder) if surface == "models" else show(surface, folder))
    except BaseException as error:
        (folder / "failed").write_text(repr(error), errors="replace")
        raise

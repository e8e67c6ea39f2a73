"""From the first drawing to the first question."""

from __future__ import annotations

import shutil
from unittest.mock import patch

from app.models.catalogue import catalogue
from app.models.fit import mac_with
from app.models.pairs import recommend
from app.protocol.events import CommandFailed, Loaded
from app.protocol.prompt import Role
from app.protocol.reasons import Failure, FailureKind
from app.store import records
from app.store.store import Store
from tests.fakes import FakeEngine, LoadStory
from tests.ingest.helpers import written
from tests.ui.pictures import samples
from tests.ui.pictures.stage import Stage

CRASH = "specchat was killed, perhaps because memory ran out. Nothing you wrote is lost."
MISSING = CommandFailed(
    Failure(
        FailureKind.MODEL_UNREADABLE,
        {"folder": "models/qwen3-8b-4bit", "error": "'model.safetensors' is missing"},
    ),
)


async def first_start(stage: Stage) -> None:
    """As a new user sees it, and later with nothing to say."""
    offered = recommend(catalogue(), mac_with(32 << 30))
    with patch("app.ui.chat.welcome._recommend", lambda: offered):
        async with stage.opened(show_welcome=True):
            await stage.shown("ready", "This demo model can only quote", "tok")
            box = stage.app.chat.composer.box
            await stage.until(lambda: box.has_focus and box.selected_text, "the question")
            await stage.take("welcome")
    shutil.rmtree(stage.home / "data")
    async with stage.opened(FakeEngine(step_load=True)):
        await stage.shown("loading the models")
        await stage.take("loading")
        stage.play(lambda event: isinstance(event, Loaded), 3.0)
        stage.engine.finish()
        await stage.shown("ready", "GB")
        await stage.take("empty")
        await stage.press("f1")
        await stage.shown("Writing", "Enter")
        await stage.take("help")
        await stage.press("escape")
        await stage.pilot.resize_terminal(38, 9)
        await stage.shown("38 × 9")
        await stage.take("too-small")


async def trouble(stage: Stage) -> None:
    async with stage.opened(FakeEngine(load_story=LoadStory(failure=MISSING))):
        await stage.shown("could not be read")
        await stage.take("no-model")
    reason = "its DeltaCache layers cannot store positions"
    async with stage.opened(FakeEngine(load_story=LoadStory(dense_only=reason))):
        await stage.shown("cannot skip text")
        await stage.take("full-only")
    with Store(stage.home / "data"):  # the first specchat
        async with stage.opened():
            await stage.shown("ready", "not saved")
            await stage.ask("Is this kept?")
            await stage.idle()
            await stage.take("read-only")
    shutil.rmtree(stage.home / "data")
    written(stage.home / "data", "No folder.")
    async with stage.opened():
        await stage.shown("ready", "not saved")
        await stage.take("not-kept")


async def again(stage: Stage) -> None:
    """After an end that nobody asked for, and where the disk is full."""
    with Store(stage.home / "data") as store:
        id = store.create("Corresponding Source").id
        asked = store.add_message(id, Role.USER, samples.QUESTION)
        store.begin_reply(asked.id).append('The "Corresponding Source" for a work in object code')
        store.save_draft(records.DraftRecord(id))
    async with stage.opened(news=CRASH):
        await stage.shown("stopped", "killed")
        await stage.take("crash")

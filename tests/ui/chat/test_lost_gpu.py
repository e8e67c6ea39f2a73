"""An engine that has lost the GPU: the app starts again, and asks nothing by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.protocol.events import GpuLost
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import Phase
from tests.fakes import FakeEngine, Story
from tests.ui.helpers import app_with, ask, kept_app, type_in, until, until_shown

pytestmark = pytest.mark.asyncio

LOST = Failure(FailureKind.GPU_LOST, {"system": "Impacting Interactivity"})
PROBLEM = "The system stopped specchat's work on the GPU"
LOSES = Story(fails_in=Phase.PREFILL, failure=LOST)


async def test_the_next_process_shows_the_unanswered_question_and_offers_it(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(LOSES, stepping=True)
    async with kept_app(tmp_path, engine, restart_status=75) as (pilot, app):
        await ask(pilot, engine, "What jumps?")
        await type_in(pilot, "And who is lazy?")
        await pilot.press("enter")
        await until_shown(pilot, "And who is lazy?")
        await type_in(pilot, "half a thought")
        engine.finish()
        await until(pilot, lambda: app.return_code is not None, "the exit")
    assert app.return_code == 75
    assert len(engine.asks) == 1, "the one that waited was not sent"
    engine = FakeEngine()
    async with kept_app(tmp_path, engine, startup_message="Started again.") as (pilot, app):
        await until_shown(pilot, "What jumps?", PROBLEM, "Started again.", "^A asks the last")
        assert app.chat.composer.box.text == "And who is lazy?\nhalf a thought"
        assert not engine.asks, "nothing is sent again by itself"
        app.chat.composer.box.clear()
        await pilot.press("ctrl+a")
        await until(pilot, lambda: len(engine.asks) == 1)
        assert engine.asks[0].messages[-1].text == "What jumps?"


async def test_a_conversation_that_is_not_saved_stays_on_the_screen() -> None:
    engine = FakeEngine()
    app = app_with(engine)
    app._restart_status = 75
    async with app.run_test() as pilot:
        await ask(pilot, engine, "What jumps?")
        engine.say(GpuLost(LOST))
        await until_shown(pilot, PROBLEM, "Conversations are not saved here")
        assert app.return_code is None
        await type_in(pilot, "More?")
        await pilot.press("enter")
        await until_shown(pilot, "No model is loaded.")
        assert len(engine.asks) == 1

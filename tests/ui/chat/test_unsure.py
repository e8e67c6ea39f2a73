"""An answer that the model was unsure of says so, and offers to read everything."""

from __future__ import annotations

from app.protocol.options import Mode
from tests.fakes import FakeEngine, Story
from tests.ui.helpers import DOCUMENT, SMALL, app_with, ask, paste, until, until_gone, until_shown

NOTE = "≈ Less sure than usual, having read 21% · ^R reads everything"


async def test_an_unsure_answer_offers_to_read_everything_and_does_nothing_by_itself() -> None:
    engine = FakeEngine(Story(unsure=True))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await until_shown(pilot, NOTE)
        assert len(engine.asks) == 1
        engine.story = Story()
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(engine.asks) == 2)
        await until_gone(pilot, "Less sure than usual")
        assert engine.asks[1].mode is Mode.FULL

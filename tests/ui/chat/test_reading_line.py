"""An answer that was not read as usual says so in one line."""

from __future__ import annotations

from pathlib import Path

from app.protocol.events import Selected
from app.protocol.options import Mode
from tests.fakes import FakeEngine, Story
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    app_with,
    ask,
    kept_app,
    paste,
    ready_app,
    screen_text,
    until,
    until_gone,
    until_shown,
)

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


async def test_a_question_that_asks_for_every_token_says_so_also_after_the_next_start(
    tmp_path: Path,
) -> None:
    async with kept_app(tmp_path, engine := FakeEngine(Story(guard="how many"))) as (pilot, _):
        await pilot.press("ctrl+t")
        await ask(pilot, engine, "How many are there?")
        await until_shown(pilot, "▸ Read everything in 1.9 s", "ask for every token")
    async with kept_app(tmp_path) as (pilot, _):
        await until_shown(pilot, "▸ Read everything in 1.9 s", "ask for every token")


async def test_the_details_open_while_it_reads_and_stay_open() -> None:
    engine = FakeEngine(Story(answer="Short."), stepping=True)
    async with ready_app(engine) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        engine.advance_to(lambda event: isinstance(event, Selected))
        await until_shown(pilot, "selected · 6 passages")
        assert "tokenise" not in screen_text(pilot)
        await pilot.press("tab", "space")
        await until_shown(pilot, "Phases", "✓ tokenise", "Why", "Sparse is expected")
        engine.finish()
        await until_shown(pilot, "▾ Read 21%", "First word  after 1.9 s", "peak 6 GB")
        await pilot.press("space")
        await until_shown(pilot, "▸ Read 21%")
        await until_gone(pilot, "peak 6 GB")

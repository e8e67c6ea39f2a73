"""F4 continues an answer that was cut off, and ^Q asks before it ends one that took long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.protocol.commands import Load
from app.protocol.events import Token
from app.protocol.options import Mode
from app.protocol.stats import FinishReason
from app.ui.app import SpecchatApp
from app.ui.start import Start
from tests.fakes import FakeEngine, Story, does_not_fit
from tests.tables import slow
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    app_with,
    ask,
    paste,
    screen_text,
    type_in,
    until,
    until_gone,
    until_shown,
)

CUT = Story(answer="The tenant ", ended=FinishReason.LENGTH)


async def test_a_cut_off_answer_is_continued_in_place() -> None:
    engine = FakeEngine(CUT)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await until_shown(pilot, "■ cut off at 3 tokens (limit: Max tokens in F2) · F4 continues")
        await until_shown(pilot, "▸ Read 21% of paste-1.txt")
        # One that cannot be continued stays and says why.
        engine.story = Story(failure=does_not_fit())
        await pilot.press("f4")
        await until_shown(pilot, "✗ not continued: Reading 118,204 tokens", "The tenant")
        await until_shown(pilot, "· F4", "▸ Read 2")
        engine.story = Story(answer="pays the rent.")
        await pilot.press("f4")
        await until_shown(pilot, "The tenant pays the rent.")
        await until_gone(pilot, "F4 continues")
        assert "cut off" not in screen_text(pilot)
        assert screen_text(pilot).count("You") == 1
        assert engine.asks[2].messages[-1].text == "The tenant "
        assert "▸ Read 21% of paste-1.txt" in screen_text(pilot)
        await pilot.press("f4")
        await until_shown(pilot, "Nothing to continue")
        # An earlier answer does not offer to continue.
        engine.story = CUT
        await ask(pilot, engine)
        await until_shown(pilot, "F4 continues")
        engine.story = Story(answer="Yes.")
        await ask(pilot, engine)
        await until_shown(pilot, "Yes.", "■ cut off at 3 tokens")
        await until_gone(pilot, "F4 continues")


async def test_repeating_and_stopped_answers_say_so_and_can_be_continued() -> None:
    engine = FakeEngine(replace(CUT, ended=FinishReason.REPEATED))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await until_shown(pilot, "■ stopped: the answer repeated itself · F4 continues")
        engine.stepping = True
        await pilot.press("f4")
        await until(pilot, lambda: len(engine.asks) == 2)
        engine.advance_to(lambda event: isinstance(event, Token))
        await until_shown(pilot, "▶ Answering", "Esc stop")
        await pilot.press("escape")
        engine.finish()
        await until_shown(pilot, "■ stopped · the text is kept · F4 continues")


async def test_a_stopped_answer_can_be_continued_or_asked_again() -> None:
    engine = FakeEngine(CUT, stepping=True)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready in")
        await paste(pilot, DOCUMENT)
        await pilot.press("ctrl+g", "enter")
        await ask(pilot, engine)
        for _ in range(2):
            engine.advance_to(lambda event: isinstance(event, Token))
        await pilot.press("escape")
        engine.finish()
        await until_shown(pilot, "F4 continue", "^A again", "^R read in full")
        await type_in(pilot, "words")
        await pilot.press("ctrl+u", "ctrl+a")
        await until(pilot, lambda: len(engine.asks) == 2)
        assert engine.asks[1].mode is Mode.SPARSE


@pytest.mark.slow
async def test_in_a_box_with_text_it_goes_to_the_start_of_the_line() -> None:
    engine = FakeEngine(CUT)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await type_in(pilot, "words")
        await pilot.press("ctrl+a", "a")
        await until_shown(pilot, "❯ awords")
        assert len(engine.asks) == 1


# ------------------------------------------------------------------------------------ quitting


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seconds", [slow(3.0), 40.0])
async def test_quitting_asks_only_where_an_answer_took_long(seconds: float) -> None:
    engine, clock = FakeEngine(Story(slowness=0.1), stepping=True), Clock()
    app = SpecchatApp(Start(engine, Load("models/target-model", "models/draft-model"), clock=clock))
    async with app.run_test(size=SMALL) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await until(pilot, lambda: app.chat.open_chats.answering is not None)
        clock.now = seconds
        await pilot.press("ctrl+q")
        if seconds > 10:
            await until_shown(pilot, "Still answering (40 s so far). Press ^Q again to quit.")
            clock.now += 30
            await pilot.press("ctrl+q")
            await until_shown(pilot, "(1 min 10 s so far)")
            assert app.is_running
            clock.now += 2
            await pilot.press("ctrl+q")
        await until(pilot, lambda: app._exit)


@pytest.mark.parametrize(
    ("key", "between"),
    [
        slow("ctrl+c", "a"),
        slow("ctrl+c", "left"),
        ("ctrl+c", "ctrl+l"),
        slow("ctrl+q", "a"),
        slow("ctrl+q", "left"),
        slow("ctrl+q", "ctrl+l"),
    ],
)
async def test_a_key_between_two_requests_to_quit_takes_the_first_back(
    key: str, between: str
) -> None:
    engine, clock = FakeEngine(Story(slowness=0.1), stepping=True), Clock()
    app = SpecchatApp(Start(engine, Load("models/target-model", "models/draft-model"), clock=clock))
    async with app.run_test(size=SMALL) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        clock.now = 40.0
        await pilot.press(key, between, key)
        assert not app._exit
        await pilot.press({"ctrl+c": "ctrl+q", "ctrl+q": "ctrl+c"}[key])
        assert not app._exit
        await pilot.press(key, key)
        assert app._exit


async def test_quitting_asks_where_the_first_word_is_far_and_not_when_it_is_over() -> None:
    engine, clock = FakeEngine(Story(slowness=60.0), stepping=True), Clock()
    app = SpecchatApp(Start(engine, Load("models/target-model", "models/draft-model"), clock=clock))
    async with app.run_test(size=SMALL) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        for _ in range(3):
            engine.advance()
        await until_shown(pilot, "first word in")
        await pilot.press("ctrl+q")
        await until_shown(pilot, "Still answering (about ", " to the first word)")
        engine.finish()
        await until_shown(pilot, "▸ Read", "⏎ send")
        clock.now = 60.0
        await pilot.press("ctrl+q")
        await until(pilot, lambda: app._exit)

"""Asking, waiting, stopping, asking again: what the engine is sent, and what stays."""

from __future__ import annotations

from app.protocol.events import Event, PhaseProgress, Token
from app.protocol.options import Mode
from app.protocol.prompt import Role
from app.protocol.stats import Phase
from app.ui.chat.composer import ComposeBox
from tests.fakes import FakeEngine, Story
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    app_with,
    ask,
    paste,
    started,
    type_in,
    until,
    until_gone,
    until_shown,
)


def is_progress(event: Event, phase: Phase) -> bool:
    return isinstance(event, PhaseProgress) and event.phase is phase


# ------------------------------------------------------------------------------ the conversation


async def test_the_whole_conversation_is_sent_with_the_ids_that_were_generated() -> None:
    engine = FakeEngine(Story(answer="One two three."))
    async with started(engine) as pilot:
        await pilot.press("ctrl+r")
        await until_shown(pilot, "There is no question to ask again.")
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine, "First?")
        await until_shown(pilot, "▸ Read")
        await ask(pilot, engine, "Second?")
        first, answer, second = engine.asks[1].messages
        assert first == engine.asks[0].messages[0]
        assert first.documents[0].text == DOCUMENT
        assert (answer.role, answer.text) == (Role.ASSISTANT, "One two three.")
        assert answer.token_ids == (1000, 1001, 1002)
        assert (second.text, second.documents) == ("Second?", ())
        # Again in full replaces the turn.
        await until_shown(pilot, "▸ Read")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(engine.asks) == 3)
        assert engine.asks[2].mode is Mode.FULL
        assert engine.asks[2].messages == engine.asks[1].messages
        await until_shown(pilot, "Read all of")


async def test_a_queued_question_is_shown_sent_and_taken_back() -> None:
    engine = FakeEngine(step_load=True, stepping=True)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "loading the models")
        await type_in(pilot, "Early?")
        await pilot.press("enter")
        await until_shown(pilot, "queued · Esc takes it back", "Early?")
        assert engine.asks == []
        engine.finish()
        await until(pilot, lambda: len(engine.asks) == 1, "the queued question")
        await until_gone(pilot, "queued · Esc takes it back")
        await paste(pilot, DOCUMENT)
        await type_in(pilot, "Second?")
        await pilot.press("enter")
        await until_shown(pilot, "queued · Esc takes it back")
        await type_in(pilot, "Third?")
        await pilot.press("escape")
        await until_gone(pilot, "queued · Esc takes it back")
        await until_shown(pilot, "Paste 1")
        assert pilot.app.screen.query_one(ComposeBox).text == "Second?\nThird?"
        assert engine.cancelled == []
        # Escape says at once that a long step is being stopped.
        await until_shown(pilot, "Esc stop")
        await pilot.press("escape")
        await until_shown(pilot, "Stopping.")
        assert engine.cancelled == [1]
        engine.finish()
        await until_shown(pilot, "stopped before the first word")
        await until_gone(pilot, "Stopping.")


async def test_a_stopped_answer_keeps_its_text() -> None:
    engine = FakeEngine(stepping=True)
    async with started(engine) as pilot:
        await ask(pilot, engine)
        for _ in range(5):
            engine.advance_to(lambda event: isinstance(event, Token))
        await until_shown(pilot, 'The "Corresponding Source')
        await pilot.press("escape")
        await until(pilot, lambda: engine.cancelled == [1])
        engine.finish()
        await until_shown(pilot, "▸ Read", 'The "Corresponding Source', "■ stopped")
        engine.stepping = False
        await ask(pilot, engine, "Go on?")
        stopped = engine.asks[1].messages[1]
        assert stopped.text == 'The "Corresponding Source'[:25]
        assert stopped.token_ids == (1000, 1001, 1002, 1003, 1004)
        # Stopping before the first word keeps the document in the conversation.
        await pilot.press("ctrl+n", "ctrl+n")  # the second one confirms
        await until_gone(pilot, "◆ Answer")
        engine.stepping = True
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        engine.advance_to(lambda event: is_progress(event, Phase.SCORE))
        await pilot.press("escape")
        await until(pilot, lambda: engine.cancelled == [1, 3])
        engine.finish()
        await until_shown(pilot, "stopped before the first word")
        await ask(pilot, engine, "Again?")
        first, nothing, _ = engine.asks[3].messages
        assert first.documents[0].text == DOCUMENT
        assert (nothing.text, nothing.token_ids) == ("", None)

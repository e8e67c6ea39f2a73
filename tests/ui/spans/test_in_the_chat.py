"""Spans from the chat: shown, tried at another keep, pinned, asked again."""

from __future__ import annotations

import pytest

from app.chat.conversation import Conversation, Question, Turn, TurnState
from app.protocol.events import ImportanceMap, Planned, Selected
from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.prompt import Document
from app.ui.spans.passages import ReadKind
from app.ui.spans.screen import SpansScreen
from tests.fakes import FakeEngine, Story
from tests.ui.helpers import SMALL, app_with, ask, paste, until, until_gone, until_shown

TEXT = "".join(f"Paragraph {i} of a long text about nothing.\n\n" for i in range(400))


async def test_what_was_read_is_shown_tried_pinned_and_asked_again() -> None:
    engine = FakeEngine(Story(answer="Yes."))
    app = app_with(engine)
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("ctrl+s")  # without a document there is nothing to show
        await until_shown(pilot, "No documents to show.")
        await paste(pilot, TEXT)
        await pilot.press("ctrl+g", "enter")
        await ask(pilot, engine)
        await pilot.press("ctrl+s")
        await until_shown(pilot, "What was read  paste-1.txt", "6 passages", "█ Paragraph 0")
        screen = app.screen
        assert isinstance(screen, SpansScreen)
        before = screen.view.document.read_fraction
        await pilot.press(*["right"] * 5)
        await until(pilot, lambda: screen.view.document.read_fraction > before)
        await until_shown(pilot, "keep 25% would read")
        assert any(keep == 0.25 for _, keep in engine.selected)
        await pilot.press("slash", *"Paragraph 399")
        await until_shown(pilot, "hit 1 of 1")
        await pilot.press("escape", "space")
        await until_shown(pilot, "1 pin")
        await pilot.press("enter")
        await until(pilot, lambda: len(engine.asks) == 2)
        again = engine.asks[1]
        assert (again.mode, again.keep_ratio) == (Mode.SPARSE, 0.25)
        (document,) = again.messages[0].documents
        ((start, end),) = document.pinned
        assert document.text[start:end] == "Paragraph 399 of a long text about nothing."
        await pilot.press("ctrl+s")
        await until_shown(pilot, "1 pin")
        await pilot.press("f1")
        await until_shown(pilot, "What was read", "Pin or unpin the paragraph")
        await pilot.press(*["pagedown"] * 9)
        await until_shown(pilot, "Everywhere")
        await pilot.press("f1", "escape")
        await until_shown(pilot, "❯")


@pytest.mark.slow
async def test_pins_alone_are_asked_again_as_the_question_was_asked() -> None:
    engine = FakeEngine(Story(answer="Yes."))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await paste(pilot, TEXT)
        await ask(pilot, engine)
        await pilot.press("ctrl+s")
        await until_shown(pilot, "What was read  paste-1.txt")
        await pilot.press("end", "space", "enter")
        await until(pilot, lambda: len(engine.asks) == 2)
        again = engine.asks[1]
        assert (again.mode, again.keep_ratio) == (Mode.AUTO, AUTO_KEEP)
        assert again.messages[0].documents[0].pinned


async def test_while_it_reads_the_choice_appears_as_it_is_made() -> None:
    engine = FakeEngine(Story(answer="Yes."), stepping=True)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready in")
        await paste(pilot, TEXT)
        await ask(pilot, engine)
        await pilot.press("ctrl+s")
        await until_shown(pilot, "What was read  paste-1.txt", "still choosing what to read")
        screen = pilot.app.screen
        assert isinstance(screen, SpansScreen)
        engine.advance_to(lambda event: isinstance(event, ImportanceMap))
        await until_shown(pilot, "still choosing what to read", "importance", "dim · not read")
        assert not screen.view.document.passages_read
        await pilot.press("space")
        await until_shown(pilot, "1 pin", "█ Paragraph 0", "█ always read")
        engine.advance_to(lambda event: isinstance(event, Selected))
        await until_shown(pilot, "reading 2", "▌ read", "1 pin")
        assert screen.view.document.passages_read > 1
        await pilot.press("enter")
        await until_shown(pilot, "Still answering.")
        engine.finish()
        await until_shown(pilot, " passages")
        engine.stepping = False
        await pilot.press("right")
        await until_shown(pilot, "keep 21% would read", "1 pin")
        await pilot.press("enter")
        await until(pilot, lambda: len(engine.asks) == 2)
        assert engine.asks[1].messages[0].documents[0].pinned
        # In full all of it is being read.
        await until(pilot, lambda: not pilot.app.chat.readiness.busy)  # type: ignore[attr-defined]
        engine.stepping = True
        await pilot.press("ctrl+n", "ctrl+n")  # the second one confirms
        await until_gone(pilot, "◆ Answer")
        await paste(pilot, TEXT)
        await pilot.press("ctrl+t")
        await ask(pilot, engine)
        engine.advance_to(lambda event: isinstance(event, Planned))
        await pilot.press("ctrl+s")
        await until_shown(pilot, "reading all of paste-1.txt")


async def test_the_selection_of_a_fully_cached_text_is_shown_as_hypothetical() -> None:
    engine = FakeEngine(Story(cached=True))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await paste(pilot, TEXT)
        await pilot.press("ctrl+g", "enter")
        await ask(pilot, engine)
        await until_shown(pilot, "Read all of")
        await pilot.press("ctrl+s")
        await until_shown(pilot, "keep 20% would read", "6 passages")
        screen = pilot.app.screen
        assert isinstance(screen, SpansScreen)
        passages = screen.view.document.passages
        screen.view.go_to(next(each.start for each in passages if each.kind is ReadKind.UNREAD))
        await until_shown(pilot, "· would not be read")
        await pilot.press("right")
        await until_shown(pilot, "keep 21% would read")


def test_a_pin_of_an_earlier_turn_is_seen_by_the_next() -> None:
    first = Turn(1, Question("a", (Document("x", "some text"),)), TurnState.DONE, "b")
    conversation = Conversation(turns=[first])
    turn, _ = conversation.start_turn(Question("c", (Document("y", "more"),)))
    assert conversation.question_turns(turn) == [first, None, turn]
    told, _ = Conversation(turns=[first], system="x").start_turn(Question("c"))
    assert Conversation(turns=[first, told]).question_turns(told) == [None, first, None, told]
    conversation.pin(turn, {(0, 0): ((0, 4),), (2, 0): ((1, 2),)})
    turn.state = TurnState.DONE
    _, command = conversation.start_turn(Question("d"))
    assert command.messages[0].documents[0].pinned == ((0, 4),)
    assert command.messages[2].documents[0].pinned == ((1, 2),)

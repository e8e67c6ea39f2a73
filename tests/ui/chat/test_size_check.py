"""A question that is too long costs nothing: all of it is where it was written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.models.embedded import draft_path, target_path
from app.protocol.commands import Load
from app.protocol.prompt import Document
from app.protocol.stats import Phase
from app.sessions.store import Store
from app.ui.app import SpecchatApp
from app.ui.attach import leave_out_screen
from app.ui.attach.attachment import Attachment, make_attachment
from app.ui.attach.chips import Chips
from app.ui.attach.leave_out_screen import LeaveOutScreen, excess_text, pieces, without
from app.ui.chat.composer import Composer
from tests.fakes import FakeEngine, Story
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    app_with,
    ask,
    kept_app,
    paste,
    type_in,
    until,
    until_gone,
    until_shown,
)

OTHER = "Pack my box with five dozen liquor jugs.\n" * 2_000
PROBLEM = "The prompt is 53,360 tokens long, and qwen3-8b-4bit takes at most 40,960"
ADVICE = "attach less, or choose a model with a longer context"
TOO_LONG = Story(problem=PROBLEM, advice=ADVICE, excess=12_401)


def entry(pilot: Pilot[None]) -> Composer:
    return pilot.app.chat.composer  # type: ignore[attr-defined, no-any-return]


def chips(pilot: Pilot[None]) -> list[str]:
    return [each.name for each in pilot.app.screen_stack[0].query_one(Chips).attached]


def counting_app(engine: FakeEngine) -> SpecchatApp:
    """One that has a tokenizer to count with."""
    return SpecchatApp(engine, Load(str(target_path()), str(draft_path())))


async def too_much(pilot: Pilot[None]) -> None:
    """Two documents of which only one fits, and a question."""
    await until_shown(pilot, "ready")
    await paste(pilot, DOCUMENT)
    await paste(pilot, OTHER)
    await until(pilot, lambda: all(each.tokens for each in entry(pilot).chips.attached))
    await type_in(pilot, "Which box?")
    await pilot.press("enter")
    await until_shown(pilot, "tokens too many: leave out about")


async def test_what_cannot_fit_is_not_sent_and_some_of_it_can_be_left_out() -> None:
    engine = FakeEngine()
    async with counting_app(engine).run_test(size=SMALL) as pilot:
        await too_much(pilot)
        assert isinstance(pilot.app.screen, LeaveOutScreen)
        await until_shown(pilot, "✓ paste-1.txt", "102 KB", "✓ paste-2.txt", "82 KB")
        assert not engine.asks
        await pilot.press("space")
        await until_shown(pilot, "✓ It fits, with", "  paste-1.txt")
        await pilot.press("space", "a")
        await until_shown(pilot, "  paste-2.txt")
        await pilot.press("a", "down", "space", "enter")
        await until(pilot, lambda: chips(pilot) == ["Paste 1"])
        assert entry(pilot).box.text == "Which box?"
        assert not engine.asks
        await pilot.press("enter")
        await until(pilot, lambda: engine.asks)
        (message,) = engine.asks[0].messages
        assert [document.text for document in message.documents] == [DOCUMENT]


async def test_what_is_not_sent_can_be_left_as_it_was() -> None:
    engine = FakeEngine()
    async with counting_app(engine).run_test(size=SMALL) as pilot:
        await too_much(pilot)
        await pilot.press("space", "escape")
        await until_shown(pilot, "❯ Which box?", "qwen3-8b-4bit takes 40,960")
        assert chips(pilot) == ["Paste 1", "Paste 2"]
        assert not engine.asks
        await pilot.press("backspace", "enter")
        await until_shown(pilot, "tokens too many: leave out about")


async def test_what_is_read_while_one_chooses_is_attached_too() -> None:
    engine = FakeEngine()
    async with counting_app(engine).run_test(size=SMALL) as pilot:
        await too_much(pilot)
        entry(pilot).chips.add(entry(pilot).chips.paste("later " * 2_000))
        await pilot.press("space", "enter")
        await until(pilot, lambda: chips(pilot) == ["Paste 2", "Paste 3"])


async def test_a_conversation_that_is_full_says_so() -> None:
    engine = FakeEngine(Story(prompt_tokens=41_000))
    async with app_with(engine).run_test(size=(80, 30)) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await until_shown(pilot, "▸ read")
        await type_in(pilot, "More?")
        await pilot.press("enter")
        await until_shown(pilot, "The conversation is too long", "^N starts a new one", "❯ More?")
        assert len(engine.asks) == 1


async def test_what_the_engine_refuses_comes_back_as_it_was(tmp_path: Path) -> None:
    """Nothing of it stays in the conversation, and at the next start it is still there."""
    engine = FakeEngine(Story())
    async with kept_app(tmp_path, engine, size=(80, 30)) as (pilot, app):
        await until_shown(pilot, "ready")
        await ask(pilot, engine, "First?")
        await until_shown(pilot, "▸ read")
        engine.story = TOO_LONG
        await paste(pilot, DOCUMENT)
        await paste(pilot, OTHER)
        await pilot.press("ctrl+t")
        await type_in(pilot, "Which box?")
        await pilot.press("enter")
        await until_shown(pilot, "12,401 tokens too many: leave out about 50 KB")
        await pilot.press("escape")
        await until_shown(pilot, "❯ Which box?", "takes at most 40,960", "next: FULL")
        assert chips(pilot) == ["Paste 1", "Paste 2"]
        branch = app.chat.open_chats.shown.conversation.branch
        assert [turn.question.text for turn in branch] == ["First?"]
        await until_gone(pilot, "✗ failed")
    async with kept_app(tmp_path, engine := FakeEngine()) as (pilot, app):
        await until_shown(pilot, "❯ Which box?", "next: FULL", "▸ read")
        assert chips(pilot) == ["Paste 1", "Paste 2"]
        await pilot.press("enter")
        await until(pilot, lambda: engine.asks)
        assert [m.text for m in engine.asks[0].messages][::2] == ["First?", "Which box?"]


async def test_a_first_question_that_is_refused_leaves_no_title(tmp_path: Path) -> None:
    async with kept_app(tmp_path, FakeEngine(TOO_LONG), size=(110, 30)) as (pilot, app):
        await until_shown(pilot, "ready")
        await type_in(pilot, "Which box?")
        await pilot.press("enter")
        await until_shown(pilot, "❯ Which box?", "(no question yet)")
        assert app.chat.open_chats.shown.title == ""
        await pilot.pause()
        assert app.chat.sub_title == ""
    with Store(tmp_path) as store:
        assert [each.title for each in store.conversations()] == [""]


async def test_what_waited_behind_it_comes_back_behind_it() -> None:
    engine = FakeEngine(TOO_LONG, stepping=True)
    async with app_with(engine).run_test(size=(80, 30)) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine, "First?")
        await type_in(pilot, "Second?")
        await pilot.press("enter")
        await until_shown(pilot, "queued · Esc takes it back")
        engine.finish()
        await until(pilot, lambda: entry(pilot).box.text == "First?\nSecond?")
        assert len(engine.asks) == 1


async def test_an_edited_question_that_is_refused_is_still_edited() -> None:
    engine = FakeEngine()
    async with app_with(engine).run_test(size=(80, 30)) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine, "First?")
        await until_shown(pilot, "▸ read")
        engine.story = TOO_LONG
        await pilot.press("tab", "ctrl+e")
        await until_shown(pilot, "Editing an earlier question")
        await type_in(pilot, " Really?")
        await pilot.press("enter")
        await until_shown(pilot, "takes at most 40,960")
        assert entry(pilot).box.text == "First? Really?"
        assert pilot.app.chat.edit.active  # type: ignore[attr-defined]
        engine.story = Story()
        await pilot.press("enter")
        await until_shown(pilot, "‹ 2/2 ›")
        assert [m.text for m in engine.asks[-1].messages] == ["First? Really?"]


async def test_an_answer_that_fails_later_stays_where_it_is() -> None:
    """Only what was not begun comes back."""
    engine = FakeEngine(Story(fails_in=Phase.PREFILL, problem="It broke."))
    async with app_with(engine).run_test(size=(80, 30)) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine, "First?")
        await until_shown(pilot, "✗ It broke.")
        assert entry(pilot).box.text == ""


def folder() -> Attachment:
    texts = [Document("src/", "a tree"), Document("src/a", "a" * 10), Document("src/b", "b" * 90)]
    return make_attachment(texts)


def test_what_is_left_out_of_a_folder_leaves_the_rest() -> None:
    first, second = folder(), make_attachment([Document("c", "c" * 50)])
    assert [piece.document.name for piece in pieces([first, second])] == ["src/b", "c", "src/a"]
    _, a, b = first.documents
    (c,) = second.documents
    assert without([first, second], {b}) == (make_attachment([first.documents[0], a]), second)
    assert without([first, second], {a, b}) == (second,)
    assert without([first, second], {a, b, c}) == ()
    kept = without([first, second], {c})
    assert kept[0] is first


def test_how_much_has_to_go_is_told_by_what_was_counted() -> None:
    counted = replace(make_attachment([Document("a", "a" * 100_000)]), tokens=50_000)
    assert excess_text(1_000, [counted]) == "1,000 tokens too many: leave out about 2 KB"
    assert excess_text(1, [folder()]) == "1 token too many: leave out about 4 B"
    assert sum(piece.tokens for piece in pieces([counted])) == 50_000


@pytest.mark.parametrize("width", [20, 40, 80])
@pytest.mark.parametrize("ticked", [True, False])
def test_a_document_to_leave_out_is_a_line(width: int, ticked: bool) -> None:
    for name in ("a", "very/" * 40 + "x", "漢字" * 40, "\x1b[31m\n"):
        (piece,) = pieces([make_attachment([Document(name, "x" * 1000)])])
        drawn = leave_out_screen.line(piece, ticked, width)
        assert drawn.cell_length <= width
        assert drawn.plain.isprintable()

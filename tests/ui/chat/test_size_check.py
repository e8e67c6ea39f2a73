"""A question that is too long without any document costs nothing: all of it stays where it was."""

from __future__ import annotations

from pathlib import Path

from textual.pilot import Pilot

from app.protocol.reasons import Failure, FailureKind, too_long
from app.protocol.stats import Phase
from app.store.store import Store
from app.ui.attach.chips import Chips
from app.ui.chat.composer import Composer
from tests.fakes import FakeEngine, Story
from tests.ui.helpers import (
    DOCUMENT,
    ask,
    attach,
    kept_app,
    paste,
    repository,
    started,
    type_in,
    until,
    until_gone,
    until_shown,
)

OTHER = "Pack my box with five dozen liquor jugs.\n" * 2_000
TOO_LONG = Story(failure=too_long(53_360, "qwen3-8b-4bit", 40_960))


def entry(pilot: Pilot[None]) -> Composer:
    return pilot.app.chat.composer  # type: ignore[attr-defined, no-any-return]


def chips(pilot: Pilot[None]) -> list[str]:
    return [each.name for each in pilot.app.screen_stack[0].query_one(Chips).attached]


async def test_a_conversation_that_is_full_says_so() -> None:
    engine = FakeEngine(Story(answer="Yes.", prompt_tokens=41_000))
    async with started(engine, (80, 30)) as pilot:
        await ask(pilot, engine)
        await until_shown(pilot, "▸ Read")
        await type_in(pilot, "More?")
        await pilot.press("enter")
        await until_shown(pilot, "The conversation is too long", "^N starts a new one", "❯ More?")
        assert len(engine.asks) == 1
        # A question that is too long by itself says so, too.
        await pilot.press("ctrl+n", "ctrl+n")
        await until_gone(pilot, "More?")
        await type_in(pilot, "Why? " * 34_000)
        await pilot.press("enter")
        await until_shown(pilot, "The question is too long", "text as a file")
        assert len(engine.asks) == 1
        # Documents are no reason to refuse one: of a conversation with documents, those that were
        # read last may make room for others.
        entry(pilot).box.clear()
        engine.story = Story(answer="Yes.", prompt_tokens=40_900)
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine, "First?")
        await until_shown(pilot, "▸ Read")
        attach(pilot, repository(), tokens=8_000_000)
        await until_shown(pilot, "8,000,000 tokens in 30 files · only the best")
        await ask(pilot, engine, "More?")
        assert len(engine.asks) == 3


async def test_a_refused_question_returns_to_the_box_unchanged(tmp_path: Path) -> None:
    """Nothing of it stays in the conversation, and at the next start it is still there."""
    engine = FakeEngine(Story(answer="Yes."))
    async with kept_app(tmp_path, engine, size=(80, 30)) as (pilot, app):
        await until_shown(pilot, "ready")
        await ask(pilot, engine, "First?")
        await until_shown(pilot, "▸ Read")
        engine.story = TOO_LONG
        await paste(pilot, DOCUMENT)
        await paste(pilot, OTHER)
        await pilot.press("ctrl+t")
        await type_in(pilot, "Which box?")
        await pilot.press("enter")
        await until_shown(pilot, "❯ Which box?", "at most 40,960", "next: FULL")
        await until_gone(pilot, "✗ failed")
        assert chips(pilot) == ["Paste 1", "Paste 2"]
        branch = app.chat.open_chats.shown.conversation.branch
        assert [turn.question.text for turn in branch] == ["First?"]
    async with kept_app(tmp_path, engine := FakeEngine()) as (pilot, app):
        await until_shown(pilot, "❯ Which box?", "next: FULL", "▸ Read")
        assert chips(pilot) == ["Paste 1", "Paste 2"]
        await pilot.press("enter")
        await until(pilot, lambda: engine.asks)
        assert [m.text for m in engine.asks[0].messages][::2] == ["First?", "Which box?"]


async def test_a_first_question_that_is_refused_leaves_no_title(tmp_path: Path) -> None:
    engine = FakeEngine(TOO_LONG)
    async with kept_app(tmp_path, engine, size=(110, 30)) as (pilot, app):
        await until_shown(pilot, "ready")
        await type_in(pilot, "Which box?")
        await pilot.press("enter")
        await until_shown(pilot, "❯ Which box?", "(no question yet)")
        assert app.chat.open_chats.shown.title == ""
        await pilot.pause()
        assert app.chat.sub_title == ""
        # A queued question returns after the refused one.
        entry(pilot).box.clear()
        engine.stepping = True
        await ask(pilot, engine, "First?")
        await type_in(pilot, "Second?")
        await pilot.press("enter")
        await until_shown(pilot, "queued · Esc takes it back")
        engine.finish()
        await until(pilot, lambda: entry(pilot).box.text == "First?\nSecond?")
        assert len(engine.asks) == 2
    with Store(tmp_path) as store:
        assert [each.title for each in store.conversations()] == [""]


async def test_an_edited_question_that_is_refused_is_still_edited() -> None:
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine, (80, 30)) as pilot:
        await ask(pilot, engine, "First?")
        await until_shown(pilot, "▸ Read")
        engine.story = TOO_LONG
        await pilot.press("tab", "ctrl+e")
        await until_shown(pilot, "Editing an earlier question")
        await type_in(pilot, " Really?")
        await pilot.press("enter")
        await until_shown(pilot, "at most 40,960")
        assert entry(pilot).box.text == "First? Really?"
        composer = pilot.app.chat.composer  # type: ignore[attr-defined]
        await until(pilot, lambda: composer.edited)
        engine.story = Story(answer="Yes.")
        await pilot.press("enter")
        await until_shown(pilot, "‹ 2/2 ›")
        assert [m.text for m in engine.asks[-1].messages] == ["First? Really?"]
        # An answer that fails later stays where it is: only what was not begun comes back.
        engine.story = Story(fails_in=Phase.PREFILL, failure=Failure(FailureKind.NO_MODEL))
        await ask(pilot, engine, "Second?")
        await until_shown(pilot, "✗ No model is loaded.")
        assert entry(pilot).box.text == ""

"""A question that is too long without any document costs nothing: all of it stays where it was."""

from __future__ import annotations

from pathlib import Path

from textual.pilot import Pilot

from app.protocol.reasons import too_long
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
    """Nothing of it stays in the conversation."""
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

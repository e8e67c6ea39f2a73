"""Choosing a message, and everything that can be done with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.protocol.events import Token
from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.prompt import Role
from app.protocol.reasons import too_long
from app.store import records
from app.store.store import Store
from app.ui.app import SpecchatApp
from app.ui.spans.screen import SpansScreen
from app.ui.transcript.message import MessageView
from tests.fakes import FakeEngine, Story
from tests.tables import slow
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    app_with,
    ask,
    kept_app,
    paste,
    screen_text,
    type_in,
    until,
    until_gone,
    until_shown,
)

CODE = "Do:\n\n```python\nx = 1\n```\n\nor\n\n```sh\nls\npwd\n```\n"


def chosen(app: SpecchatApp) -> tuple[str, str] | None:
    """The chosen message: its part and the text of its question."""
    view = app.chat.transcript.selected
    return None if view is None else (str(view.part), view.turn.question.text)


async def answered(pilot: Pilot[None], engine: FakeEngine, *questions: str) -> None:
    await until_shown(pilot, "ready")
    for question in questions:
        await ask(pilot, engine, question)
        await until(pilot, lambda: not pilot.app.chat.readiness.busy, "the answer")  # type: ignore[attr-defined]


async def choose(pilot: Pilot[None], app: SpecchatApp, part: str, question: str) -> None:
    """While the messages are drawn again, none is chosen."""
    while chosen(app) != (part, question):
        before = chosen(app)
        await pilot.press("tab" if before is None else "up")
        await until(pilot, lambda before=before: chosen(app) != before, "another one")


async def test_messages_are_chosen_by_keys_and_by_clicks() -> None:
    app = app_with(engine := FakeEngine(Story(answer="Yes.")))
    async with app.run_test(size=SMALL) as pilot:
        await answered(pilot, engine, "One?", "Two?")
        # Tab chooses the last one, and arrows go through all.
        await pilot.press("tab")
        await until(pilot, lambda: chosen(app) == ("answer", "Two?"))
        await until_shown(pilot, "▌◆ Answer", "^Y copy", "^A again")
        assert "next:" not in screen_text(pilot)
        for part, question in (("question", "Two?"), ("answer", "One?"), ("question", "One?")):
            await pilot.press("up")
            await until(pilot, lambda p=part, q=question: chosen(app) == (p, q))
        await pilot.press("up", "down")
        await until(pilot, lambda: chosen(app) == ("answer", "One?"))
        await pilot.press("escape")
        await until(pilot, lambda: app.focused is app.chat.composer.box)
        await until_shown(pilot, "next: AUTO")
        assert "▌" not in screen_text(pilot)
        # Typing goes back to the box and is written there.
        await type_in(pilot, "so ")
        await pilot.press("tab")
        await until(pilot, lambda: chosen(app) is not None)
        await pilot.press("w", "h", "y")
        await until(pilot, lambda: app.chat.composer.box.text == "so why")
        # A click chooses a message.
        await pilot.click(".asked")
        await until(pilot, lambda: chosen(app) == ("question", "One?"))
        await pilot.click(".answer")
        await until(pilot, lambda: chosen(app) == ("answer", "One?"))


async def test_a_message_is_copied_as_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_with(engine := FakeEngine(Story(answer=CODE)))
    copied: list[str] = []
    monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
    async with app.run_test(size=SMALL) as pilot:
        await answered(pilot, engine, "How?\x1b")
        await pilot.press("tab", "ctrl+y")
        await until_shown(pilot, "Copied the answer")
        await pilot.press("ctrl+k")
        await until_shown(pilot, "Copied code 1 of 2 (python, 1 line). ^K again copies the next.")
        await pilot.press("ctrl+k", "ctrl+k", "up")
        await until(pilot, lambda: chosen(app) == ("question", "How?\x1b"))
        await pilot.press("ctrl+k", "ctrl+y")
        await until_shown(pilot, "Copied the question as Markdown: 5 characters")
        assert copied == [CODE, "x = 1\n", "ls\npwd\n", "x = 1\n", "How?\x1b"]


async def test_an_edited_question_makes_a_branch_and_both_can_be_shown(tmp_path: Path) -> None:
    async with kept_app(tmp_path, engine := FakeEngine(Story(answer="Yes."))) as (pilot, app):
        await paste(pilot, DOCUMENT)
        await answered(pilot, engine, "One?", "Two?")
        # A question that does not fit is still edited.
        await choose(pilot, app, "question", "One?")
        await pilot.press("ctrl+e")
        await until_shown(pilot, "❯ One?", "▣ Paste 1", "Editing an earlier question")
        engine.story = Story(failure=too_long(53_360, "qwen3-8b-4bit", 40_960))
        await pilot.press("!", "enter")
        await until_shown(pilot, "❯ One?!", "▣ Paste 1", "at most 40,960")
        await until(pilot, lambda: app.chat.composer.edited)
        await pilot.press("escape")
        await until_gone(pilot, "▣ Paste 1")
        await type_in(pilot, "written before")
        await choose(pilot, app, "question", "One?")
        await pilot.press("ctrl+e")
        await until_shown(pilot, "❯ One?", "▣ Paste 1", "Editing an earlier question")
        await pilot.press("escape")  # cancels it, and restores the draft
        await until_shown(pilot, "❯ written before")
        await choose(pilot, app, "question", "One?")
        await pilot.press("ctrl+e")
        await until_shown(pilot, "❯ One?", "▣ Paste 1", "Editing an earlier question")
        engine.story = Story(answer="No.")
        await pilot.press("backspace", "!", "enter")
        await until(pilot, lambda: len(engine.asks) == 4)
        (asked,) = engine.asks[3].messages
        assert (asked.text, asked.documents[0].text) == ("One!", DOCUMENT)
        assert asked.documents == engine.asks[0].messages[0].documents
        await until_shown(pilot, "No.", "‹ 2/2 ›", "❯ written before")
        await until_gone(pilot, "Two?")
        await choose(pilot, app, "question", "One!")
        await pilot.press("left")
        await until(pilot, lambda: chosen(app) == ("question", "One?"))
        await until_shown(pilot, "Two?", "‹ 1/2 ›", "←→ 1/2")
        await pilot.press("escape")
        await ask(pilot, engine, "")
        said = [message.text for message in engine.asks[4].messages]
        assert said == ["One?", "Yes.", "Two?", "Yes.", "written before"]
    async with kept_app(tmp_path) as (pilot, app):
        await until_shown(pilot, "Two?", "written before")
        # What was read for a stored answer in the middle can be shown.
        await choose(pilot, app, "answer", "One?")
        await pilot.press("ctrl+s")
        await until_shown(pilot, "What was read  paste-1.txt")
        assert isinstance(app.screen, SpansScreen)


@pytest.mark.slow
async def test_esc_cancels_an_edit_and_restores_the_draft() -> None:
    app = app_with(engine := FakeEngine(Story(answer="Yes.")))
    async with app.run_test(size=SMALL) as pilot:
        await answered(pilot, engine, "One?")
        await type_in(pilot, "before")
        await choose(pilot, app, "question", "One?")
        await pilot.press("ctrl+e")
        await until_shown(pilot, "❯ One?")
        await pilot.press("escape")
        await until_shown(pilot, "❯ before")
        await pilot.press("enter")
        await until(pilot, lambda: len(engine.asks) == 2)
        assert len(engine.asks[1].messages) == 3


@pytest.mark.parametrize(
    ("keys", "mode", "keep"),
    [
        slow(["ctrl+a"], Mode.AUTO, AUTO_KEEP),
        slow(["ctrl+r"], Mode.FULL, AUTO_KEEP),
        (["ctrl+g", "3", "5", "enter"], Mode.SPARSE, 0.35),
    ],
)
async def test_an_answer_in_the_middle_is_answered_again(
    keys: list[str], mode: Mode, keep: float
) -> None:
    """And stopped, the answers before are back."""
    app = app_with(engine := FakeEngine(Story(answer="Yes.")))
    async with app.run_test(size=SMALL) as pilot:
        await answered(pilot, engine, "One?", "Two?")
        await choose(pilot, app, "answer", "One?")
        engine.story = Story(answer="Better.")
        await pilot.press(*keys)
        await until(pilot, lambda: len(engine.asks) == 3)
        assert (engine.asks[2].mode, engine.asks[2].keep_ratio) == (mode, keep)
        assert [message.text for message in engine.asks[2].messages] == ["One?"]
        await until_shown(pilot, "Better.", "‹ 2/2 ›", "next: AUTO")
        await until_gone(pilot, "Two?")
        await pilot.press("tab", "left")
        await until_shown(pilot, "Two?", "Yes.", "‹ 1/2 ›")
        assert "Better." not in screen_text(pilot)
        await pilot.press("right")
        await until_shown(pilot, "Better.", "‹ 2/2 ›")
        await pilot.press("escape")
        await pilot.click("AnswerView Speaker", offset=(10, 0))
        await until_shown(pilot, "Two?", "‹ 1/2 ›")
        # Stopped again, the old answers are back.
        await choose(pilot, app, "answer", "One?")
        engine.stepping = True
        await pilot.press("ctrl+a")
        await until_gone(pilot, "Two?")
        await until(pilot, lambda: len(engine.asks) == 4)
        engine.advance_to(lambda event: isinstance(event, Token))
        # Nothing is changed while an answer is written.
        await pilot.press("tab", "ctrl+d")
        await until_shown(pilot, "Still answering. Esc stops it.")
        await pilot.press("escape")
        await until(pilot, lambda: app.focused is app.chat.composer.box)
        await pilot.press("escape")
        await until(pilot, lambda: engine.cancelled)
        engine.finish()
        await until_shown(pilot, "■ stopped", "Two?")


async def test_a_deleted_message_can_be_restored(tmp_path: Path) -> None:
    engine = FakeEngine(Story(answer="Yes."))
    async with kept_app(tmp_path, engine, (80, 40)) as (pilot, app):
        await answered(pilot, engine, "One?", "Two?", "Three?")
        await choose(pilot, app, "question", "Two?")
        await pilot.press("ctrl+d")
        await until_shown(pilot, "Question and answer deleted, with 1 question after it. ^Z")
        await until_gone(pilot, "Two?")
        with Store(tmp_path) as beside:
            assert len(beside.branch(1)) == 2
        await pilot.press("ctrl+z")
        await until_shown(pilot, "Two?", "Three?", "Restored.")
        await choose(pilot, app, "question", "One?")
        await pilot.press("ctrl+d")
        await until_gone(pilot, "❯ You")
        await pilot.press("ctrl+z")
        await until_shown(pilot, "❯ You", "Two?", "Three?")
        with Store(tmp_path) as beside:
            assert len(beside.branch(1)) == 6
        # Keys that come before a deletion is done wait for it. The view of what is deleted goes
        # first: whoever sees that may press ^Z at once.
        await choose(pilot, app, "question", "One?")
        message = app.chat.transcript.selected
        assert message is not None
        for what in ("delete", "delete", "undo"):
            app.chat.post_message(MessageView.Act(message, what))
        await until_shown(pilot, "Restored.", "One?", "Two?")
        app.chat.post_message(MessageView.Act(message, "delete"))
        with Store(tmp_path) as beside:
            await until(pilot, lambda: beside.branch(1) == ())
        app.chat.post_message(MessageView.Act(message, "undo"))
        with Store(tmp_path) as beside:
            await until(pilot, lambda: len(beside.branch(1)) == 6, "what was deleted")
        await until_shown(pilot, "Restored.", "One?", "Two?")


async def test_thinking_is_one_line_that_opens_and_is_kept(tmp_path: Path) -> None:
    story = Story(answer="Yes.", thinking="First\x1b this,\nthen [b]that[/b].")
    async with kept_app(tmp_path, engine := FakeEngine(story, stepping=True)) as (pilot, _):
        await until_shown(pilot, "ready")
        await ask(pilot, engine, "One?")
        for _ in range(3):
            engine.advance_to(lambda event: isinstance(event, Token))
        await until_shown(pilot, "▸ thinking… ", "3 tokens")
        engine.finish()
        await until_shown(pilot, "▸ thought for ", "6 tokens")
        assert "First" not in screen_text(pilot)
        await pilot.press("tab", "enter")
        await until_shown(pilot, "▾ thought for", "│ First␛ this,", "│ then [b]that[/b].")
        await pilot.click(".thinking")
        await until_gone(pilot, "First")
    async with kept_app(tmp_path) as (pilot, _):
        await until_shown(pilot, "▸ thought · 4 words")
        await pilot.press("tab", "enter")
        await until_shown(pilot, "│ First␛ this,")


async def test_a_hit_opens_at_its_message(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        id = store.create("Long").id
        for number in range(12):
            words = "the needle" if number == 2 else "hay"
            asked = store.add_message(id, Role.USER, f"Question {number}?")
            reply = store.begin_reply(asked.id)
            reply.append(f"Answer {number} is {words}.\n\n" + "More of it.\n\n" * 10)
            reply.finish()
        store.save_draft(records.DraftRecord(None))
    async with kept_app(tmp_path) as (pilot, app):
        await until_shown(pilot, "ready")
        await pilot.press("ctrl+o")
        await until_shown(pilot, "Conversations")
        await pilot.press(*"needle")
        await until_shown(pilot, "the needle")
        await pilot.press("enter")
        await until_shown(pilot, "Answer 2 is the needle.", "▌◆ Answer")
        assert chosen(app) == ("answer", "Question 2?")
        await pilot.press("up")
        await until_shown(pilot, "Question 2?", "Answer 2 is the needle.")


def test_each_key_of_a_message_does_one_thing() -> None:
    keys = [key for binding in MessageView.BINDINGS for key in binding.key.split(",")]  # type: ignore[union-attr]
    assert len(keys) == len(set(keys))

"""What the user does and what then happens, through the whole app on the scripted engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Markdown

from app.chat import wording
from app.protocol.commands import Load
from app.protocol.events import CommandFailed, Event, ImportanceMap, PhaseProgress, Selected, Token
from app.protocol.options import Mode
from app.protocol.prompt import Document, Role
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import Phase
from app.ui.attach.chips import Chip
from app.ui.chat.composer import ComposeBox
from app.ui.transcript.panel import PrefillPanel
from tests.fakes import FakeEngine, LoadStory, Story
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    app_with,
    ask,
    kept_app,
    paste,
    screen_text,
    started,
    type_in,
    until,
    until_gone,
    until_shown,
)

HOSTILE_DOCUMENT = "a\r\nb\rc\x00d\x0ce\x1b[31mf\u2028g\u202eh\n" * 4_000
NOTE = "≈ The model was unsure after reading 21% of paste-1.txt · ^R reads in"


def sized(event: Event, phase: Phase, part: float) -> bool:
    return (
        isinstance(event, PhaseProgress)
        and event.phase is phase
        and event.done >= part * event.total
    )


# ------------------------------------------------------------------------------ loading


async def test_the_pair_is_loaded_after_the_first_drawing() -> None:
    """With a hint at what would make the machine faster."""
    engine = FakeEngine(load_story=LoadStory(faster="libfast"))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(
            pilot, "ready", "qwen3-8b-4bit + qwen3-0.6b-4bit", "mem ", "5.5 GB of 24 GB"
        )
        await until_shown(pilot, "run many times faster with libfast")
        assert engine.commands == [Load("models/target-model", "models/draft-model")]


async def test_a_pair_that_does_not_load_says_why_and_what_to_do() -> None:
    failure = CommandFailed(Failure(FailureKind.WEIGHTS_DAMAGED, {"folder": "models/none"}))
    engine = FakeEngine(load_story=LoadStory(failure=failure))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, *wording.failure(failure.failure).sentences)
        await type_in(pilot, "Hello?")
        await pilot.press("enter")
        await until_shown(pilot, "No model is loaded.", "Hello?")
        assert engine.asks == []


async def test_a_dense_only_pair_says_so() -> None:
    engine = FakeEngine(load_story=LoadStory(dense_only="gpt2 has no rotary positions"))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "no sparse reading", "cannot skip text (gpt2 has no rotary")


# ------------------------------------------------------------------------------ pastes


async def test_a_long_paste_becomes_a_chip_and_is_asked_about_exactly() -> None:
    """Chips without a question ask for one."""
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine) as pilot:
        for number, text in enumerate((DOCUMENT, HOSTILE_DOCUMENT)):
            await paste(pilot, text)
            await until_shown(pilot, "▣ Paste 1 · ")
            assert pilot.app.screen.query_one(ComposeBox).text == ""
            if text == DOCUMENT:
                await until_shown(pilot, "Paste 1 · 102 KB · 2,276 lines")
                await pilot.press("enter")
                await until_shown(pilot, "Type a question about the attachments")
                assert engine.asks == []
            await ask(pilot, engine, "What jumps?")
            message = engine.asks[number].messages[-1]
            assert message.role is Role.USER
            assert message.text == "What jumps?"
            assert message.documents == (Document("paste-1.txt", text),)
            await until_gone(pilot, "Paste 1")
            await until_shown(pilot, "Read 2")
            await pilot.press("ctrl+n", "ctrl+n")
            await until_gone(pilot, "What jumps?")


async def test_pastes_are_typed_up_to_4096_bytes_and_chips_can_be_taken_away() -> None:
    """By backspace in an empty box, the last one; by its cross, any."""
    async with app_with(FakeEngine()).run_test(size=SMALL) as pilot:
        box = pilot.app.screen.query_one(ComposeBox)
        # A short hostile paste is shown as it will be sent.
        await paste(pilot, "red \x1b[31m\r\nnext")
        await until(pilot, lambda: box.text == "red ␛[31m\nnext")
        box.clear()
        await paste(pilot, "é" * 2_048)
        await until(pilot, lambda: box.text == "é" * 2_048)
        box.clear()
        await paste(pilot, "é" * 2_048 + "e")
        await until_shown(pilot, "Paste 1")
        assert box.text == ""
        await pilot.press("backspace")
        await until_gone(pilot, "Paste 1")
        await paste(pilot, DOCUMENT)
        await paste(pilot, DOCUMENT + "more")
        await until_shown(pilot, "Paste 2")
        await pilot.press("x", "backspace")
        await until_shown(pilot, "Paste 2")
        await pilot.press("backspace")
        await until_gone(pilot, "Paste 2")
        await until_shown(pilot, "Paste 1")
        await paste(pilot, DOCUMENT + "more")
        await until_shown(pilot, "Paste 2")
        line = next(line for line in screen_text(pilot).splitlines() if "Paste 1" in line)
        chip = pilot.app.screen.query(Chip).first()
        await pilot.click(chip, offset=(line.index("✕") - chip.region.x, 0))
        await until_gone(pilot, "Paste 1")
        await until_shown(pilot, "Paste 2")


# ------------------------------------------------------------------------------ reading


async def test_phases_strip_spans_answer_and_figures_show() -> None:
    engine = FakeEngine(stepping=True)
    async with started(engine) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine, "What jumps?")
        engine.advance_to(lambda event: sized(event, Phase.SCORE, 0.49))
        await until_shown(pilot, "▶ Scoring the text", "scored 50%", "first word in")
        engine.advance_to(lambda event: isinstance(event, ImportanceMap) and event.observed == 2)
        await until_shown(pilot, "importance so far", "█", "·····")
        engine.advance_to(lambda event: isinstance(event, Selected))
        await until_shown(pilot, "selected · 6 passages", "═")
        # The details open while it reads, and stay open until they are closed.
        assert "prepare text" not in screen_text(pilot)
        await pilot.press("tab", "space")
        await until_shown(pilot, "Phases", "✓ prepare text", "Why", "A sparse read is expected")
        await pilot.press("space")
        await until_gone(pilot, "prepare text")
        engine.advance_to(lambda event: sized(event, Phase.PREFILL, 0.5))
        await until_shown(pilot, "▶ Reading 21% of paste-1.txt", "first word in")
        engine.advance_to(lambda event: isinstance(event, Token))
        await until_shown(pilot, "▶ Answering", "The")
        engine.finish()
        await until_shown(pilot, "▸ Read 21% of paste-1.txt", "^R read in full", "general-purpose")
        assert "selected ·" not in screen_text(pilot)
        # The answer is there once and whole: streamed in small pieces and then set as a whole, and
        # nothing after that adds to it.
        await until(pilot, lambda: not pilot.app.chat.readiness.busy)  # type: ignore[attr-defined]
        await pilot.press("ctrl+g", "pageup", "escape")
        await until(pilot, lambda: len(engine.selected) >= 1)
        await until_gone(pilot, "Esc cancel")
        assert pilot.app.screen.query_one(Markdown).source == engine.story.answer


async def test_the_panel_opens_and_folds() -> None:
    engine = FakeEngine(Story(answer="Short."))
    async with started(engine) as pilot:
        await ask(pilot, engine)
        await until_shown(pilot, "▸ Read")
        await pilot.press("shift+tab", "space")
        await until_shown(pilot, "▾ Read", "partly selected", "Why", "A sparse read is expected")
        await pilot.press("enter")
        await until_shown(pilot, "▸ Read")
        panel = pilot.app.screen.query_one(PrefillPanel)
        await until(pilot, lambda: panel.region.height == 1, "the layout of the folded panel")
        await pilot.click(panel)
        await until_shown(pilot, "▾ Read")
        # A paste while a panel has the focus goes to the box.
        panel.focus()
        await paste(pilot, "pasted")
        await until(pilot, lambda: pilot.app.screen.query_one(ComposeBox).text == "pasted")


async def test_a_failure_says_what_to_do_and_is_not_sent_to_the_model_later() -> None:
    engine = FakeEngine(Story(fails_in=Phase.PREFILL))
    async with started(engine) as pilot:
        await ask(pilot, engine)
        await until_shown(pilot, "✗ failed", "Memory was nearly used up", "Read less (Ctrl+G")
        engine.story = Story(answer="Fine.")
        await ask(pilot, engine, "And now?")
        assert [message.text for message in engine.asks[1].messages] == ["And now?"]
        # A fallback is shown with its reason.
        engine.story = Story(answer="Fine.", falls_back="no draft")
        await ask(pilot, engine)
        await until_shown(pilot, "Read everything", "Sparse reading failed (no draft)")
        # An unsure answer offers to read everything, and does nothing by itself.
        engine.story = Story(answer="Yes.", unsure=True)
        await pilot.press("ctrl+n", "ctrl+n")
        await until_gone(pilot, "Fine.")
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await until_shown(pilot, NOTE)
        assert len(engine.asks) == 4
        engine.story = Story(answer="Yes.")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(engine.asks) == 5)
        await until_gone(pilot, "was unsure after")
        assert engine.asks[4].mode is Mode.FULL


async def test_markup_and_control_characters_are_shown_and_not_obeyed() -> None:
    evil = "[@click=app.quit]x[/] [bold]b[/] \x1b[2J\u202e <b>html</b> &#x202E;"
    engine = FakeEngine(Story(answer=evil), LoadStory(target="[red]model\x1b[/]"))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready", "[red]model␛[/]")
        await ask(pilot, engine, "[@click=app.quit]me[/] \u202e")
        await until_shown(pilot, "[@click=app.quit]me[/] ⟨RLO⟩", "[@click=app.quit]x[/] [bold]b[/]")
        await until_shown(pilot, "␛[2J⟨RLO⟩", "<b>html</b>")
        text = screen_text(pilot)
        assert "\x1b" not in text
        assert "\u202e" not in text


@pytest.mark.slow
async def test_a_question_that_asks_for_every_token_says_so_also_after_the_next_start(
    tmp_path: Path,
) -> None:
    async with kept_app(tmp_path, engine := FakeEngine(Story(guard="how many"))) as (pilot, _):
        await pilot.press("ctrl+t")
        await ask(pilot, engine, "How many are there?")
        await until_shown(pilot, "▸ Read everything in 1.9 s", "to need the whole text")
    async with kept_app(tmp_path) as (pilot, _):
        await until_shown(pilot, "▸ Read everything in 1.9 s", "to need the whole text")


@pytest.mark.slow
async def test_the_details_open_while_it_reads_and_stay_open() -> None:
    engine = FakeEngine(Story(answer="Short."), stepping=True)
    async with started(engine) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        engine.advance_to(lambda event: isinstance(event, Selected))
        await until_shown(pilot, "selected · 6 passages")
        assert "prepare text" not in screen_text(pilot)
        await pilot.press("tab", "space")
        await until_shown(pilot, "Phases", "✓ prepare text", "Why", "A sparse read is expected")
        engine.finish()
        await until_shown(pilot, "▾ Read 21%", "First word  after 1.9 s", "peak 6 GB")
        await pilot.press("space")
        await until_shown(pilot, "▸ Read 21%")
        await until_gone(pilot, "peak 6 GB")

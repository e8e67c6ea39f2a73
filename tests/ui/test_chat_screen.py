"""What the user does and what then happens, through the whole app on the scripted engine."""

from __future__ import annotations

import random

import pytest
from textual.widgets import Markdown

from app.engine.messages import (
    Cancel,
    Close,
    Document,
    Event,
    Failed,
    Finished,
    ImportanceMap,
    Load,
    Mode,
    Phase,
    PhaseProgress,
    Reselect,
    Role,
    Selected,
    Token,
)
from app.ui.chat.compose import ComposeBox
from app.ui.prefill.panel import PrefillPanel
from app.ui.terminal.paste import PasteSafeParser
from tests.fakes import FakeEngine, LoadStory, Story
from tests.ui.helpers import (
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

pytestmark = pytest.mark.asyncio

DOCUMENT = "The quick brown fox jumps over the lazy dog.\n" * 2_276
HOSTILE_DOCUMENT = "a\r\nb\rc\x00d\x0ce\x1b[31mf\u2028g\u202eh\n" * 4_000


def is_progress(event: Event, phase: Phase) -> bool:
    return isinstance(event, PhaseProgress) and event.phase is phase


def sized(event: Event, phase: Phase, part: float) -> bool:
    return (
        isinstance(event, PhaseProgress)
        and event.phase is phase
        and event.done >= part * event.total
    )


# ------------------------------------------------------------------------------ loading


async def test_the_pair_is_loaded_after_the_first_drawing() -> None:
    engine = FakeEngine()
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready", "qwen3-8b-4bit + qwen3-0.6b-4bit", "mem ", "21/32 GB")
        assert engine.commands == [Load("models/target-model", "models/draft-model")]


async def test_a_pair_that_does_not_load_says_why_and_what_to_do() -> None:
    failure = Failed(None, "The folder holds no model.", "Name another with --target.")
    engine = FakeEngine(load_story=LoadStory(failure=failure))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, failure.problem, failure.advice)
        await type_in(pilot, "Hello?")
        await pilot.press("enter")
        await until_shown(pilot, "No model is loaded, so nothing can be asked.", "Hello?")
        assert engine.asks == []


async def test_a_dense_only_pair_says_so() -> None:
    engine = FakeEngine(load_story=LoadStory(dense_only="gpt2 has no rotary positions."))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "reads in full only", "gpt2 has no rotary positions.")


# ------------------------------------------------------------------------------ pastes


@pytest.mark.parametrize("text", [DOCUMENT, HOSTILE_DOCUMENT], ids=["plain", "hostile"])
async def test_a_long_paste_becomes_a_chip_and_is_asked_about_exactly(text: str) -> None:
    engine = FakeEngine()
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, text)
        await until_shown(pilot, "▣ Paste 1 · ")
        assert pilot.app.screen.query_one(ComposeBox).text == ""
        await ask(pilot, engine, "What jumps?")
        message = engine.asks[0].messages[-1]
        assert message.role is Role.USER
        assert message.text == "What jumps?"
        assert message.documents == (Document("paste-1.txt", text),)
        await until_gone(pilot, "Paste 1")
        await until_shown(pilot, "read 2")


async def test_a_chip_tells_size_and_lines() -> None:
    async with app_with(FakeEngine()).run_test(size=SMALL) as pilot:
        await paste(pilot, DOCUMENT)
        await until_shown(pilot, "Paste 1 · 102 KB · 2,276 lines")


async def test_4096_bytes_are_typed_and_one_more_is_a_chip() -> None:
    async with app_with(FakeEngine()).run_test(size=SMALL) as pilot:
        box = pilot.app.screen.query_one(ComposeBox)
        await paste(pilot, "é" * 2_048)
        await until(pilot, lambda: box.text == "é" * 2_048)
        box.clear()
        await paste(pilot, "é" * 2_048 + "e")
        await until_shown(pilot, "Paste 1")
        assert box.text == ""


async def test_backspace_in_an_empty_box_takes_the_last_chip() -> None:
    async with app_with(FakeEngine()).run_test(size=SMALL) as pilot:
        await paste(pilot, DOCUMENT)
        await paste(pilot, DOCUMENT + "more")
        await until_shown(pilot, "Paste 2")
        await pilot.press("x", "backspace")
        await until_shown(pilot, "Paste 2")
        await pilot.press("backspace")
        await until_gone(pilot, "Paste 2")
        await until_shown(pilot, "Paste 1")


async def test_the_cross_of_a_chip_takes_that_chip() -> None:
    async with app_with(FakeEngine()).run_test(size=SMALL) as pilot:
        await paste(pilot, DOCUMENT)
        await paste(pilot, DOCUMENT)
        await until_shown(pilot, "Paste 2")
        await pilot.click(".chip-remove")
        await until_gone(pilot, "Paste 1")
        await until_shown(pilot, "Paste 2")


async def test_a_short_hostile_paste_is_shown_as_it_will_be_sent() -> None:
    async with app_with(FakeEngine()).run_test(size=SMALL) as pilot:
        await paste(pilot, "red \x1b[31m\r\nnext")
        box = pilot.app.screen.query_one(ComposeBox)
        await until(pilot, lambda: box.text == "red ␛[31m\nnext")


async def test_a_paste_while_a_panel_has_the_focus_goes_to_the_box() -> None:
    engine = FakeEngine()
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await until_shown(pilot, "▸ read")
        pilot.app.screen.query_one(PrefillPanel).focus()
        await paste(pilot, "pasted")
        await until(pilot, lambda: pilot.app.screen.query_one(ComposeBox).text == "pasted")


async def test_chips_without_a_question_ask_for_one() -> None:
    engine = FakeEngine()
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT)
        await until_shown(pilot, "Paste 1")
        await pilot.press("enter")
        await until_shown(pilot, "Type a question about what you pasted")
        assert engine.asks == []


# ------------------------------------------------------------------------------ reading


async def test_phases_strip_spans_answer_and_figures_show() -> None:
    engine = FakeEngine(stepping=True)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine, "What jumps?")
        engine.advance_to(lambda event: sized(event, Phase.SCORE, 0.49))
        await until_shown(pilot, "reading sparsely", "▶ score 12.8/25.6K", "skimmed 50%", "ETA")
        engine.advance_to(lambda event: isinstance(event, ImportanceMap) and event.observed == 2)
        await until_shown(pilot, "importance 2/4", "█", "·····")
        engine.advance_to(lambda event: isinstance(event, Selected))
        await until_shown(pilot, "kept · 6 spans", "═")
        engine.advance_to(lambda event: sized(event, Phase.PREFILL, 0.5))
        await until_shown(pilot, "✓ score", "▶ prefill")
        engine.advance_to(lambda event: isinstance(event, Token))
        await until_shown(pilot, "answering", "The")
        engine.finish()
        await until_shown(pilot, "▸ read 2", "first word 1.9 s", "31 tok/s", "general-purpose")
        assert "kept ·" not in screen_text(pilot)


async def test_the_panel_opens_and_folds() -> None:
    engine = FakeEngine(Story(answer="Short."))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await until_shown(pilot, "▸ read")
        await pilot.press("shift+tab", "space")
        await until_shown(pilot, "▾ read", "kept in part", "why: Sparse is predicted")
        await pilot.press("enter")
        await until_shown(pilot, "▸ read")
        await pilot.click(PrefillPanel)
        await until_shown(pilot, "▾ read")


async def test_the_answer_is_there_once_and_whole() -> None:
    """Streamed in small pieces and then set as a whole, and nothing after that adds to it."""
    engine = FakeEngine()
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await until_shown(pilot, "▸ read")
        await pilot.press("ctrl+g", "pageup", "escape")
        await until(pilot, lambda: len(engine.sent(Reselect)) >= 1)
        await until_gone(pilot, "Esc leave")
        assert pilot.app.screen.query_one(Markdown).source == engine.story.answer


async def test_a_fall_back_is_said_with_its_reason() -> None:
    engine = FakeEngine(Story(falls_back="The draft ran out of memory."))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await until_shown(pilot, "read 100%", "full", "The draft ran out of memory.")


async def test_a_failure_says_what_to_do_and_is_left_out_afterwards() -> None:
    engine = FakeEngine(Story(fails_in=Phase.PREFILL))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await until_shown(pilot, "✗ failed", engine.story.problem, engine.story.advice)
        engine.story = Story(answer="Fine.")
        await ask(pilot, engine, "And now?")
        assert [message.text for message in engine.asks[1].messages] == ["And now?"]


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


# ------------------------------------------------------------------------------ the conversation


async def test_the_whole_conversation_is_sent_with_the_ids_that_were_generated() -> None:
    engine = FakeEngine(Story(answer="One two three."))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine, "First?")
        await until_shown(pilot, "▸ read")
        await ask(pilot, engine, "Second?")
        first, answer, second = engine.asks[1].messages
        assert first == engine.asks[0].messages[0]
        assert first.documents[0].text == DOCUMENT
        assert (answer.role, answer.text) == (Role.ASSISTANT, "One two three.")
        assert answer.token_ids == (1000, 1001, 1002)
        assert (second.text, second.documents) == ("Second?", ())
        assert engine.asks[1].turn == 2


async def test_one_question_waits_and_a_second_is_refused() -> None:
    engine = FakeEngine(stepping=True)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine, "First?")
        await type_in(pilot, "Second?")
        await pilot.press("enter")
        await until_shown(pilot, "waiting for its turn", "Second?")
        await type_in(pilot, "Third?")
        await pilot.press("enter")
        await until_shown(pilot, "One question waits already.", "Third?")
        assert len(engine.asks) == 1
        engine.advance_to(lambda event: isinstance(event, Finished))
        await until(pilot, lambda: len(engine.asks) == 2, "the waiting question to be sent")
        assert [m.text for m in engine.asks[1].messages][::2] == ["First?", "Second?"]
        await until_gone(pilot, "waiting for its turn")


async def test_a_question_asked_while_loading_is_sent_when_the_pair_is_ready() -> None:
    engine = FakeEngine(step_load=True)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "loading the models")
        await type_in(pilot, "Early?")
        await pilot.press("enter")
        await until_shown(pilot, "waiting for its turn")
        assert engine.asks == []
        engine.finish()
        await until(pilot, lambda: len(engine.asks) == 1)


async def test_escape_takes_back_what_waits_and_then_stops() -> None:
    engine = FakeEngine(stepping=True)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine, "First?")
        await paste(pilot, DOCUMENT)
        await type_in(pilot, "Second?")
        await pilot.press("enter")
        await until_shown(pilot, "waiting for its turn")
        await type_in(pilot, "Third?")
        await pilot.press("escape")
        await until_gone(pilot, "waiting for its turn")
        await until_shown(pilot, "Paste 1")
        assert pilot.app.screen.query_one(ComposeBox).text == "Second?\nThird?"
        assert engine.sent(Cancel) == []
        await pilot.press("escape")
        await until(pilot, lambda: engine.sent(Cancel) == [Cancel(1)])


async def test_what_was_written_stays_when_it_is_stopped() -> None:
    engine = FakeEngine(stepping=True)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        for _ in range(5):
            engine.advance_to(lambda event: isinstance(event, Token))
        await until_shown(pilot, 'The "Corresponding Source')
        await pilot.press("escape")
        await until(pilot, lambda: engine.sent(Cancel) == [Cancel(1)])
        engine.finish()
        await until_shown(pilot, "stopped · read", 'The "Corresponding Source', "■ stopped")
        engine.stepping = False
        await ask(pilot, engine, "Go on?")
        stopped = engine.asks[1].messages[1]
        assert stopped.text == 'The "Corresponding Source'[:25]
        assert stopped.token_ids == (1000, 1001, 1002, 1003, 1004)


async def test_stopping_before_the_first_word_keeps_the_document_in_the_conversation() -> None:
    engine = FakeEngine(stepping=True)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        engine.advance_to(lambda event: is_progress(event, Phase.SCORE))
        await pilot.press("escape")
        await until(pilot, lambda: engine.sent(Cancel))
        engine.finish()
        await until_shown(pilot, "stopped before the first word")
        await ask(pilot, engine, "Again?")
        first, nothing, _ = engine.asks[1].messages
        assert first.documents[0].text == DOCUMENT
        assert (nothing.text, nothing.token_ids) == ("", ())


async def test_again_in_full_replaces_the_turn() -> None:
    engine = FakeEngine()
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await pilot.press("ctrl+r")
        await until_shown(pilot, "There is no question to ask again.")
        await ask(pilot, engine, "What?")
        await until_shown(pilot, "▸ read")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(engine.asks) == 2)
        assert engine.asks[1].mode is Mode.FULL
        assert engine.asks[1].messages == engine.asks[0].messages
        await until_shown(pilot, "read 100%")


# ------------------------------------------------------------------------------ mode and keep


async def test_ctrl_t_reads_the_next_message_in_full_and_only_that() -> None:
    engine = FakeEngine()
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "next: AUTO")
        await pilot.press("ctrl+t")
        await until_shown(pilot, "next: FULL  (^T auto)")
        await pilot.press("ctrl+t")
        await until_shown(pilot, "next: AUTO  (^T full)")
        await pilot.press("ctrl+t")
        await ask(pilot, engine)
        assert engine.asks[0].mode is Mode.FULL
        await until_shown(pilot, "next: AUTO", "read 100%", "full")
        await ask(pilot, engine)
        assert engine.asks[1].mode is Mode.AUTO
        assert engine.asks[1].keep == 0.2


@pytest.mark.parametrize(
    ("keys", "percent"),
    [
        (["right", "right", "left"], 21),
        (["pageup", "pageup"], 30),
        (["pagedown"] * 9, 1),
        (["3", "5"], 35),
        (["1", "0", "0"], 100),
        (["3", "5", "7"], 7),
        (["4", "2", "backspace"], 4),
    ],
)
async def test_ctrl_g_sets_keep(keys: list[str], percent: int) -> None:
    engine = FakeEngine()
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await pilot.press("ctrl+g", *keys, "enter")
        await until_shown(pilot, f"next: SPARSE {percent}%  (^T full)")
        await pilot.press("ctrl+t")
        await until_shown(pilot, "next: FULL  (^T sparse)")
        await pilot.press("ctrl+t")
        await ask(pilot, engine)
        assert engine.asks[0].mode is Mode.SPARSE
        assert engine.asks[0].keep == percent / 100


async def test_keep_can_be_left_alone_and_given_back_to_auto() -> None:
    async with app_with(FakeEngine()).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await pilot.press("ctrl+g", "pageup", "escape")
        await until_shown(pilot, "next: AUTO")
        await pilot.press("ctrl+g", "pageup", "enter")
        await until_shown(pilot, "next: SPARSE 25%")
        await pilot.press("ctrl+g", "a")
        await until_shown(pilot, "next: AUTO")
        await until(pilot, lambda: isinstance(pilot.app.focused, ComposeBox))


async def test_keys_typed_ahead_go_where_they_belong() -> None:
    """All in one read, as over a slow line: the setter opens and closes before the text."""
    engine = FakeEngine()
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        driver = pilot.app._driver
        assert driver is not None
        for message in PasteSafeParser().feed("\x0735\rah\x1b[D\n\x1b[C?\rb"):
            driver.process_message(message)
        await until_shown(pilot, "next: SPARSE 35%", "▸ read", "❯ b")
        assert [(ask.messages[-1].text, ask.keep) for ask in engine.asks] == [("a\nh?", 0.35)]


async def test_moving_keep_reselects_on_the_last_turn() -> None:
    engine = FakeEngine(Story(answer="Short."))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await until_shown(pilot, "▸ read 2")
        await pilot.press("ctrl+g")
        await until_shown(pilot, "▾ read 2", "would read")
        before = screen_text(pilot)
        await pilot.press("5", "0")
        await until_shown(pilot, "would read 12,8")
        assert engine.commands[-1] == Reselect(1, 0.5)
        kept = [line for line in screen_text(pilot).splitlines() if "kept ·" in line]
        assert kept != [line for line in before.splitlines() if "kept ·" in line]
        await pilot.press("escape")
        await until_shown(pilot, "▸ read 2")
        await until_gone(pilot, "would read")


async def test_keep_is_not_tried_while_the_engine_works() -> None:
    engine = FakeEngine(stepping=True)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        engine.advance_to(lambda event: isinstance(event, Selected))
        await pilot.press("ctrl+g", "pageup", "enter")
        await until_shown(pilot, "next: SPARSE 25%")
        assert engine.sent(Reselect) == []


@pytest.mark.parametrize("question", ["How many are there?", "Please LIST ALL names", "every one"])
async def test_a_question_about_everything_suggests_a_full_reading(question: str) -> None:
    async with app_with(FakeEngine()).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await type_in(pilot, question)
        await until_shown(pilot, "^T reads it in full", "next: AUTO")
        await pilot.press("ctrl+t")
        await until_gone(pilot, "^T reads it in full")


# ------------------------------------------------------------------------------ box and leaving


async def test_new_lines_and_history() -> None:
    engine = FakeEngine()
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        box = pilot.app.screen.query_one(ComposeBox)
        await pilot.press("a", "ctrl+j", "b")
        assert box.text == "a\nb"
        await pilot.press("enter")
        await until(pilot, lambda: engine.asks)
        await pilot.press("c", "up")
        await until(pilot, lambda: box.text == "a\nb")
        await pilot.press("down")
        await until(pilot, lambda: box.text == "c")


async def test_the_box_grows_to_eight_lines() -> None:
    async with app_with(FakeEngine()).run_test(size=SMALL) as pilot:
        box = pilot.app.screen.query_one(ComposeBox)
        await until(pilot, lambda: box.size.height == 1)
        await pilot.press(*["ctrl+j"] * 3)
        await until(pilot, lambda: box.size.height == 4)
        await pilot.press(*["ctrl+j"] * 20)
        await until(pilot, lambda: box.size.height == 8)


async def test_help_lists_the_keys_that_work() -> None:
    async with app_with(FakeEngine()).run_test(size=(100, 50)) as pilot:
        await pilot.press("f1")
        await until_shown(pilot, "^T", "Read the next message in full", "^J", "^Q", "Esc closes")
        await pilot.press("escape")
        await until_gone(pilot, "Read the next message in full")


@pytest.mark.parametrize("keys", [["ctrl+q"], ["ctrl+c", "ctrl+c"]])
async def test_leaving_closes_the_engine(keys: list[str]) -> None:
    engine = FakeEngine()
    app = app_with(engine)
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await pilot.press(*keys)
        await until(pilot, lambda: engine.sent(Close) == [Close()])


async def test_one_ctrl_c_only_asks() -> None:
    engine = FakeEngine()
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await pilot.press("ctrl+c")
        await until_shown(pilot, "Press ^C once more to quit.")
        assert engine.sent(Close) == []


async def test_the_transcript_follows_its_end_until_the_user_scrolls_up() -> None:
    engine = FakeEngine(Story(answer="line\n\n" * 60), stepping=True)
    app = app_with(engine)
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        transcript = app.chat.transcript
        for _ in range(50):
            engine.advance_to(lambda event: isinstance(event, Token))
        await until(pilot, lambda: transcript.max_scroll_y > 10)
        await until(pilot, lambda: transcript.scroll_y == transcript.max_scroll_y)
        await pilot.press("pageup")
        await until(pilot, lambda: transcript.scroll_y < transcript.max_scroll_y)
        place = transcript.scroll_y
        height = transcript.max_scroll_y
        for _ in range(20):
            engine.advance_to(lambda event: isinstance(event, Token))
        await until(pilot, lambda: transcript.max_scroll_y > height)
        assert transcript.scroll_y == place


@pytest.mark.parametrize("seed", [7, 8])
async def test_keys_at_random_break_nothing(seed: int) -> None:
    """Any order of all our keys, in all states of a turn."""
    chooser = random.Random(seed)
    keys = ["enter", "escape", "ctrl+t", "ctrl+g", "ctrl+r", "up", "down", "a", "5", "backspace"]
    keys += ["tab", "shift+tab", "space", "pageup", "pagedown", "f1", "ctrl+j", "left", "right"]
    engine = FakeEngine(Story(answer="One. Two."), stepping=True)
    async with app_with(engine).run_test(size=(60, 20)) as pilot:
        await until_shown(pilot, "ready")
        for _ in range(60):
            await pilot.press(chooser.choice(keys))
            for _ in range(chooser.randrange(6)):
                engine.advance()
        assert pilot.app.is_running

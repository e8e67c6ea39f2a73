"""Mode, keep and all other keys."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.events import Key

from app.protocol.commands import Close, Load
from app.protocol.events import Selected
from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.prompt import Role
from app.store.store import Store
from app.ui.app import SpecchatApp
from app.ui.chat.composer import ComposeBox
from app.ui.chat.screen import ChatScreen
from app.ui.chat.slider import KeepSlider
from app.ui.help import help_rows, key_name
from app.ui.keys import SafeInput
from app.ui.settings.conversation_screen import PromptBox
from app.ui.start import Start
from app.ui.terminal_input import PasteSafeParser
from tests import fakes
from tests.fakes import FakeEngine, Story
from tests.tables import slow
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    app_with,
    ask,
    in_one_read,
    kept_app,
    paste,
    screen_text,
    started,
    type_in,
    until,
    until_gone,
    until_shown,
)

# ------------------------------------------------------------------------------ mode and keep


async def test_ctrl_t_reads_the_next_message_in_full_and_only_that() -> None:
    engine = FakeEngine(Story(answer="Short."))
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "next: AUTO")
        await pilot.press("ctrl+t")
        await until_shown(pilot, "next: FULL  (^T auto)")
        await pilot.press("ctrl+t")
        await until_shown(pilot, "next: AUTO  (^T in full)")
        await pilot.press("ctrl+t")
        await ask(pilot, engine)
        assert engine.asks[0].mode is Mode.FULL
        await until_shown(pilot, "next: AUTO", "Read everything")
        await ask(pilot, engine)
        assert engine.asks[1].mode is Mode.AUTO
        assert engine.asks[1].keep_ratio == AUTO_KEEP
        # A question about everything suggests a full reading, and an amount does not.
        for question in ("How many are there?", "Please LIST ALL names", "every one"):
            await type_in(pilot, question)
            await until_shown(pilot, "auto mode reads it in full", "next: AUTO")
            await pilot.press("ctrl+t")
            await until_gone(pilot, "reads it in full")
            await pilot.press("ctrl+t", "ctrl+u")
        await type_in(pilot, "How many days do I have to return it?")
        await until_shown(pilot, "return it?")
        assert "reads it in full" not in screen_text(pilot)
        # Keys typed ahead go where they belong: all in one read, as over a slow line, the setter
        # opens and closes before the text.
        await pilot.press("ctrl+u")
        in_one_read(pilot, "\x0735\rah\x1b[D\n\x1b[C?\rb")
        await until_shown(pilot, "next: SPARSE 35%", "▸ Read", "❯ b")
        await until(pilot, lambda: len(engine.asks) == 3 and not pilot.app.chat.readiness.busy)
        typed = [(ask.messages[-1].text, ask.keep_ratio) for ask in engine.asks[2:]]
        assert typed == [("a\nh?", 0.35)]
        # Of a chosen message all are written, where Space alone would open its figures.
        await pilot.press("ctrl+u", "tab")
        await until_shown(pilot, "^G other keep")
        in_one_read(pilot, "and then?")
        await until_shown(pilot, "❯ and then?", "▸ Read")


async def test_ctrl_g_sets_keep() -> None:
    """It can be left unchanged, set, and reset to auto."""
    engine = FakeEngine(Story(answer="Short."))
    async with started(engine) as pilot:
        # The keys of the slider stand alone.
        await until_shown(pilot, "⏎ send")
        await pilot.press("ctrl+g", "pageup")
        await until_shown(pilot, "⏎ set")
        await until_gone(pilot, "⏎ send")
        await pilot.press("escape")
        await until_shown(pilot, "next: AUTO", "⏎ send")
        await pilot.press("ctrl+g", "pageup", "enter")
        await until_shown(pilot, "next: SPARSE 25%")
        await pilot.press("ctrl+g", "a")
        await until_shown(pilot, "next: AUTO")
        await until(pilot, lambda: isinstance(pilot.app.focused, ComposeBox))
        for keys, percent in (
            (["right", "right", "left"], 21),
            (["pageup", "pageup"], 30),
            (["pagedown"] * 9, 1),
            (["1", "0", "0"], 100),
            (["3", "5", "7"], 7),
            (["4", "2", "backspace"], 4),
            (["3", "5"], 35),
        ):
            await pilot.press("ctrl+g", "a", "ctrl+g", *keys, "enter")
            await until_shown(pilot, f"next: SPARSE {percent}%  (^T in full)")
        await pilot.press("ctrl+t")
        await until_shown(pilot, "next: FULL  (^T sparse)")
        await pilot.press("ctrl+t")
        await ask(pilot, engine)
        assert engine.asks[0].mode is Mode.SPARSE
        assert engine.asks[0].keep_ratio == 0.35


async def test_what_is_typed_after_ctrl_n_belongs_to_the_new_conversation(tmp_path: Path) -> None:
    """Also while the disk is slow."""
    async with kept_app(tmp_path, engine := FakeEngine()) as (pilot, app):
        await ask(pilot, engine, "One?")
        await until(pilot, lambda: not app.chat.readiness.busy)
        disk = threading.Event()
        app.chat.open_chats.repository._disk.submit(disk.wait)
        in_one_read(pilot, "\x0eTwo?\r")
        in_one_read(pilot, "\x1b[200~and three\x1b[201~")
        await pilot.pause(0.1)
        assert "Two?" not in screen_text(pilot)
        disk.set()
        await until_shown(pilot, "❯ You\n    Two?", "❯ and three")
        await until(pilot, lambda: len(engine.asks) > 1)
        assert [[m.text for m in each.messages] for each in engine.asks] == [["One?"], ["Two?"]]


async def test_moving_keep_reselects_on_the_last_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """From what auto mode keeps, where the slider opens."""
    monkeypatch.setattr(fakes, "DEFAULT_KEEP_RATIO", 0.08)
    engine = FakeEngine(Story(answer="Short."))
    async with started(engine) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await until_shown(pilot, "▸ Read 2")
        await pilot.press("ctrl+g")
        slider = pilot.app.screen.query_one(KeepSlider)
        await until(pilot, lambda: slider.value == 8)
        assert engine.selected == [(1, AUTO_KEEP)]
        await until_shown(pilot, "▸ Read 2", " passages", "would read")
        before = screen_text(pilot)
        await pilot.press("5", "0")
        await until_shown(pilot, "would read 50% of paste-1.txt (13K tokens)")
        assert engine.selected[-1] == (1, 0.5)
        kept = [line for line in screen_text(pilot).splitlines() if " passages" in line]
        assert kept != [line for line in before.splitlines() if " passages" in line]
        await pilot.press("escape")
        await until_shown(pilot, "▸ Read 2")
        await until_gone(pilot, "would read")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: slider.value == 8)
        await pilot.press("right", "enter")
        await until_shown(pilot, "next: SPARSE 9%")


async def test_keep_is_not_tried_while_the_engine_works() -> None:
    engine = FakeEngine(stepping=True)
    async with started(engine) as pilot:
        await ask(pilot, engine)
        engine.advance_to(lambda event: isinstance(event, Selected))
        await pilot.press("ctrl+g", "pageup", "enter")
        await until_shown(pilot, "next: SPARSE 25%")
        assert engine.selected == []
        await pilot.press("ctrl+g", "5")
        engine.finish()  # now there is something to try it on
        await until_shown(pilot, "keep 5% ·", "saves nothing")
        assert engine.selected == [(1, 0.05)]


# ------------------------------------------------------------------------------ box and leaving


async def test_the_box_grows_to_eight_lines_and_has_a_history() -> None:
    engine = FakeEngine(Story(answer="Short."))
    async with started(engine) as pilot:
        box = pilot.app.screen.query_one(ComposeBox)
        await until(pilot, lambda: box.size.height == 1)
        await pilot.press(*["ctrl+j"] * 3)
        await until(pilot, lambda: box.size.height == 4)
        await pilot.press(*["ctrl+j"] * 20)
        await until(pilot, lambda: box.size.height == 8)
        box.clear()
        await pilot.press("a", "ctrl+j", "b")
        assert box.text == "a\nb"
        await pilot.press("enter")
        await until(pilot, lambda: engine.asks)
        await pilot.press("c", "up")
        await until(pilot, lambda: box.text == "a\nb")
        await pilot.press("down")
        await until(pilot, lambda: box.text == "c")
        # Joiners and other spaces are typed,
        box.clear()
        await until(pilot, lambda: not pilot.app.chat.readiness.busy)
        for event in PasteSafeParser().feed(ODD):
            assert isinstance(event, Key)
            pilot.app.post_message(event)
        await pilot.press("enter")
        await until(pilot, lambda: len(engine.asks) == 2)
        assert engine.asks[1].messages[-1].text == ODD
        # but not those that would change the direction of the text around them.
        await pilot.press("\u202e", "a")
        await until(pilot, lambda: box.text == "a")


HELP = (
    ("f2", ["Reset to the default", "A setting", "^P"]),
    ("f3", ["apply from the next question on", "Its system prompt", "^D"]),
    ("ctrl+o", ["^Y", "Duplicate the conversation", "^D", "Move to the trash", "^Z"]),
)


async def test_help_lists_the_keys_of_each_screen(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add_message(store.create("Old title").id, Role.USER, "One?")
    async with kept_app(tmp_path, size=(100, 60)) as (pilot, app):
        await until_shown(pilot, "ready")
        await pilot.press("f1")
        await until_shown(pilot, "Ten keys to start with", "Writing")
        ten = (
            screen_text(pilot)
            .split("Ten keys to start with")[1]
            .split("Writing")[0]
            .strip()
            .splitlines()
        )
        keys = [words[0] for line in ten if (words := line.strip("│▐ ▁▂▃▄▅▆▇█").split())]
        assert keys == ["Enter", "@", "Esc", "^S", "^R", "Tab", "^N", "^O", "^L", "^Q"]
        # Typing finds keys, and Escape clears that first.
        await pilot.press(*"code")
        await until_shown(pilot, "A selected message", "Copy a code block")
        assert "Ten keys to start with" not in screen_text(pilot)
        await pilot.press("escape")
        await until_shown(pilot, "Ten keys to start with")
        await pilot.press(*"ctrl+l")
        await until_shown(pilot, "List, download and load models", "Esc close")
        await until_gone(pilot, "Copy a code block")
        await pilot.press("escape", "escape")
        await until_gone(pilot, "List, download and load models")
        # A line is cleared before what is typed after that.
        await pilot.press("ctrl+o")
        await until_shown(pilot, "Conversations  1 conversation")
        await pilot.press("down", "ctrl+r")
        await until_shown(pilot, "Title: Old title")
        in_one_read(pilot, "\x15New\r")
        await until_shown(pilot, "New")
        await until_gone(pilot, "Title:")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat)
        for key, shown in HELP:
            await pilot.press(key)
            await until(pilot, lambda: app.screen is not app.chat)
            screen = app.screen
            await pilot.press("f1")
            await until_shown(pilot, *shown)
            await pilot.press("escape")
            await until(pilot, lambda screen=screen: app.screen is screen)
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is app.chat)


def test_no_key_is_listed_twice_for_the_same_thing() -> None:
    sections = (*ChatScreen.help_sections(None), ("Everywhere", SpecchatApp))  # type: ignore[arg-type]
    rows = [row for _, rows in help_rows(sections) for row in rows]
    assert len(rows) == len(set(rows))
    listed = {key for keys, _ in rows for key in keys.split()}
    bindings = (each for _, owner in sections for each in owner.BINDINGS)
    named = [each for each in bindings if isinstance(each, Binding) and each.tooltip]
    assert listed == {key for each in named for key in key_name(each.key).split()}


@pytest.mark.parametrize("keys", [slow(["ctrl+q"]), ["ctrl+c", "ctrl+c"]])
async def test_leaving_closes_the_engine(keys: list[str]) -> None:
    *asks_first, quits = keys
    async with started(engine := FakeEngine()) as pilot:
        if asks_first:
            await pilot.press(*asks_first)
            await until_shown(pilot, "Press ^C again to quit.")
            assert engine.sent(Close) == []
        await pilot.press(quits)
        await until(pilot, lambda: engine.sent(Close) == [Close()])


@pytest.mark.parametrize("key", ["99", slow("113")])
async def test_a_modifier_that_is_released_between_two_presses_is_no_key(key: str) -> None:
    """As the kitty keyboard protocol reports it."""
    engine, now = FakeEngine(stepping=True), [0.0]
    app = SpecchatApp(Start(engine, Load("models/target", None), clock=lambda: now[0]))
    async with app.run_test(size=SMALL) as pilot:
        engine.finish()
        await ask(pilot, engine)
        now[0] = 20.0
        for presses in range(2):
            assert engine.sent(Close) == []
            in_one_read(pilot, f"\x1b[57442u\x1b[{key};5u")
            if not presses:
                await until_shown(pilot, "again to quit.")
        await until(pilot, lambda: engine.sent(Close) == [Close()])


@pytest.mark.parametrize("seed", [7, slow(8)])
async def test_keys_at_random_break_nothing(seed: int) -> None:
    """Any order of all our keys, in all states of a turn."""
    chooser = random.Random(seed)
    keys = ["enter", "escape", "ctrl+t", "ctrl+g", "ctrl+r", "up", "down", "a", "5", "backspace"]
    keys += ["tab", "shift+tab", "space", "pageup", "pagedown", "f1", "ctrl+j", "left", "right"]
    engine = FakeEngine(Story(answer="One. Two."), stepping=True)
    async with started(engine, (60, 20)) as pilot:
        for _ in range(60):
            await pilot.press(chooser.choice(keys))
            for _ in range(chooser.randrange(6)):
                engine.advance()
        assert pilot.app.is_running


# ------------------------------------------------------------------------------ characters

ODD = "می\u200cخواهم क्\u200dष 👩\u200d🔬 5\u202f°C\u3000\u00a0x\U0010fffd"


async def test_other_boxes_take_joiners_too() -> None:
    boxes = PromptBox(""), SafeInput()

    class Boxes(App[None]):
        def compose(self) -> ComposeResult:
            yield from boxes

    async with Boxes().run_test() as pilot:
        for box in boxes:
            box.focus()
            await pilot.pause()
            for event in PasteSafeParser().feed("نمی\u200cخواهم"):
                pilot.app.post_message(event)
            await pilot.pause()
            typed = box.text if isinstance(box, PromptBox) else box.value
            assert typed == "نمی\u200cخواهم"


def test_keys_are_named_as_they_are_printed() -> None:
    keys = "number_sign,at,slash,question_mark,plus,home,pageup,f1,ctrl+t,ctrl+home,shift+left,q"
    assert key_name(keys) == "# @ / ? + Home PgUp F1 ^T ^Home ⇧← q"
    assert key_name("alt+enter") == "Alt+Enter"

"""F3: what holds for one conversation alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.protocol.options import Mode
from app.protocol.prompt import Message, Role
from app.settings.definitions import Answers, ReadingSettings, Settings, find
from app.settings.file import SettingsFile
from app.store import records
from app.store.records import Overrides
from app.store.store import Store
from app.ui.app import SpecchatApp
from app.ui.settings.conversation_screen import ConversationSettingsScreen, conversation_settings
from app.ui.settings.form import SettingRow
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
    until,
    until_gone,
    until_shown,
)

SAMPLING = Settings().sampling()


def own(app: SpecchatApp) -> ConversationSettingsScreen:
    assert isinstance(app.screen, ConversationSettingsScreen)
    return app.screen


async def opened(pilot: Pilot[None], app: SpecchatApp) -> ConversationSettingsScreen:
    await pilot.press("f3")
    await until(pilot, lambda: isinstance(app.screen, ConversationSettingsScreen), "the screen")
    await until_shown(pilot, "This conversation")
    return own(app)


async def row(pilot: Pilot[None], app: SpecchatApp, name: str) -> SettingRow:
    """With the focus."""
    chosen = own(app).rows[name]
    chosen.focus()
    await until(pilot, lambda: chosen.has_focus)
    return chosen


def said(messages: tuple[Message, ...]) -> list[str]:
    return [each.text for each in messages if each.role is Role.SYSTEM]


@pytest.mark.parametrize("size", [(60, 20), slow(SMALL), slow((160, 40))])
async def test_the_screen_shows_all_and_fits(size: tuple[int, int]) -> None:
    app = app_with(FakeEngine())
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, "ready")
        await opened(pilot, app)
        await until_shown(pilot, "a new conversation", "System prompt", "None. Say who", "Esc done")
        await pilot.press("down")
        await until_shown(pilot, "Mode", "auto", "sparse", "default auto")
        await pilot.press(*["down"] * 9)
        await until(pilot, lambda: own(app).rows["seed"].has_focus)
        await until_shown(pilot, "With the same seed")
        await pilot.press(*["up"] * 9)
        await until(pilot, lambda: own(app).prompt.has_focus)


@pytest.mark.slow
async def test_what_is_chosen_goes_with_the_next_question_and_is_kept(tmp_path: Path) -> None:
    async with kept_app(tmp_path, engine := FakeEngine(Story(answer="Yes."))) as (pilot, app):
        await until_shown(pilot, "ready")
        await opened(pilot, app)
        await pilot.press(*"Be brief.")
        await row(pilot, app, "temperature")
        await pilot.press("right", "right", "right")
        await row(pilot, app, "keep")
        await pilot.press("3", "5", "enter")
        await until_shown(pilot, "must be a number from 0 to 1")
        await pilot.press(".", "3", "5", "enter")
        await row(pilot, app, "mode")
        await pilot.press("right")
        await row(pilot, app, "seed")
        await pilot.press("7", "enter")
        await until_shown(
            pilot, "• Temperature", "default the model's own", "• Keep", "• Mode", "• Seed"
        )
        await pilot.press("escape")
        await until_shown(pilot, "next: SPARSE 35%")
        await ask(pilot, engine, "One?")
        asked = engine.asks[0]
        assert said(asked.messages) == ["Be brief."]
        assert asked.sampling == SAMPLING.with_values(temperature=0.2, seed=7)
        assert (asked.mode, asked.keep_ratio) == (Mode.SPARSE, 0.35)
        await until_shown(pilot, "Yes.")
        with Store(tmp_path) as beside:
            expected = Overrides("Be brief.", "sparse", 0.35, temperature=0.2, seed=7)
            assert beside.conversation(1).overrides == expected
        await pilot.press("ctrl+n")
        await until_shown(pilot, "next: AUTO")
        await ask(pilot, engine, "Elsewhere?")
        assert said(engine.asks[1].messages) == []
        assert engine.asks[1].sampling == SAMPLING
    async with kept_app(tmp_path, engine := FakeEngine()) as (pilot, app):
        await until_shown(pilot, "ready", "Elsewhere?")
        app.chat.conversations.open(1)
        await until_shown(pilot, "One?", "next: SPARSE 35%")
        screen = await opened(pilot, app)
        assert screen.prompt.text == "Be brief."
        await until_shown(pilot, "This conversation  One?", "0.35", "• Seed")
        await pilot.press("escape")
        await until_gone(pilot, "This conversation")
        await ask(pilot, engine, "Two?")
        assert said(engine.asks[0].messages) == ["Be brief."]


async def test_a_changed_prompt_warns_that_everything_is_read_again() -> None:
    app = app_with(engine := FakeEngine(Story(answer="Yes.")))
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine, "One?")
        await until_shown(pilot, "▸ Read")
        await opened(pilot, app)
        await pilot.press("escape")
        await until_gone(pilot, "This conversation")
        assert app.chat.notice.text == ""
        await until_shown(pilot, "ctx 26K/41K")
        assert "new 26K" not in screen_text(pilot)
        await opened(pilot, app)
        await pilot.press(*"Be kind.", "f3")
        await until_shown(pilot, "The system prompt has changed", "new 26K")
        await pilot.press("ctrl+s")
        await until_shown(pilot, "What was read  paste-1.txt", "passages")
        await pilot.press("escape")
        await ask(pilot, engine, "Two?")
        assert said(engine.asks[1].messages) == ["Be kind."]


async def test_a_command_and_the_palette_open_it() -> None:
    app = app_with(FakeEngine())
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await pilot.press(*"/system", "enter")
        await until_shown(pilot, "This conversation")
        await pilot.press("escape")
        await until_gone(pilot, "This conversation")
        await pilot.press("ctrl+p")
        await until_shown(pilot, "Search for commands")
        await paste(pilot, "system prompt")
        await until_shown(pilot, "This conversation's system prompt")
        await pilot.press("enter")
        await until_shown(pilot, "This conversation")
        # A paste is text, and not too long.
        screen = own(app)
        await paste(pilot, "One\x1b[31m\r\ntwo\rthree")
        await until(pilot, lambda: screen.prompt.text == "One␛[31m\ntwo\nthree")
        await paste(pilot, DOCUMENT)
        await until_shown(pilot, "Too long for a system prompt")
        assert len(screen.prompt.text) < 100


async def test_an_imported_prompt_is_shown_and_stays_as_it_is(tmp_path: Path) -> None:
    imported = "Odd\x1b[31m [b]bold[/b] \u202e prompt.\n"
    with Store(tmp_path) as store:
        id = store.create("title \x1b]52;c;aGk=\x07 \x9d0;t\x9c \u202eback").id
        store.add_message(id, Role.SYSTEM, imported)
        store.save_draft(records.DraftRecord(id))
    async with kept_app(tmp_path, engine := FakeEngine()) as (pilot, app):
        await until_shown(pilot, "ready")
        screen = await opened(pilot, app)
        assert "\x1b" not in screen.prompt.text
        # A hostile title is shown harmless.
        shown = "This conversation  title ␛]52;c;aGk=␇ ⟨9D⟩0;t⟨9C⟩ ⟨RLO⟩back"
        await until_shown(pilot, shown)
        drawn = screen_text(pilot)
        assert not {"\x1b", "\x07", "\x9d", "\u202e"} & set(drawn)
        await until_shown(pilot, "Odd␛[31m [b]bold[/b]")
        await row(pilot, app, "seed")
        await pilot.press("7", "enter", "escape")
        await until_gone(pilot, "This conversation")
        await ask(pilot, engine, "What?")
        assert said(engine.asks[0].messages) == [imported]
        assert engine.asks[0].sampling.seed == 7
        await until_shown(pilot, "▸ Read")
        screen = await opened(pilot, app)
        screen.prompt.clear()
        await pilot.press("escape")
        await until_shown(pilot, "The system prompt has changed")
        with Store(tmp_path) as beside:
            assert beside.conversation(id).overrides == Overrides(system="", seed=7)


async def test_values_that_are_not_overridden_follow_the_settings() -> None:
    settings = Settings(ReadingSettings(Mode.FULL, 0.4), Answers(max_tokens=99, temperature=0.5))
    rows = conversation_settings(settings)
    assert rows["max_tokens"].default == 99
    assert rows["mode"].default is Mode.FULL
    app = app_with(engine := FakeEngine(), SettingsFile(settings=settings))
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready", "next: FULL")
        await opened(pilot, app)
        await row(pilot, app, "temperature")
        await pilot.press("right", "ctrl+d")
        await row(pilot, app, "top_p")
        await pilot.press("left", "left", "escape")
        await until_gone(pilot, "This conversation")
        assert app.chat.open_chats.shown.conversation.overrides == Overrides(top_p=0.95)
        app.settings.change(find("answers.temperature"), 0.9)
        await ask(pilot, engine, "What?")
        assert engine.asks[0].sampling == SAMPLING.with_values(
            max_tokens=99, temperature=0.9, top_p=0.95
        )


async def test_changes_that_cannot_be_saved_are_reported_and_do_not_apply(tmp_path: Path) -> None:
    async with kept_app(tmp_path, engine := FakeEngine(Story(answer="Yes."))) as (pilot, app):
        await until_shown(pilot, "ready")
        await ask(pilot, engine, "One?")
        await until_shown(pilot, "Yes.")
        with Store(tmp_path) as beside:
            assert beside.read_only is not None
        screen = await opened(pilot, app)
        screen.prompt.text = "half a character: \udc80"
        await pilot.press("escape")
        await until_shown(pilot, "! ")
        assert app.chat.open_chats.shown.conversation.system_prompt == ""


@pytest.mark.slow
async def test_choices_are_plain_values(tmp_path: Path) -> None:
    async with kept_app(tmp_path, engine := FakeEngine(Story(answer="Yes."))) as (pilot, app):
        await until_shown(pilot, "ready")
        await opened(pilot, app)
        await row(pilot, app, "mode")
        await pilot.press("right", "right", "escape")
        await until_shown(pilot, "next: FULL")
        await ask(pilot, engine, "One?")
        await until_shown(pilot, "Yes.")
        with Store(tmp_path) as beside:
            assert json.dumps(beside.conversation(1).overrides.mode) == '"full"'

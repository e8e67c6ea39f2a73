"""Ctrl+P finds what can be done here, settings, and conversations."""

from __future__ import annotations

from pathlib import Path

from textual.command import CommandList
from textual.pilot import Pilot
from textual.widgets import TextArea

from app.protocol.options import Mode
from app.protocol.prompt import Role
from app.store.store import Store
from app.ui.completion import commands
from app.ui.conversations.screen import ConversationsScreen
from app.ui.palette import PaletteScreen
from app.ui.settings.form import SettingRow
from tests.fakes import FakeEngine
from tests.ui.helpers import (
    ask,
    kept_app,
    paste,
    screen_text,
    started,
    until,
    until_gone,
    until_shown,
)

HOSTILE = "[@click=app.quit]Rent[/] \x1b[31m\u202e[b"


async def find(pilot: Pilot[None], words: str, first: str) -> None:
    """Search, until the first that is found has this text."""
    await pilot.press("ctrl+p")
    await until(pilot, lambda: isinstance(pilot.app.screen, PaletteScreen))
    await paste(pilot, words)
    commands = pilot.app.screen.query_one(CommandList)

    def found() -> bool:
        return bool(commands.option_count) and first in str(commands.get_option_at_index(0).prompt)

    await until(pilot, found, first)


def test_the_compose_box_has_no_use_for_ctrl_p() -> None:
    assert "ctrl+p" not in TextArea()._bindings.key_to_bindings


async def test_an_entry_does_what_its_key_does() -> None:
    """And in the chat every slash command is listed."""
    engine = FakeEngine()
    async with started(engine) as pilot:
        every = commands(pilot.app.chat.command_owners())
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(pilot.app.screen, PaletteScreen))
        listed = pilot.app.screen.query_one(CommandList)
        await until(pilot, lambda: listed.option_count > len(every))
        shown = "\n".join(str(option.prompt) for option in listed.options)
        for each in every:
            assert each.label in shown
        # What is pasted is shown and has no effect.
        await paste(pilot, "no\x1b[2J\r\nsuch [b]thing")
        await until_shown(pilot, "no␛[2J such [b]thing", "No matches found")
        await pilot.press("ctrl+u")
        await until_shown(pilot, "Search for commands", "Read the next message in full", "^T", "F3")
        await pilot.press("escape")
        await until_gone(pilot, "Search for commands")
        await find(pilot, "next message", "Read the next message in full")
        await pilot.press("enter")
        await until_shown(pilot, "next: FULL")
        await ask(pilot, engine)
        assert engine.asks[0].mode is Mode.FULL


async def test_themes_and_settings_are_set_from_it() -> None:
    async with started(size=(60, 20)) as pilot:
        await find(pilot, "nord", "Theme: set to nord")
        await pilot.press("enter")
        await until(pilot, lambda: pilot.app.theme == "nord")
        await find(pilot, "trash days", "Trash (days): 30")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.focused, SettingRow))
        await until_shown(pilot, "How long a deleted conversation")
        await find(pilot, "animations", "Animations: ")
        await pilot.press("escape")


async def test_conversations_are_opened_by_their_titles(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for title in ("The lease", HOSTILE):
            id = store.create(title).id
            store.add_message(id, Role.USER, f"What of {title[:3]}?")
    async with kept_app(tmp_path) as (pilot, app):
        await until_shown(pilot, "ready")
        await find(pilot, "Rent", "Rent")
        shown = screen_text(pilot)
        assert "[@click=app.quit]Rent[/] ␛[31m" in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        await pilot.press("escape")
        await until_gone(pilot, "Search for commands")
        await find(pilot, "lease", "The lease")
        await pilot.press("enter")
        await until_shown(pilot, "What of The?")
        assert app.chat.open_chats.shown.id == 1
        # It opens on other screens, too.
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, ConversationsScreen))
        await find(pilot, "new conversation", "New")
        await pilot.press("f1")
        await until_shown(pilot, "Everywhere")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: app.screen is app.chat)

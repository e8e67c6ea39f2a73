"""The conversations beside the chat."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from app.sessions.records import Conversation
from app.ui.conversations.side import Side, brief
from tests.fakes import FakeEngine
from tests.ui.helpers import ask, kept_app, until, until_shown

pytestmark = pytest.mark.asyncio
WIDE = (120, 30)


def lines(pilot: Pilot[None]) -> list[str]:
    listed = pilot.app.screen.query_one("#side-list", OptionList)
    return [str(listed.get_option_at_index(i).prompt) for i in range(listed.option_count)]


async def ask_and_end(pilot: Pilot[None], engine: FakeEngine, question: str) -> None:
    await ask(pilot, engine, question)
    engine.finish()
    await until(pilot, lambda: not pilot.app.chat.busy)  # type: ignore[attr-defined]


async def test_conversations_stand_beside_a_wide_chat_and_open_by_a_click(tmp_path: Path) -> None:
    engine = FakeEngine(stepping=True)
    async with kept_app(tmp_path, engine, size=WIDE) as (pilot, app):
        await ask_and_end(pilot, engine, "First?")
        await pilot.press("ctrl+n")
        await ask(pilot, engine, "Second?")
        await until(pilot, lambda: lines(pilot) == ["▸ Second? ◆", "  First?"])
        engine.finish()
        await until(pilot, lambda: lines(pilot)[0] == "▸ Second?")
        await pilot.click("#side-list", offset=(5, 1))
        await until(pilot, lambda: lines(pilot)[1] == "▸ First?")
        assert app.chat.desk.shown.title == "First?"
        assert app.focused is app.chat.entry.box


async def test_they_need_a_hundred_columns(tmp_path: Path) -> None:
    async with kept_app(tmp_path, engine := FakeEngine()) as (pilot, app):
        await ask(pilot, engine, "First?")
        side = app.chat.query_one(Side)
        assert not side.display
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: side.display and lines(pilot) == ["▸ First?"])
        await until_shown(pilot, "Conversations  ^O")
        await pilot.resize_terminal(99, 30)
        await until(pilot, lambda: not side.display)


def conversation(title: str, pinned: bool = False) -> Conversation:
    now = datetime.now(UTC)
    return Conversation(1, title, pinned, now, now, None, None)


@pytest.mark.parametrize("width", [10, 22, 40])
@pytest.mark.parametrize("busy", [False, True])
async def test_a_line_fits_and_is_harmless(width: int, busy: bool) -> None:
    for title in ("", "short", "long " * 50, "\x1b[31m\nred", "\u202eabc", "漢字" * 40):
        line = brief(conversation(title), width, busy, shown=False)
        assert line.cell_length <= width
        assert line.plain.isprintable()


async def test_the_mark_says_shown_or_pinned() -> None:
    assert brief(conversation("a", pinned=True), 20, False, shown=False).plain == "★ a"
    assert brief(conversation("a", pinned=True), 20, False, shown=True).plain == "▸ a"

"""The conversations beside the chat."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from app.store.records import ConversationRecord
from app.store.store import Store
from app.ui.conversations.list_rows import Sidebar, distinct_labels, sidebar_line
from tests.fakes import FakeEngine
from tests.store.samples import answered
from tests.tables import table
from tests.ui.helpers import ask, kept_app, screen_text, until, until_gone, until_shown

WIDE = (120, 30)


def lines(pilot: Pilot[None]) -> list[str]:
    listed = pilot.app.screen.query_one("#side-list", OptionList)
    return [str(listed.get_option_at_index(i).prompt) for i in range(listed.option_count)]


async def ask_and_end(pilot: Pilot[None], engine: FakeEngine, question: str) -> None:
    await ask(pilot, engine, question)
    engine.finish()
    await until(pilot, lambda: not pilot.app.chat.readiness.busy)  # type: ignore[attr-defined]


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
        assert app.chat.open_chats.shown.title == "First?"
        assert app.focused is app.chat.composer.box
        # They need a hundred columns.
        side = app.chat.query_one(Sidebar)
        await pilot.resize_terminal(99, 30)
        await until(pilot, lambda: not side.display)
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: side.display and lines(pilot)[1] == "▸ First?")
        await until_shown(pilot, "Conversations  ^O")


@pytest.mark.slow
async def test_a_title_is_cut_to_the_width_again_when_the_terminal_gets_narrower(
    tmp_path: Path,
) -> None:
    async with kept_app(tmp_path, engine := FakeEngine(), size=(160, 30)) as (pilot, _):
        await ask(pilot, engine, "Who pays the rent each year?")
        await until(pilot, lambda: lines(pilot) == ["▸ Who pays the rent each year?"])
        await pilot.resize_terminal(104, 30)
        await until(pilot, lambda: lines(pilot)[0].endswith("…"))
        listed = pilot.app.screen.query_one("#side-list", OptionList)
        assert len(lines(pilot)[0]) <= listed.size.width
        assert listed.virtual_size.height == 1


@pytest.mark.slow
async def test_they_need_a_hundred_columns(tmp_path: Path) -> None:
    async with kept_app(tmp_path, engine := FakeEngine()) as (pilot, app):
        await ask(pilot, engine, "First?")
        side = app.chat.query_one(Sidebar)
        assert not side.display
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: side.display and lines(pilot) == ["▸ First?"])
        await until_shown(pilot, "Conversations  ^O")
        await pilot.resize_terminal(99, 30)
        await until(pilot, lambda: not side.display)


def conversation(title: str, pinned: bool = False) -> ConversationRecord:
    now = datetime.now(UTC)
    return ConversationRecord(1, title, pinned, now, now, None, None)


@table("width, busy", itertools.product([10, 22, 40], [False, True]))
def test_a_line_fits_and_is_harmless(width: int, busy: bool) -> None:
    for title in ("", "short", "long " * 50, "\x1b[31m\nred", "\u202eabc", "漢字" * 40):
        for label in ("", "12:41"):
            line = sidebar_line(conversation(title), width, busy, current=False, label=label)
            assert line.cell_length <= width
            assert line.plain.isprintable()


def test_the_mark_says_shown_or_pinned() -> None:
    assert sidebar_line(conversation("a", pinned=True), 20, False, current=False).plain == "★ a"
    assert sidebar_line(conversation("a", pinned=True), 20, False, current=True).plain == "▸ a"


@pytest.mark.slow
async def test_a_question_that_was_asked_three_times_reads_differently(tmp_path: Path) -> None:
    """Beside the chat, in the list and in the palette."""
    title = "What are the termination rights of the tenant under this contract?"
    with Store(tmp_path) as store:
        for _ in range(3):
            answered(store, title, "None.")
    async with kept_app(tmp_path, size=WIDE) as (pilot, _):
        await until(pilot, lambda: len(set(lines(pilot))) == 3)
        assert all("What are the term" in line for line in lines(pilot))
        for key, size in (("ctrl+o", WIDE), ("ctrl+o", (40, 24)), ("ctrl+p", WIDE)):
            await pilot.resize_terminal(*size)
            await pilot.press(key, *(title[:22] if key == "ctrl+p" else ""))
            await until_shown(pilot, "#1", "#2", "#3")
            found = [line for line in screen_text(pilot).splitlines() if "What are" in line]
            assert len({line.strip() for line in found}) == len(found) >= 3
            await pilot.press("escape")
            await until_gone(pilot, "#3" if size != WIDE else "Type to find")


def test_labels_of_equal_titles_are_as_short_as_possible() -> None:
    now = datetime(2026, 11, 22, 15, 0, tzinfo=UTC)

    def at(id: int, *time: int) -> tuple[str, ConversationRecord]:
        used = datetime(2026, *time, tzinfo=UTC)  # type: ignore[arg-type, misc]
        return "Why?", ConversationRecord(id, "Why?", False, used, used, None, None)

    today, earlier, day = at(1, 11, 22, 12, 41), at(2, 11, 22, 9, 5), at(3, 11, 20, 8, 0)
    assert distinct_labels([today, earlier, day], now) == {1: "12:41", 2: "09:05", 3: "20 Nov"}
    assert distinct_labels([day, at(4, 11, 20, 9, 30)], now) == {
        3: "20 Nov 08:00",
        4: "20 Nov 09:30",
    }
    assert distinct_labels([at(6, 11, 22, 12, 41), today], now) == {6: "#2", 1: "#1"}
    assert distinct_labels([today, ("Who?", day[1])], now) == {}

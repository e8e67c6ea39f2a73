"""The filterable list that several screens share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from textual.app import App, ComposeResult
from textual.content import Content
from textual.pilot import Pilot
from textual.widgets import Static

import app.ui.app as ui
from app.ui.filter_list import FilterList
from app.ui.terminal_input import PasteSafeParser
from app.ui.theme import our_themes
from tests.ui.helpers import screen_text, until, until_shown

NAMES = [f"row {number}" for number in range(1, 31)]


class ListApp(App[None]):
    CSS_PATH = str(Path(ui.__file__).parent / "filter_list.tcss")

    def __init__(self) -> None:
        super().__init__()
        dark, _ = our_themes()
        self.register_theme(dark)
        self.theme = dark.name
        self.names, self.mark = list(NAMES), ""
        beside = Static("beside")
        beside.styles.width = 10
        self.list = FilterList(self.rows, beside)
        self.filtered: list[str] = []
        self.chosen: list[str] = []

    def rows(self, text: str, width: int) -> Iterator[tuple[str, Content]]:
        assert width >= 20
        return ((name, Content(name + self.mark)) for name in self.names if text in name)

    def compose(self) -> ComposeResult:
        yield self.list

    def on_mount(self) -> None:
        self.call_after_refresh(self.list.draw)

    def on_filter_list_filtered(self, event: FilterList.Filtered) -> None:
        self.filtered.append(event.text)

    def on_filter_list_row_chosen(self, event: FilterList.RowChosen) -> None:
        self.chosen.append(event.key)


async def drawn(pilot: Pilot[None]) -> ListApp:
    await until_shown(pilot, "row 1", "beside")
    assert isinstance(pilot.app, ListApp)
    return pilot.app


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Pilot[None], ListApp]]:
    async with ListApp().run_test(size=(60, 12)) as pilot:
        yield pilot, await drawn(pilot)


async def test_keys_move_typing_filters_and_enter_chooses() -> None:
    async with opened() as (pilot, app):
        assert app.list.highlighted == "row 1"
        await pilot.press("down", "down", "up")
        assert app.list.highlighted == "row 2"
        await pilot.press("pagedown")
        assert app.list.highlighted not in ("row 1", "row 2")
        await pilot.press("pageup", "enter")
        await until(pilot, lambda: app.chosen)
        assert app.chosen == [app.list.highlighted]
        # Typing filters, and highlights the best match.
        app.chosen.clear()
        await pilot.press("down", "down", *"row 2")
        await until(pilot, lambda: app.filtered[-1:] == ["row 2"])
        assert app.list.highlighted == "row 2"
        await pilot.press("9", "9")
        await until(pilot, lambda: app.filtered[-1:] == ["row 299"])
        assert app.list.highlighted == ""
        await pilot.press("enter", "backspace", "enter")
        await until(pilot, lambda: app.chosen == ["row 29"])
        # Enter typed ahead chooses what matches: text and Enter in one read, as over a slow line.
        app.chosen.clear()
        await pilot.press("ctrl+u")
        await until(pilot, lambda: app.filtered[-1:] == [""])
        assert app._driver is not None
        for message in PasteSafeParser().feed("row 17\r"):
            app._driver.process_message(message)
        await until(pilot, lambda: app.chosen == ["row 17"])
        # A click chooses.
        app.chosen.clear()
        await pilot.press("ctrl+u")
        await until(pilot, lambda: app.filtered[-1:] == [""])
        app.list.draw("row 1")
        await until(pilot, lambda: app.list.options.scroll_y == 0)
        await pilot.click(app.list.options, offset=(5, 2))
        await until(pilot, lambda: app.chosen == ["row 3"])
        assert "row 3" in screen_text(pilot)


async def test_the_highlight_stays_on_its_row_or_goes_where_it_is_sent() -> None:
    async with opened() as (pilot, app):
        app.list.draw("row 20")
        await until_shown(pilot, "row 20")
        scrolled = app.list.options.scroll_y
        app.mark = " new"
        app.list.draw()  # the same rows: nothing jumps
        await until_shown(pilot, "row 20 new")
        assert (app.list.highlighted, app.list.options.scroll_y) == ("row 20", scrolled)
        app.names.remove("row 3")
        app.list.draw()
        assert app.list.highlighted == "row 20"
        app.names.remove("row 20")
        app.list.draw()
        assert app.list.highlighted == "row 1"
        app.names.clear()
        app.list.draw()
        assert app.list.highlighted == ""

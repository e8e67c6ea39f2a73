"""A list with a filter line above it: typing filters, the arrow keys move in the list."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from app.ui.background import start_task
from app.ui.framed_screen import FramedScreen, Result
from app.ui.keys import SafeInput

MIN_WIDTH = 20
MIN_BOX_ROWS = 2
BOX_FRAME = 8
"""Rows of a box around the list: its padding, heading, filter and keys."""
PADDING = 4
"""Cells of a row that are not for its text: its padding and the scrollbar."""

RowSource = Callable[[str, int], Iterable[tuple[str, Content]]]
"""Takes the filter's text and a width in cells; returns the rows to show, each with a key."""


class FilterList(Vertical):
    """A filter, which has the focus, above a list of rows. `beside` is shown to the right of the
    rows."""

    # With priority: the focused input would use some of these keys itself.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "up", "move('cursor_up')", "Up", id="rows.up", tooltip="Move up or down",
            priority=True,
        ),
        Binding(
            "down", "move('cursor_down')", "Down", id="rows.down", tooltip="Move up or down",
            priority=True,
        ),
        Binding(
            "pageup", "move('page_up')", "Page up", id="rows.page_up",
            tooltip="Move a page up or down",
            priority=True,
        ),
        Binding(
            "pagedown", "move('page_down')", "Page down", id="rows.page_down",
            tooltip="Move a page up or down", priority=True,
        ),
    ]  # fmt: skip

    @dataclass
    class Filtered(Message):
        """The filter has changed, and the rows are drawn."""

        text: str

    @dataclass
    class RowChosen(Message):
        """Enter, or a click on a row."""

        key: str

    def __init__(self, rows: RowSource, *beside: Widget) -> None:
        super().__init__()
        self._row_source, self._beside = rows, beside
        self.filter = SafeInput(placeholder="Type to find", compact=True)
        self.options = OptionList(compact=True, markup=False)
        self.options.can_focus = False

    def compose(self) -> ComposeResult:
        yield self.filter
        yield Horizontal(self.options, *self._beside)

    def on_mount(self) -> None:
        self.filter.focus()

    @property
    def text(self) -> str:
        return self.filter.value.strip()

    @property
    def highlighted(self) -> str:
        """The key of the highlighted row; empty where there is none."""
        option = self.options.highlighted_option
        return option.id or "" if option is not None else ""

    def draw(self, go_to: str = "") -> None:
        """Draw the rows again, and highlight the one with the key `go_to`. Else the highlight stays
        on its row, or goes to the first one."""
        key = go_to or self.highlighted
        width = max(MIN_WIDTH, self.options.size.width - PADDING)
        rows = list(self._row_source(self.text, width))
        keys = [each for each, _ in rows]
        if keys == [option.id for option in self.options.options]:
            for index, (_, row) in enumerate(rows):  # unlike new options, these stay scrolled
                self.options.replace_option_prompt_at_index(index, row)
            if go_to in keys:
                self.options.highlighted = keys.index(go_to)
        else:
            self.options.set_options(Option(row, id=each) for each, row in rows)
            self.options.highlighted = (keys.index(key) if key in keys else 0) if keys else None

    def fit_box(self, height: int) -> None:
        """In a box as high as its rows, on a screen of this height: leave room for the rest of the
        box, and draw the rows again."""
        self.options.styles.max_height = max(MIN_BOX_ROWS, height * 84 // 100 - BOX_FRAME)
        self.call_after_refresh(self.draw)

    def choose(self) -> None:
        if self.highlighted:
            self.post_message(self.RowChosen(self.highlighted))

    @on(Input.Changed)
    def _filter_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.draw()
        self.options.action_first()  # the best match, not the row that was highlighted before
        self.post_message(self.Filtered(self.text))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.choose()

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.choose()

    def action_move(self, where: str) -> None:
        getattr(self.options, f"action_{where}")()


ScreenType = TypeVar("ScreenType", bound="FilterListScreen[Any]")


def in_turn(
    task: Callable[[ScreenType], Coroutine[Any, Any, None]],
) -> Callable[[ScreenType], None]:
    """Turn a coroutine method into an action that `run_in_turn` runs."""

    def action(screen: ScreenType) -> None:
        screen.run_in_turn(partial(task, screen))

    return action


class FilterListScreen(FramedScreen[Result]):
    """A screen around a `FilterList`. Subclasses yield `list` in their `compose`."""

    def __init__(self, *beside: Widget) -> None:
        super().__init__()
        self.list = FilterList(self.list_rows, *beside)
        self._task_lock = asyncio.Lock()

    def list_rows(self, text: str, width: int) -> Iterable[tuple[str, Content]]:
        """A `RowSource`."""
        raise NotImplementedError

    def draw_frame(self) -> None:
        """Draw what depends on the rows."""

    def draw(self, go_to: str = "") -> None:
        self.list.draw(go_to)
        self.draw_frame()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    @on(FilterList.Filtered)
    def _filtered(self) -> None:
        self.show_message("")
        self.draw_frame()

    def action_open(self) -> None:
        self.list.choose()

    def action_close(self) -> None:
        """Clear the filter; close where it is empty."""
        if self.list.filter.value:
            self.list.filter.value = ""
        else:
            self.leave()

    def leave(self) -> None:
        self.dismiss(None)

    def run_in_turn(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run tasks that wait for the disk or the hub one after the other, and show why one
        fails."""

        async def run() -> None:
            async with self._task_lock:
                await task()

        start_task(self, run)

"""The conversations beside the chat, where the terminal is wide enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.errors import UserError
from app.sessions.records import Conversation
from app.ui.conversations.list_rows import UNTITLED, distinct_labels
from app.ui.state.repository import ChatRepository
from app.util.sanitize import sanitize_line

AT_MOST = 200
"""Conversations; the list of Ctrl+O has all."""
MARK = 2
"""Cells before each title."""


class Sidebar(Vertical):
    """For the mouse and the eye; keys go to the list of Ctrl+O."""

    @dataclass
    class Opened(Message):
        """A conversation was clicked."""

        id: int

    def __init__(self, shelf: ChatRepository, statuses: Callable[[], Mapping[int, str]]) -> None:
        super().__init__(id="side")
        self._shelf, self._statuses = shelf, statuses
        self._shown: int | None = None
        self._list = OptionList(id="side-list", compact=True, markup=False)
        self._list.can_focus = False

    def compose(self) -> ComposeResult:
        yield Static("Conversations  ^O", id="side-head", markup=False)
        yield self._list

    def follow(self, shown: int | None) -> None:
        """Something changed, and `shown` is on the screen now."""
        self._shown = shown
        if self.display and self._shelf.readable:
            # The method itself: one that never begins is then no coroutine that nobody awaited.
            self.run_worker(self._read, exclusive=True)  # type: ignore[arg-type]

    def on_show(self) -> None:
        self.follow(self._shown)

    async def _read(self) -> None:
        try:
            every = await self._shelf.read(lambda store: store.conversations())
        except UserError:  # said by what asks for more than the titles
            return
        statuses, width = self._statuses(), self._list.size.width - 2
        listed = every[:AT_MOST]
        titles = ((_title(each, width - MARK).plain, each) for each in listed)
        labels = distinct_labels(titles, datetime.now().astimezone())

        def option(each: Conversation) -> Option:
            busy, shown = each.id in statuses, each.id == self._shown
            line = sidebar_line(each, width, busy, shown, labels.get(each.id, ""))
            return Option(line, id=str(each.id))

        self._list.set_options(map(option, listed))
        places = [place for place, each in enumerate(listed) if each.id == self._shown]
        self._list.highlighted = places[0] if places else None

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.post_message(self.Opened(int(event.option_id)))


def sidebar_line(
    conversation: Conversation, width: int, busy: bool, shown: bool, label: str = ""
) -> Content:
    """One line of at most `width` cells: a mark, as much of the title as there is room for, and
    what tells it from others that look the same."""
    mark = "▸ " if shown else "★ " if conversation.pinned else "  "
    after = Content.styled(f" {label}" if label else "", "$ink-dim")
    after += Content.styled(" ◆" if busy else "", "$accent")
    title = _title(conversation, max(1, width - MARK - after.cell_length))
    line = Content.assemble((mark, "$accent"), title.stylize("bold" if shown else ""), after)
    return line.truncate(width, ellipsis=True)


def _title(conversation: Conversation, room: int) -> Content:
    title = Content(sanitize_line(conversation.title.strip()) or UNTITLED)
    return title.truncate(max(1, room), ellipsis=True)

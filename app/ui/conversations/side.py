"""The conversations beside the chat, where the terminal is wide enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.errors import UserError
from app.sessions.records import Conversation
from app.ui.chat.shelf import Shelf
from app.ui.conversations.rows import UNTITLED
from app.ui.sanitize import sanitize_line

AT_MOST = 200
"""Conversations; the list of Ctrl+O has all."""


class Side(Vertical):
    """For the mouse and the eye; keys go to the list of Ctrl+O."""

    @dataclass
    class Opened(Message):
        """A conversation was clicked."""

        id: int

    def __init__(self, shelf: Shelf, statuses: Callable[[], Mapping[int, str]]) -> None:
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
            every = await self._shelf.look(lambda store: store.conversations())
        except UserError:  # said by what asks for more than the titles
            return
        statuses, width = self._statuses(), self._list.size.width - 2
        listed = every[:AT_MOST]
        self._list.set_options(
            Option(brief(each, width, each.id in statuses, each.id == self._shown), id=str(each.id))
            for each in listed
        )
        places = [place for place, each in enumerate(listed) if each.id == self._shown]
        self._list.highlighted = places[0] if places else None

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.post_message(self.Opened(int(event.option_id)))


def brief(conversation: Conversation, width: int, busy: bool, shown: bool) -> Content:
    """One line of at most `width` cells: a mark, and as much of the title as there is room for."""
    mark = "▸ " if shown else "★ " if conversation.pinned else "  "
    doing = Content.styled(" ◆", "$accent") if busy else Content("")
    title = Content(sanitize_line(conversation.title.strip()) or UNTITLED)
    room = max(1, width - len(mark) - doing.cell_length)
    style = "bold" if shown else ""
    return Content.assemble(
        (mark, "$accent"), title.truncate(room, ellipsis=True).stylize(style), doing
    )

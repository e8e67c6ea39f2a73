"""The list of conversations beside the chat, where the terminal is wide enough."""

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
from app.store.records import ConversationRecord
from app.ui.background import start_task
from app.ui.conversations.list_rows import UNTITLED, distinct_labels
from app.ui.state.repository import ChatRepository
from app.util.sanitize import sanitize_line

MAX_SHOWN = 200
MARK_WIDTH = 2


class Sidebar(Vertical):
    """For the mouse only: keys work in the list of Ctrl+O."""

    @dataclass
    class Opened(Message):
        """A conversation was clicked."""

        id: int

    def __init__(
        self, repository: ChatRepository, statuses: Callable[[], Mapping[int, str]]
    ) -> None:
        super().__init__(id="side")
        self._repository, self._statuses = repository, statuses
        self._current: int | None = None
        self._list = OptionList(id="side-list", compact=True, markup=False)
        self._list.can_focus = False

    def compose(self) -> ComposeResult:
        yield Static("Conversations  ^O", id="side-head", markup=False)
        yield self._list

    def update_list(self, current: int | None) -> None:
        """Read the list again; `current` is the conversation on the screen."""
        self._current = current
        if self.display and self._repository.readable:
            start_task(self, self._load, exclusive=True)

    def on_show(self) -> None:
        self.update_list(self._current)

    def on_resize(self) -> None:
        """Titles are cut to the width."""
        self.update_list(self._current)

    async def _load(self) -> None:
        try:
            conversations = await self._repository.read(lambda store: store.conversations())
        except UserError:  # shown by what reads more than the titles
            return
        statuses, width = self._statuses(), self._list.size.width - 2
        listed = conversations[:MAX_SHOWN]
        titles = ((_title(each, width - MARK_WIDTH).plain, each) for each in listed)
        labels = distinct_labels(titles, datetime.now().astimezone())

        def option(each: ConversationRecord) -> Option:
            busy, current = each.id in statuses, each.id == self._current
            line = sidebar_line(each, width, busy, current, labels.get(each.id, ""))
            return Option(line, id=str(each.id))

        self._list.set_options(map(option, listed))
        ids = [each.id for each in listed]
        self._list.highlighted = ids.index(self._current) if self._current in ids else None

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.post_message(self.Opened(int(event.option_id)))


def sidebar_line(
    conversation: ConversationRecord, width: int, busy: bool, current: bool, label: str = ""
) -> Content:
    """One line of at most `width` cells. `label` tells it from others of the same title."""
    mark = "▸ " if current else "★ " if conversation.pinned else "  "
    right = Content.assemble(
        (f" {label}" if label else "", "$ink-dim"), (" ◆" if busy else "", "$accent")
    )
    title = _title(conversation, width - MARK_WIDTH - right.cell_length)
    line = Content.assemble((mark, "$accent"), title.stylize("bold" if current else ""), right)
    return line.truncate(width, ellipsis=True)


def _title(conversation: ConversationRecord, width: int) -> Content:
    title = Content(sanitize_line(conversation.title.strip()) or UNTITLED)
    return title.truncate(max(1, width), ellipsis=True)

"""Ctrl+O: all conversations, found by title or by what was said, opened and looked after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.errors import UserError
from app.sessions.export import to_file
from app.sessions.records import Conversation, ConversationSize, SearchHit
from app.sessions.store import Store
from app.ui.conversations.list_rows import Row, distinct_labels, matching_rows, render_row
from app.ui.conversations.prompt_line import PromptLine
from app.ui.help import Section
from app.ui.safe_input import SafeInput
from app.ui.state.repository import ChatRepository
from app.util import formatting
from app.util.sanitize import sanitize_line

HINTS = ("⏎ open", "^N new", "^R rename", "^T pin", "^D delete", "^Z undo", "^E export", "Esc")
FRESH_SECONDS = 0.5
SEARCH_AFTER_SECONDS = 0.08
"""So that a word typed quickly is searched for once."""


@dataclass(frozen=True, slots=True)
class ChosenConversation:
    """The conversation to open; None for a new one. In it the message that was found, if any."""

    id: int | None
    message: int | None = None


class ConversationsScreen(Screen[ChosenConversation | None]):
    """`statuses` says what is done in conversations at present, by their ids; `trashed` hears of
    one that is deleted, or (False) brought back."""

    # Before the focused line, which would take some of them for its own.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", id="list.open", tooltip="Open it"),
        Binding("up", "move('up')", "Up", id="list.up", tooltip="The one above", priority=True),
        Binding(
            "down", "move('down')", "Down", id="list.down", tooltip="The one below", priority=True
        ),
        Binding(
            "pageup", "move('page_up')", "Page up", id="list.page_up", tooltip="A page up",
            priority=True,
        ),
        Binding(
            "pagedown", "move('page_down')", "Page down", id="list.page_down",
            tooltip="A page down", priority=True,
        ),
        Binding("ctrl+n", "new", "New", id="list.new", tooltip="A new one", priority=True),
        Binding("ctrl+r", "rename", "Rename", id="list.rename", tooltip="Rename", priority=True),
        Binding(
            "ctrl+t", "pin", "Pin", id="list.pin", tooltip="Pin to the top, or let go",
            priority=True,
        ),
        Binding(
            "ctrl+y", "duplicate", "Duplicate", id="list.duplicate",
            tooltip="The same once more", priority=True,
        ),
        Binding(
            "ctrl+e", "export", "Export", id="list.export",
            tooltip="Into a file: Markdown, HTML or JSON", priority=True,
        ),
        Binding(
            "ctrl+d", "delete", "Delete", id="list.delete", tooltip="Move to the trash",
            priority=True,
        ),
        Binding(
            "ctrl+z", "undo", "Undo", id="list.undo", tooltip="Bring back what was deleted last",
            priority=True,
        ),
        Binding(
            "escape,ctrl+o", "close", "Close", id="list.close", tooltip="Back", priority=True
        ),
    ]  # fmt: skip

    def __init__(
        self,
        shelf: ChatRepository,
        shown: int | None,
        statuses: Callable[[], Mapping[int, str]],
        trashed: Callable[[int, bool], None],
    ) -> None:
        super().__init__()
        self._shelf, self._shown = shelf, shown
        self._statuses, self._trashed = statuses, trashed
        self._drawn_statuses: Mapping[int, str] = {}
        self._conversations: tuple[Conversation, ...] = ()
        self._sizes: dict[int, ConversationSize] = {}
        self._hits: tuple[SearchHit, ...] = ()
        self._rows: list[Row] = []
        self._deleted: list[Conversation] = []
        self._in_turn = asyncio.Lock()
        self.filter = SafeInput(placeholder="Type to find", id="list-filter", compact=True)
        self.list = OptionList(id="list", compact=True, markup=False)
        self.line = PromptLine()
        self._head = Static(id="list-head", markup=False)
        self._said = Static(id="list-said", markup=False)
        self._foot = Static(id="list-foot", markup=False)

    def help_sections(self) -> tuple[Section, ...]:
        return (("Conversations", ConversationsScreen),)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self.filter
        yield self.list
        yield self.line
        yield self._said
        yield self._foot

    def on_mount(self) -> None:
        self.list.can_focus = False
        self.filter.focus()
        self.set_interval(FRESH_SECONDS, self._refresh_statuses)
        self._do(self._load(self._shown))

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    # -------------------------------------------------------------------------- what is shown

    async def _load(self, chosen: int | None = None) -> None:
        """Read the list anew, and go to `chosen`."""

        def read(store: Store) -> tuple[tuple[Conversation, ...], dict[int, ConversationSize]]:
            return store.conversations(), store.sizes()

        self._conversations, self._sizes = await self._shelf.read(read)
        self._draw(chosen)

    def _draw(self, chosen: int | None = None) -> None:
        before = self._chosen
        chosen = chosen or (before.id if before is not None else None)
        self._rows = matching_rows(self._conversations, self._sizes, self.filter.value, self._hits)
        self._drawn_statuses = dict(self._statuses())
        width, now = max(20, self.list.size.width - 4), datetime.now().astimezone()
        titles = ((row.conversation.title, row.conversation) for row in self._rows)
        labels, statuses = distinct_labels(titles, now), self._drawn_statuses

        def option(row: Row) -> Option:
            status, label = statuses.get(row.id, ""), labels.get(row.id, "")
            line = render_row(row, width, now, status, row.id == self._shown, label)
            return Option(line, id=str(row.id))

        self.list.set_options(map(option, self._rows))
        places = [place for place, row in enumerate(self._rows) if row.id == chosen]
        self.list.highlighted = (*places, 0)[0] if self._rows else None
        self._draw_frame()

    def _draw_frame(self) -> None:
        width = self.size.width - 4
        many = formatting.plural(len(self._conversations), "conversation")
        if self.filter.value.strip():
            many = f"{len(self._rows)} of {many}"
        head = Content.assemble(("Conversations  ", "bold $accent"), (many, "$ink-dim"))
        self._head.update(head)
        foot = "   ".join(HINTS)
        for count in range(len(HINTS), 0, -1):
            foot = "   ".join((*HINTS[: count - 1], HINTS[-1]))
            if len(foot) <= width:
                break
        self._foot.update(Content.styled(foot, "$ink-dim"))

    def _refresh_statuses(self) -> None:
        if self._drawn_statuses != dict(self._statuses()):
            self._do(self._load())

    @property
    def _chosen(self) -> Conversation | None:
        place = self.list.highlighted
        if place is None or place >= len(self._rows):
            return None
        return self._rows[place].conversation

    def _say(self, words: str) -> None:
        self._said.update(Content.styled(sanitize_line(words), "$accent"))

    def _do(self, task: Coroutine[Any, Any, None]) -> None:
        """What waits for the disk, one after the other; why it does not work is said."""

        async def in_turn() -> None:
            async with self._in_turn:
                try:
                    await task
                except UserError as error:
                    self._say(str(error))

        self.run_worker(in_turn())

    # -------------------------------------------------------------------------- finding

    @on(Input.Changed, "#list-filter")
    def _filter_changed(self) -> None:
        self._say("")
        self._hits = ()
        self._draw()
        self.list.highlighted = 0 if self._rows else None  # the best, not the one before
        self.run_worker(self._search(self.filter.value), exclusive=True, group="search")

    async def _search(self, words: str) -> None:
        await asyncio.sleep(SEARCH_AFTER_SECONDS)
        try:
            hits = await self._shelf.read(lambda store: store.search(words, best_only=True))
        except UserError as error:
            self._say(str(error))
            return
        if words == self.filter.value:
            self._hits = hits
            self._draw()

    def action_move(self, where: str) -> None:
        actions: dict[str, Callable[[], None]] = {
            "up": self.list.action_cursor_up,
            "down": self.list.action_cursor_down,
            "page_up": self.list.action_page_up,
            "page_down": self.list.action_page_down,
        }
        actions[where]()

    # -------------------------------------------------------------------------- opening

    @on(Input.Submitted, "#list-filter")
    def action_open(self) -> None:
        if self._chosen is not None:
            self._open(self._chosen.id)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        if event.option_id is not None:
            self._open(int(event.option_id))

    def _open(self, id: int) -> None:
        hits = (row.hit for row in self._rows if row.id == id and row.hit is not None)
        self.dismiss(ChosenConversation(id, next((hit.message for hit in hits), None)))

    def action_new(self) -> None:
        self.dismiss(ChosenConversation(None))

    def action_close(self) -> None:
        if self.line.display:
            self._leave_line()
        elif self.filter.value:
            self.filter.value = ""
        else:
            self.dismiss(None)

    # -------------------------------------------------------------------------- looking after

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While the line is filled in, its own keys come first."""
        return action in ("close", "open") or not self.line.display

    def action_rename(self) -> None:
        if (chosen := self._chosen) is not None:
            self.line.ask("Title", chosen.title, lambda title: self._rename(chosen, title))

    def _rename(self, chosen: Conversation, title: str) -> None:
        async def rename() -> None:
            await self._shelf.write(lambda store: store.rename(chosen.id, title))
            await self._load(chosen.id)

        if title.strip():
            self._do(rename())
        else:
            self._say("A title needs a word or two.")

    def action_pin(self) -> None:
        self._do(self._pin())

    async def _pin(self) -> None:
        if (chosen := self._chosen) is not None:
            await self._shelf.write(lambda store: store.pin(chosen.id, not chosen.pinned))
            await self._load(chosen.id)

    def action_duplicate(self) -> None:
        self._do(self._duplicate())

    async def _duplicate(self) -> None:
        if (chosen := self._chosen) is not None:
            copy = await self._shelf.write(lambda store: store.duplicate(chosen.id))
            await self._load(copy.id)

    def action_delete(self) -> None:
        self._do(self._delete())

    async def _delete(self) -> None:
        if (chosen := self._chosen) is None:
            return
        place = self.list.highlighted or 0
        after = [row.id for row in self._rows[place + 1 :] + self._rows[:place][::-1]]
        await self._shelf.write(lambda store: store.trash(chosen.id))
        self._deleted.append(chosen)
        self._trashed(chosen.id, True)
        await self._load(after[0] if after else None)
        self._say(
            f"'{chosen.title}' is in the trash for {self._shelf.trash_days} days. ^Z undoes that."
        )

    def action_undo(self) -> None:
        self._do(self._undo())

    async def _undo(self) -> None:
        if not self._deleted:
            self._say("Nothing was deleted since this list was opened.")
            return
        last = self._deleted.pop()
        await self._shelf.write(lambda store: store.restore(last.id))
        self._trashed(last.id, False)
        await self._load(last.id)
        self._say(f"'{last.title}' is back.")

    def action_export(self) -> None:
        if (chosen := self._chosen) is not None:
            name = free_name(Path.cwd(), chosen.title)
            self.line.ask(
                "Into (.md, .html or .json)", str(name), lambda path: self._export(chosen, path)
            )

    def _export(self, chosen: Conversation, typed: str) -> None:
        path = Path(typed.strip()).expanduser()

        async def export() -> None:
            if path.exists():
                self._say(f"'{path}' is there already: choose another name.")
                return
            await self._shelf.read(lambda store: to_file(store, chosen.id, path))
            self._say(f"Written to '{path.absolute()}'.")

        if typed.strip():
            self._do(export())

    @on(PromptLine.Closed)
    def _leave_line(self) -> None:
        self.line.display = False
        self.set_focus(self.filter)


def free_name(folder: Path, title: str) -> Path:
    """A file of this title that is not there yet, below `folder` and as short as can be."""
    words = "".join(c if c.isalnum() else " " for c in title).split()
    stem = "-".join(words).lower()[:40].strip("-") or "conversation"
    names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
    return next(
        (Path(f"{name}.md") for name in names if not (folder / f"{name}.md").exists()),
        Path(f"{stem}.md"),
    )

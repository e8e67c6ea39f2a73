"""Ctrl+O: all conversations: find by title, message or document, open, rename, pin, delete; and
their documents, to ask about one again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static

from app.chat.export import to_file
from app.errors import UserError
from app.store.records import (
    ConversationRecord,
    ConversationSize,
    DocumentHit,
    FoundDocuments,
    KnownDocument,
    SearchHit,
)
from app.store.store import Store
from app.ui.background import start_task
from app.ui.conversations.list_rows import (
    ConversationRow,
    distinct_labels,
    is_named,
    matching_rows,
    render_document,
    render_known,
    render_row,
)
from app.ui.filter_list import FilterList, FilterListScreen, in_turn
from app.ui.help import Section
from app.ui.keys import SafeInput
from app.ui.state.repository import ChatRepository
from app.util import formatting
from app.util.sanitize import sanitize_line

REFRESH_SECONDS = 0.5
ASK_AGAIN = "This is a document. Enter attaches it to a new conversation."
SEARCH_DELAY_SECONDS = 0.08
"""Delay of a search, so that a quickly typed word is searched for once."""
_DOCUMENT = "document "
"""Prefix of the keys of rows for hits in documents; the hit's number follows."""
_ATTACH = "attach "
"""Prefix of the keys of rows for documents to ask about again; the document's number follows."""


class PromptLine(Horizontal):
    """Hidden until `ask`."""

    class Entered(Message):
        """Enter was pressed."""

    def __init__(self) -> None:
        super().__init__()
        self._label = Static(markup=False)
        self._input = SafeInput(compact=True)
        self._on_submit: Callable[[str], None] = lambda text: None

    def compose(self) -> ComposeResult:
        yield self._label
        yield self._input

    def ask(self, label: str, default: str, on_submit: Callable[[str], None]) -> None:
        self._on_submit = on_submit
        self._label.update(f"{label}: ")
        self._input.value = sanitize_line(default)
        self._input.cursor_position = len(self._input.value)
        self.display = True
        self.screen.set_focus(self._input)  # at once: keys typed ahead are meant for it

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Entered())
        self._on_submit(event.value)


@dataclass(frozen=True, slots=True)
class ChosenConversation:
    """The conversation to open; None for a new one, about a document that is to `attach`.
    `message` is where the search found it, and `document` the place in one of its documents."""

    id: int | None
    message: int | None = None
    document: DocumentHit | None = None
    attach: KnownDocument | None = None


class ConversationsScreen(FilterListScreen[ChosenConversation | None]):
    """`statuses` returns what is running in conversations, by their ids. `on_trashed` is called
    when one is moved to the trash, or (False) restored."""

    HINTS = (
        *("⏎ open", "^N new", "Tab documents", "^R rename", "^T pin", "^D delete", "^Z undo"),
        *("^E export", "Esc"),
    )

    # With priority: the focused input would use some of these keys itself.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", id="list.open", tooltip="Open"),
        Binding("ctrl+n", "new", "New", id="list.new", tooltip="New conversation", priority=True),
        Binding(
            "tab", "documents", "Documents", id="list.documents",
            tooltip="Go to the documents, or back to the conversations", priority=True,
        ),
        Binding("ctrl+r", "rename", "Rename", id="list.rename", tooltip="Rename", priority=True),
        Binding("ctrl+t", "pin", "Pin", id="list.pin", tooltip="Pin or unpin", priority=True),
        Binding(
            "ctrl+y", "duplicate", "Duplicate", id="list.duplicate",
            tooltip="Duplicate the conversation", priority=True,
        ),
        Binding(
            "ctrl+e", "export", "Export", id="list.export",
            tooltip="Export to a Markdown or JSON file", priority=True,
        ),
        Binding(
            "ctrl+d", "delete", "Delete", id="list.delete", tooltip="Move to the trash",
            priority=True,
        ),
        Binding(
            "ctrl+z", "undo", "Undo", id="list.undo",
            tooltip="Restore the last deleted conversation", priority=True,
        ),
        Binding(
            "escape,ctrl+o", "close", "Close", id="list.close", tooltip="Close", priority=True
        ),
    ]  # fmt: skip

    def __init__(
        self,
        repository: ChatRepository,
        current: int | None,
        statuses: Callable[[], Mapping[int, str]],
        on_trashed: Callable[[int, bool], None],
    ) -> None:
        super().__init__()
        self._repository, self._current = repository, current
        self._statuses, self._on_trashed = statuses, on_trashed
        self._drawn_statuses: Mapping[int, str] = {}
        self._conversations: tuple[ConversationRecord, ...] = ()
        self._sizes: dict[int, ConversationSize] = {}
        self._searched = ""
        self._hits: tuple[SearchHit, ...] = ()
        self._documents_searched = ""
        self._documents = FoundDocuments()
        self._attachable: tuple[KnownDocument, ...] = ()
        self._rows: list[ConversationRow] = []
        self._deleted: list[ConversationRecord] = []
        self._loaded = asyncio.Event()
        self.prompt = PromptLine()

    def help_sections(self) -> tuple[Section, ...]:
        return (("Conversations", ConversationsScreen), ("The list", FilterList))

    def compose(self) -> ComposeResult:
        yield self.heading
        yield self.list
        yield self.prompt
        yield self.message
        yield self.foot

    def on_mount(self) -> None:
        self.set_interval(REFRESH_SECONDS, self._refresh_statuses)
        self.run_in_turn(self._load_first)

    async def _load_first(self) -> None:
        try:
            await self._load(self._current)
        finally:
            self._loaded.set()

    async def has_chosen(self) -> bool:
        await self._loaded.wait()
        return self._highlighted is not None and self._highlighted.id == self._current

    # -------------------------------------------------------------------------- the list

    async def _load(self, go_to: int | None = None) -> None:

        def read(
            store: Store,
        ) -> tuple[tuple[ConversationRecord, ...], dict[int, ConversationSize]]:
            return store.conversations(), store.sizes()

        self._conversations, self._sizes = await self._repository.read(read)
        self.draw("" if go_to is None else str(go_to))
        known = await self._repository.read(lambda store: store.documents())
        self._attachable = tuple(each for each in known if is_named(each))
        self.draw()

    def list_rows(self, text: str, width: int) -> Iterator[tuple[str, Content]]:
        hits = self._hits if text == self._searched else ()
        self._rows = matching_rows(self._conversations, self._sizes, text, hits)
        self._drawn_statuses = dict(self._statuses())
        now = datetime.now().astimezone()
        labels = distinct_labels(((r.conversation.title, r.conversation) for r in self._rows), now)
        for row in self._rows:
            status, label = self._drawn_statuses.get(row.id, ""), labels.get(row.id, "")
            line = render_row(row, width, now, status, row.id == self._current, label)
            yield str(row.id), line
        named = Counter(each.label for each in self._attachable)
        for index, known in self._attachable_for(text):
            line = render_known(known, width, now, with_path=named[known.label] > 1)
            yield f"{_ATTACH}{index}", line
        for index, hit in enumerate(self._documents_for(text).hits):
            yield f"{_DOCUMENT}{index}", render_document(hit, width)

    def _attachable_for(self, text: str) -> list[tuple[int, KnownDocument]]:
        """Documents whose names have all words of `text`, with their numbers."""
        words = text.casefold().split()
        return [
            (index, each)
            for index, each in enumerate(self._attachable)
            if all(word in each.label.casefold() for word in words)
        ]

    def _documents_for(self, text: str) -> FoundDocuments:
        return self._documents if text == self._documents_searched else FoundDocuments()

    def draw_frame(self) -> None:
        count = formatting.plural(len(self._conversations), "conversation")
        if self.list.text:
            count = f"{len(self._rows)} of {count}"
            found = self._documents_for(self.list.text)
            if found.total:
                shown, total = len(found.hits), formatting.plural(found.total, "document")
                count += f" · {total}" if shown == found.total else f" · {shown} of {total}"
            if found.unindexed:
                count += f" · {formatting.count(found.unindexed)} not searchable yet"
        elif self._attachable:
            count += f" · {formatting.plural(len(self._attachable), 'document')}"
        self.show_heading("Conversations", count)
        self._describe()

    def _refresh_statuses(self) -> None:
        if self._drawn_statuses != dict(self._statuses()):
            self.run_in_turn(self._load)
        if self._documents_for(self.list.text).unindexed:
            start_task(self, self._search_indexed, "indexed", exclusive=True)

    @property
    def _highlighted(self) -> ConversationRecord | None:
        key = self.list.highlighted
        if key.startswith(_DOCUMENT):
            self.show_message("This is a document. Enter opens its conversation.")
        elif key.startswith(_ATTACH):
            self.show_message(ASK_AGAIN)
        return next((r.conversation for r in self._rows if str(r.id) == key), None)

    @on(FilterList.Filtered)
    def _search_soon(self, event: FilterList.Filtered) -> None:
        start_task(self, lambda: self._search(event.text), "search", exclusive=True)

    async def _search(self, text: str) -> None:
        """Search messages, then documents, which may take longer."""
        await asyncio.sleep(SEARCH_DELAY_SECONDS)
        try:
            hits = await self._repository.read(lambda store: store.search(text, best_only=True))
            if text == self.list.text:
                self._searched, self._hits = text, hits
                self.draw()
            await self._search_documents(text)
        except UserError as error:
            self.show_message(str(error))

    async def _search_documents(self, text: str) -> None:
        found = await self._repository.read(lambda store: store.search_documents(text))
        if text == self.list.text:
            self._documents_searched, self._documents = text, found
            self.draw()

    async def _search_indexed(self) -> None:
        """Search again if more documents are indexed now."""
        with suppress(UserError):  # shown when something is typed
            unindexed = await self._repository.read(lambda store: store.unindexed_documents())
            if unindexed != self._documents.unindexed:
                await self._search_documents(self.list.text)

    # -------------------------------------------------------------------------- opening

    @on(FilterList.RowChosen)
    def _open(self, event: FilterList.RowChosen) -> None:
        if event.key.startswith(_DOCUMENT):
            hit = self._documents.hits[int(event.key.removeprefix(_DOCUMENT))]
            self.leave(ChosenConversation(hit.conversation, hit.message, hit))
            return
        if event.key.startswith(_ATTACH):
            known = self._attachable[int(event.key.removeprefix(_ATTACH))]
            self.leave(ChosenConversation(None, attach=known))
            return
        row = next(row for row in self._rows if str(row.id) == event.key)
        self.leave(ChosenConversation(row.id, row.hit.message if row.hit is not None else None))

    @on(OptionList.OptionHighlighted)
    def _describe(self) -> None:
        """Say what Enter does with a document."""
        if self.list.highlighted.startswith(_ATTACH):
            self.show_message(ASK_AGAIN)
        elif self.said == ASK_AGAIN:
            self.show_message("")

    @in_turn
    async def action_documents(self) -> None:
        rows = [option.id or "" for option in self.list.options.options]
        documents = [key for key in rows if key.startswith(_ATTACH)]
        if not documents:
            self.show_message("No document has been attached yet.")
        else:
            self.draw(rows[0] if self.list.highlighted in documents else documents[0])

    def action_new(self) -> None:
        self.leave(ChosenConversation(None))

    def action_close(self) -> None:
        if self.prompt.display:
            self._close_prompt()
        else:
            super().action_close()

    def leave(self, chosen: ChosenConversation | None = None) -> None:
        """Close the list once all changes are stored. Further calls have no effect."""

        async def leave() -> None:
            if self.is_current:
                self.dismiss(chosen)

        self.run_in_turn(leave)

    # -------------------------------------------------------------------------- changing

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While the prompt line is open, its own keys come first."""
        return action in ("close", "open") or not self.prompt.display

    def action_rename(self) -> None:
        if (chosen := self._highlighted) is not None:
            self.prompt.ask("Title", chosen.title, lambda title: self._rename(chosen, title))

    def _rename(self, chosen: ConversationRecord, title: str) -> None:
        async def rename() -> None:
            await self._repository.write(lambda store: store.rename(chosen.id, title))
            await self._load(chosen.id)

        if title.strip():
            self.run_in_turn(rename)
        else:
            self.show_message("A title cannot be empty.")

    @in_turn
    async def action_pin(self) -> None:
        if (chosen := self._highlighted) is not None:
            await self._repository.write(lambda store: store.pin(chosen.id, not chosen.pinned))
            await self._load(chosen.id)

    @in_turn
    async def action_duplicate(self) -> None:
        if (chosen := self._highlighted) is not None:
            copy = await self._repository.write(lambda store: store.duplicate(chosen.id))
            await self._load(copy.id)

    @in_turn
    async def action_delete(self) -> None:
        if (chosen := self._highlighted) is None:
            return
        ids = [row.id for row in self._rows]
        index = ids.index(chosen.id)
        neighbours = ids[index + 1 :] + ids[:index][::-1]
        await self._repository.write(lambda store: store.trash(chosen.id))
        self._deleted.append(chosen)
        self._on_trashed(chosen.id, True)
        await self._load(neighbours[0] if neighbours else None)
        days = formatting.plural(self._repository.trash_days, "day")
        self.show_message(f"Moved '{chosen.title}' to the trash (kept for {days}). ^Z restores it.")

    @in_turn
    async def action_undo(self) -> None:
        if not self._deleted:
            self.show_message("Nothing to undo.")
            return
        last = self._deleted.pop()
        await self._repository.write(lambda store: store.restore(last.id))
        self._on_trashed(last.id, False)
        await self._load(last.id)
        self.show_message(f"Restored '{last.title}'.")

    def action_export(self) -> None:
        if (chosen := self._highlighted) is not None:
            name = free_name(Path.cwd(), chosen.title)
            self.prompt.ask(
                "Export to file (.md or .json)",
                str(name),
                lambda path: self._export(chosen, path),
            )

    def _export(self, chosen: ConversationRecord, typed: str) -> None:
        path = Path(typed.strip()).expanduser()

        async def export() -> None:
            if path.exists():
                self.show_message(f"'{path}' already exists. Choose another name.")
                return
            await self._repository.read(lambda store: to_file(store, chosen.id, path))
            self.show_message(f"Exported to '{path.absolute()}'.")

        if typed.strip():
            self.run_in_turn(export)

    @on(PromptLine.Entered)
    def _close_prompt(self) -> None:
        self.prompt.display = False
        self.set_focus(self.list.filter)


def free_name(folder: Path, title: str) -> Path:
    """A short file name for this title that does not exist in `folder` yet."""
    words = "".join(c if c.isalnum() else " " for c in title).split()
    stem = "-".join(words).lower()[:40].strip("-") or "conversation"
    names = (f"{stem}.md", *(f"{stem}-{number}.md" for number in range(2, 1000)))
    return Path(next((name for name in names if not (folder / name).exists()), names[0]))

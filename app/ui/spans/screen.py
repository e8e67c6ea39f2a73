"""Ctrl+S: what was read of the documents, and what another keep would read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Key
from textual.screen import Screen
from textual.widgets import Input, Static

from app.chat.conversation import Pins
from app.ui.help import Section
from app.ui.keys import forward_key, run_own_binding
from app.ui.spans.collection import Collection, Position, SearchHit, next_hit_index
from app.ui.spans.documents import DocumentsScreen
from app.ui.spans.hints import FINDING, READING, READING_MANY, Hints
from app.ui.spans.minimap import Minimap
from app.ui.spans.passages import Passage, ReadDocument, ReadKind
from app.ui.spans.search import SearchLine
from app.ui.spans.view import DocumentView, TextRange
from app.util import formatting
from app.util.sanitize import sanitize_line

KEEP_STEP = 0.01
HEIGHTS = "▁▂▃▄▅▆▇█"
LEAST_NAME = 12
"""Cells of a document's name."""


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Ask the same question again: at this keep, with these characters always read."""

    keep: float
    pins: Pins


class SpansScreen(Screen[AskAgain | None]):
    """Opens at the most important document. `try_keep` asks the engine what another keep would
    read; the answer comes by `show`. Without it the keep cannot be tried."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="spans.up", tooltip="A row up"),
        Binding("down", "move(1)", "Down", id="spans.down", tooltip="A row down"),
        Binding("pageup", "page(-1)", "Page up", id="spans.page_up", tooltip="A page up"),
        Binding("pagedown", "page(1)", "Page down", id="spans.page_down", tooltip="A page down"),
        Binding("home", "begin", "Begin", id="spans.begin", tooltip="To the beginning"),
        Binding("end", "end", "End", id="spans.end", tooltip="To the end"),
        Binding("n", "next", "Next", id="spans.next", tooltip="To the next passage that was read"),
        Binding("p", "previous", "Previous", id="spans.previous", tooltip="To the one before"),
        Binding("slash,ctrl+f", "find", "Find", id="spans.find", tooltip="Find in all documents"),
        Binding(
            "space",
            "pin",
            "Pin",
            id="spans.pin",
            tooltip="Always read this paragraph (or click its mark)",
        ),
        Binding("f", "fold", "Fold", id="spans.fold", tooltip="Fold away what was not read"),
        Binding("left", "keep(-1)", "Less", id="spans.less", tooltip="Try a lower keep"),
        Binding("right", "keep(1)", "More", id="spans.more", tooltip="Try a higher keep"),
        Binding("c", "copy", "Copy", id="spans.copy", tooltip="Copy the passage"),
        Binding("d", "documents", "Documents", id="spans.documents", tooltip="Choose a document"),
        Binding(
            "tab", "document(1)", "Next document", id="spans.document", tooltip="The next document"
        ),
        Binding(
            "shift+tab", "document(-1)", "Document before", id="spans.document_before",
            tooltip="The document before",
        ),
        Binding("enter", "again", "Again", id="spans.again", tooltip="Ask again, read like this"),
        Binding("escape,ctrl+s,q", "close", "Close", id="spans.close", tooltip="Close"),
    ]  # fmt: skip

    def __init__(
        self,
        documents: Sequence[ReadDocument],
        keep: float,
        try_keep: Callable[[float], None] | None = None,
        shown_keep: float | None = None,
    ) -> None:
        """`documents` is not empty. `keep` is what was read; with a `shown_keep` they are as that
        one would read them."""
        super().__init__()
        self._documents = Collection(documents)
        self._read_keep = keep
        self._keep = keep if shown_keep is None else shown_keep
        self._try_keep = try_keep
        self._pins: Pins = {(d.message, d.document): d.pinned for d in documents if d.pinned}
        self._at, self._begin = self._documents.first()
        self._folded = False
        self._hits: list[SearchHit] = []
        self._said = ("", (0, 0))
        self.view = DocumentView(self._document)
        self.minimap = Minimap(self._document)
        self.search = SearchLine(self.view)
        self._hints = Hints(id="spans-foot")

    def help_sections(self) -> tuple[Section, ...]:
        return (("What was read", SpansScreen),)

    def compose(self) -> ComposeResult:
        yield Static(id="spans-head", markup=False)
        with Horizontal(id="spans-body"):
            yield self.view
            yield self.minimap
        yield self.search
        yield Static(id="spans-place", markup=False)
        yield self._hints

    def on_mount(self) -> None:
        self.view.focus()
        self.view.cursor = self._begin
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    async def on_key(self, event: Key) -> None:
        """Keys come here by way of what has the focus, in the order in which they were pressed; by
        the time the search has it, some that are meant for that may have been on their way."""
        if self.focused is self.search and self.search.takes(event):
            forward_key(event, self.search)
        else:
            await run_own_binding(self, event)

    # -------------------------------------------------------------------------- what is shown

    @property
    def _document(self) -> ReadDocument:
        return self._documents[self._at]

    @property
    def _place(self) -> Position:
        return self._at, self.view.cursor

    @property
    def _key(self) -> tuple[int, int]:
        """What pins of this document are found by."""
        return self._document.message, self._document.document

    @property
    def _own_pins(self) -> tuple[TextRange, ...]:
        return self._pins.get(self._key, ())

    @property
    def _own_hits(self) -> tuple[TextRange, ...]:
        first = bisect_left(self._hits, (self._at,))
        last = bisect_left(self._hits, (self._at + 1,))
        return tuple((start, end) for _, start, end in self._hits[first:last])

    def show(self, documents: Sequence[ReadDocument], keep: float) -> None:
        """The same documents as another keep would read them."""
        self._documents.show(documents)
        self._keep = keep
        self.view.show(self._document)
        self._draw()

    def _draw(self) -> None:
        view, rows = self.view, self.view.rows
        top = min(view.scroll_offset.y, len(rows) - 1)
        last = min(top + max(1, view.size.height), len(rows)) - 1
        seen = rows[top][0], rows[last][1]
        view.show_pins(self._own_pins)
        self.minimap.show(self._document, self._own_pins, self.view.hits, seen)
        width = self.size.width - 4
        self.query_one("#spans-head", Static).update(self._head(width))
        self.query_one("#spans-place", Static).update(self._where().truncate(width, ellipsis=True))
        reading = READING_MANY if len(self._documents) > 1 else READING
        self._hints.show(FINDING if self.search.display else reading)

    def _head(self, width: int) -> Content:
        """Of the name and what follows it, the name gives way first."""
        document, many = self._document, len(self._documents) > 1
        which = f"{self._at + 1}/{len(self._documents)} " if many else ""
        left = Content.assemble(("Spans  ", "bold $accent"), (which, "$ink-dim"))
        read = f"read {formatting.percent(document.read_fraction)} · {self._passages()}"
        if self._keep != self._read_keep:
            read = f"keep {formatting.percent(self._keep)} would {read}"
        pinned = f" · {len(self._own_pins)} pinned by you" if self._own_pins else ""
        right = Content.assemble((f"   {read}", "$accent"), (pinned, "$ink-dim"))
        room = max(LEAST_NAME, width - left.cell_length - right.cell_length)
        name = Content(sanitize_line(document.name)).truncate(room, ellipsis=True)
        return Content.assemble(left, name, right).truncate(width, ellipsis=True)

    def _passages(self) -> str:
        """How many there are; among several documents, which of all of them this is."""
        number = self._documents.passage_number(self._place)
        if len(self._documents) == 1 or number is None:
            return formatting.plural(self._document.passages_read, "passage")
        return f"passage {number} of {formatting.count(self._documents.passages)}"

    def _where(self) -> Content:
        """About the row of the cursor, or what was just said."""
        offset = self.view.cursor
        words, said_at = self._said
        if words and said_at == self._place:
            return Content.styled(words, "$accent")
        line = self._document.text.count("\n", 0, offset) + 1
        passage = self._document.at(offset)
        words = self._read_words(passage)
        if any(s <= offset < e for s, e in self._own_pins):
            words = "pinned by you"
        elif passage.score is not None:
            words += f" · {passage.score:.1f} times as important as the whole"
        elif (importance := self._document.importance_at(offset)) is not None:
            height = HEIGHTS[round(importance * (len(HEIGHTS) - 1))]
            words += f" · importance {height} {formatting.percent(importance)} of the highest"
        return Content.assemble(f"line {formatting.count(line)}", (f" · {words}", "$ink-dim"))

    @property
    def _unread_words(self) -> str:
        return "not read" if self._keep == self._read_keep else "would not be read"

    def _read_words(self, passage: Passage) -> str:
        if passage.kind is ReadKind.UNREAD:
            return self._unread_words
        tried = passage.kind is ReadKind.SELECTED and self._keep != self._read_keep
        return "would be read" if tried else passage.kind.value

    def _say(self, words: str) -> None:
        """Until the cursor moves."""
        self._said = (words, self._place)
        self._draw()

    @on(DocumentView.Moved)
    def _moved(self) -> None:
        self._draw()

    # -------------------------------------------------------------------------- moving

    def action_move(self, rows: int) -> None:
        self.view.move(rows)

    def action_page(self, pages: int) -> None:
        self.view.move(pages * max(1, self.view.size.height - 2))

    def action_begin(self) -> None:
        self.view.go_to(0)

    def action_end(self) -> None:
        self.view.go_to(len(self._document.text))

    def action_next(self) -> None:
        self._go_or_say(self._documents.next_read(self._place), "Nothing more was read.")

    def action_previous(self) -> None:
        start = self.view.rows[self.view.row][0]
        before = min(start, self._document.at(start).start)
        found = self._documents.previous_read((self._at, before))
        self._go_or_say(found, "Nothing before this was read.")

    def _go_or_say(self, place: Position | None, words: str) -> None:
        if place is None:
            self._say(words)
        else:
            self._go_to(*place)

    def _go_to(self, index: int, offset: int) -> None:
        if index != self._at:
            self._at = index
            self.view.show(self._document)
            self.view.show_hits(self._own_hits)
        self.view.go_to(offset, centre=True)
        self._draw()

    def action_document(self, by: int) -> None:
        """The one so many further on, at the first that was read of it."""
        self._go_to_document((self._at + by) % len(self._documents))

    def action_documents(self) -> None:
        if len(self._documents) == 1:
            self._say("There is only one document.")
        else:
            screen = DocumentsScreen(self._documents, self._at)
            self.app.push_screen(screen, self._go_to_document)

    def _go_to_document(self, index: int | None) -> None:
        if index is not None and index != self._at:
            self._go_to(index, self._documents[index].first_read or 0)

    @on(Minimap.Clicked)
    def _minimap_clicked(self, event: Minimap.Clicked) -> None:
        self.view.go_to(event.offset, centre=True)

    # -------------------------------------------------------------------------- finding

    def action_find(self) -> None:
        self.search.display = True
        self.set_focus(self.search)  # at once: keys typed ahead are meant for it
        self._draw()

    @on(Input.Changed)
    def _search_changed(self, event: Input.Changed) -> None:
        if not self.search.display:  # of what was typed before it closed
            return
        self._hits = self._documents.find(event.value)
        self.view.show_hits(self._own_hits)
        if not self._hits:
            where = "document" if len(self._documents) == 1 else "documents"
            self._say(f"Nowhere in the {where}." if event.value.strip() else "")
        else:
            self._to_hit(next_hit_index(self._hits, self._place))

    @on(Input.Submitted)
    def action_next_hit(self) -> None:
        if self._hits:
            self._to_hit(next_hit_index(self._hits, (self._at, self.view.cursor + 1)))

    def _to_hit(self, number: int) -> None:
        index, start, end = self._hits[number]
        self._go_to(index, start)
        unread = any(p.kind is ReadKind.UNREAD for p in self._document.between(start, end))
        words = f"{self._unread_words.upper()}: Space pins it" if unread else "read"
        found = f"{formatting.count(number + 1)} of {formatting.plural(len(self._hits), 'hit')}"
        if (documents := len({index for index, _, _ in self._hits})) > 1:
            found += f" in {formatting.count(documents)} documents"
        self._say(f"{found} · {words}")

    def _close_search(self) -> None:
        self._hits = []
        self.search.display = False
        self.search.value = ""
        self.view.show_hits(())
        self.set_focus(self.view)

    # -------------------------------------------------------------------------- doing

    def action_pin(self) -> None:
        """Pin the paragraph of the cursor, or let go the pin that is there."""
        offset = self.view.cursor
        kept = tuple(pin for pin in self._own_pins if not pin[0] <= offset < pin[1])
        if len(kept) < len(self._own_pins):
            self._pins[self._key] = kept
            self._say("No longer pinned.")
            return
        start, end = self._document.paragraph(offset)
        if start == end:
            self._say("There is no text here to pin.")
            return
        apart = (pin for pin in kept if pin[1] <= start or end <= pin[0])
        self._pins[self._key] = tuple(sorted((*apart, (start, end))))
        self._say("Pinned: it is read whenever the document is. Enter asks again.")

    @on(DocumentView.Chosen)
    def _chosen(self) -> None:
        self.action_pin()

    @on(DocumentView.FoldClicked)
    def _fold_clicked(self) -> None:
        self.action_fold()

    def action_fold(self) -> None:
        self._folded = not self._folded
        self.view.fold(self._folded)
        self._draw()

    def action_keep(self, steps: int) -> None:
        if self._try_keep is None:
            self._say("Another keep can be tried on the last answer only, if it was scored.")
            return
        self._said = ("", (0, 0))
        self._keep = min(1.0, max(KEEP_STEP, round(self._keep + steps * KEEP_STEP, 2)))
        self._try_keep(self._keep)

    def action_copy(self) -> None:
        passage: Passage = self._document.at(self.view.cursor)
        self.app.copy_to_clipboard(self._document.text[passage.start : passage.end])
        self._say(f"Copied {formatting.plural(passage.end - passage.start, 'character')}.")

    def action_again(self) -> None:
        self.dismiss(AskAgain(self._keep, self._pins))

    def action_close(self) -> None:
        if self.search.display:
            self._close_search()
            self._draw()
        else:
            self.dismiss(None)

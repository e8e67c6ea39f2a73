"""Ctrl+S: which parts of the documents were read, and which another keep would select."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Key
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from app.chat.conversation import Pins
from app.protocol.citations import Citation
from app.store.records import DocumentHit
from app.ui.filter_list import FilterList
from app.ui.help import Section
from app.ui.keys import SafeInput, forward_key, run_own_binding
from app.ui.originals import OpenOriginal
from app.ui.spans.passages import (
    Collection,
    Passage,
    Position,
    ReadDocument,
    ReadKind,
    SearchHit,
    next_hit_index,
)
from app.ui.spans.view import (
    HIT,
    MARKS,
    NONE,
    SOME,
    DocumentView,
    Minimap,
    TextRange,
    overlapping,
)
from app.ui.terminal import copied_sentence
from app.ui.text import ClickLine, LinePart, spread
from app.ui.theme import FEW_COLOURS
from app.util import formatting
from app.util.sanitize import sanitize_line

GAP = "  "
BAR_CELLS = 10
KEEP_STEP = 0.01
MIN_LEGEND_HEIGHT = 16
"""Minimum height of the terminal for the legend."""
MIN_NAME = 12
"""Cells for a document's name."""


@dataclass(frozen=True, slots=True)
class Hint:
    """`action` is one of the screen. Where not all fit, `short` replaces `text`, then the hint with
    the lowest `priority` goes first."""

    text: str
    action: str
    priority: int
    short: str = ""


READING = (
    Hint("n next passage", "next", 5, "n next"),
    Hint("p previous", "previous", 4, "p prev"),
    Hint("a cited passages", "cited", 8, "a cited"),
    Hint("/ find", "find", 7),
    Hint("d documents", "documents", 5),
    Hint("Space pin", "pin", 9),
    Hint("o open file", "open_original", 3, "o open"),
    Hint("c copy", "copy", 3),
    Hint("f only what was read", "fold", 2, "f filter"),
    Hint("←", "keep(-1)", 0),
    Hint("→ keep", "keep(1)", 1),
    Hint("⏎ ask again", "again", 8, "⏎ again"),
    Hint("Esc close", "close", 6, "Esc"),
)
FINDING = (Hint("⏎ next hit", "next_hit", 1), Hint("Esc close search", "close", 2, "Esc"))


def reading_hints(several_documents: bool, cites: bool, has_file: bool) -> tuple[Hint, ...]:
    """Hints without those that are useless here. `cites`: the answer cites something. `has_file`:
    the document was read from a file."""
    useless = {
        "documents": not several_documents,
        "cited": not cites,
        "open_original": not has_file,
    }
    return tuple(hint for hint in READING if not useless.get(hint.action))


class Hints(ClickLine):
    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._hints: Sequence[Hint] = READING

    def show(self, hints: Sequence[Hint]) -> None:
        if hints != self._hints:
            self._hints = hints
            self.refresh()

    def pieces(self) -> Iterator[LinePart]:
        gap = ""
        for text, action in _fit(self._hints, self.content_size.width):
            yield LinePart(gap)
            yield LinePart(text, "$ink-dim", partial(self.screen.run_action, action))
            gap = GAP


def _fit(hints: Sequence[Hint], width: int) -> list[tuple[str, str]]:
    """Texts and actions that fit into `width` cells."""
    shown, remaining = [(hint.text, hint.action) for hint in hints], list(hints)
    while len(GAP.join(text for text, _ in shown)) > width and remaining:
        shown = [(hint.short or hint.text, hint.action) for hint in remaining]
        remaining.remove(min(remaining, key=lambda hint: hint.priority))
    return shown


class DocumentsScreen(ModalScreen[int | None]):
    """Returns the index of the chosen document."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Show", id="documents.show", tooltip="Show"),
        Binding("escape", "dismiss", "Close", id="documents.close", tooltip="Close"),
    ]  # fmt: skip

    def __init__(self, collection: Collection, current: int) -> None:
        super().__init__()
        self._collection, self._current = collection, current
        self.list = FilterList(self._rows)

    def help_sections(self) -> tuple[Section, ...]:
        return (("Documents", DocumentsScreen), ("The list", FilterList))

    def compose(self) -> ComposeResult:
        count = formatting.plural(len(self._collection), "document")
        heading = Content.styled(f"{count}, the most important first", "bold $accent")
        with Vertical(id="documents"):
            yield Static(heading)
            yield self.list
            hints = "⏎ show   ↑↓ choose   Esc close"
            yield Static(Content.styled(hints, "$ink-dim"), id="documents-foot")

    def on_mount(self) -> None:
        self.list.draw(str(self._current))  # at once: keys typed ahead are meant for it

    def on_resize(self) -> None:
        self.list.fit_box(self.size.height)

    def _rows(self, text: str, width: int) -> Iterator[tuple[str, Content]]:
        for index, document in enumerate(self._collection.documents):
            if text.casefold() in document.title.casefold():
                yield str(index), document_line(document, index, width)

    def action_choose(self) -> None:
        self.list.choose()

    @on(FilterList.RowChosen)
    def _chosen(self, event: FilterList.RowChosen) -> None:
        self.dismiss(int(event.key))


def document_line(document: ReadDocument, index: int, width: int) -> Content:
    """One line of at most `width` cells: its name, and how much of it was read. Where it is narrow
    the number of passages goes first, then the bar."""
    share = f"{formatting.percent(document.read_fraction):>4}"
    passages = f" · {document.passages_read:>3}" + (
        " passage " if document.passages_read == 1 else " passages"
    )
    filled = round(document.read_fraction * BAR_CELLS) or int(document.passages_read > 0)
    bar = Content.assemble(("━" * filled, "$accent"), ("─" * (BAR_CELLS - filled), "$ink-faint"))
    number = Content.styled(f"{index + 1:>3}  ", "$ink-dim")
    for right in (
        Content.assemble(bar, "  ", (share + passages, "$ink-dim")),
        Content.assemble(bar, "  ", (share, "$ink-dim")),
        Content.styled(share, "$ink-dim"),
    ):
        if width - number.cell_length - right.cell_length - 2 >= MIN_NAME:
            break
    name_style = "" if document.passages_read else "$ink-dim"
    name = Content.assemble(number, (sanitize_line(document.title), name_style))
    return spread(name, right, width)


class SearchLine(SafeInput):
    """Hidden until a search starts. Keys that arrive after it has closed go to `behind`."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "screen.close", show=False)]

    def __init__(self, behind: Widget) -> None:
        super().__init__(placeholder="Find", id="spans-search", compact=True)
        self._behind = behind

    async def _on_key(self, event: Key) -> None:
        if self.display:
            await super()._on_key(event)
        else:
            forward_key(event, self._behind)

    def wants(self, event: Key) -> bool:
        """Whether a key that arrived elsewhere is for this line, which has the focus."""
        return event.is_printable or event.key in self._bindings.key_to_bindings


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Ask the same question again, with these characters pinned: at another keep, or (None) as it
    was asked."""

    keep: float | None
    pins: Pins


class SpansScreen(Screen[AskAgain | None]):
    """The documents of an answer, opened at the most important one. `try_keep` asks the engine what
    another keep would select, and `show` gets the answer; without it, no other keep can be
    tried."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="spans.up", tooltip="Row up"),
        Binding("down", "move(1)", "Down", id="spans.down", tooltip="Row down"),
        Binding("pageup", "page(-1)", "Page up", id="spans.page_up", tooltip="Page up"),
        Binding("pagedown", "page(1)", "Page down", id="spans.page_down", tooltip="Page down"),
        Binding("home", "start", "Start", id="spans.start", tooltip="To the start"),
        Binding("end", "end", "End", id="spans.end", tooltip="To the end"),
        Binding("n", "next", "Next", id="spans.next", tooltip="Next passage that was read"),
        Binding(
            "p", "previous", "Previous", id="spans.previous",
            tooltip="Previous passage that was read",
        ),
        Binding("a", "cited", "Answer", id="spans.answer", tooltip="Next cited passage"),
        Binding("slash,ctrl+f", "find", "Find", id="spans.find", tooltip="Search all documents"),
        Binding(
            "space", "pin", "Pin", id="spans.pin",
            tooltip="Pin or unpin the paragraph (or click beside it)",
        ),
        Binding(
            "f", "fold", "Only read", id="spans.fold", tooltip="Show only what was read or pinned"
        ),
        Binding("left", "keep(-1)", "Lower keep", id="spans.less", tooltip="Try a lower keep"),
        Binding("right", "keep(1)", "Higher keep", id="spans.more", tooltip="Try a higher keep"),
        Binding("c", "copy", "Copy", id="spans.copy", tooltip="Copy the passage"),
        Binding(
            "o,ctrl+o", "open_original", "Open the file", id="spans.open",
            tooltip="Open the file in its own program, at the cited page if it can",
        ),
        Binding("d", "documents", "Documents", id="spans.documents", tooltip="Choose a document"),
        Binding(
            "tab", "document(1)", "Next document", id="spans.document", tooltip="Next document"
        ),
        Binding(
            "shift+tab", "document(-1)", "Previous document", id="spans.previous_document",
            tooltip="Previous document",
        ),
        Binding(
            "enter", "again", "Again", id="spans.again",
            tooltip="Ask again with this keep and these pins",
        ),
        Binding("escape,ctrl+s,q", "close", "Close", id="spans.close", tooltip="Close"),
    ]  # fmt: skip

    def __init__(
        self,
        documents: Sequence[ReadDocument],
        keep: float,
        try_keep: Callable[[float], None] | None = None,
        shown_keep: float | None = None,
        status: str = "",
        hit: DocumentHit | None = None,
        citation: Citation | None = None,
    ) -> None:
        """`documents` is not empty. `keep` is what was read at; with a `shown_keep`, the documents
        are as that one would read them. `status` says what is being done, while it is. Opens at the
        `hit`, with its word in the search line, if it is in one of the documents; or at the passage
        of a `citation`."""
        super().__init__()
        self._documents = Collection(documents)
        self._read_keep = keep
        self._keep = self._tried = keep if shown_keep is None else shown_keep
        """The keep of what is shown, and the one that the keys have moved to, which is shown once
        the engine has answered."""
        self._try_keep = try_keep
        self._doing = status
        self._pins: Pins = {(d.message, d.document): d.pinned for d in documents if d.pinned}
        found = None if hit is None else self._documents.locate(hit)
        cited = None if citation is None else self._documents.passage_of(citation)
        self._at, self._start = found or cited or self._documents.first()
        self.found = "" if hit is None or found is None else hit.match
        """The word of the hit, if it is here."""
        self._collapsed = False
        self._hits: list[SearchHit] = []
        self._message = ("", (0, 0))
        self._drawn = asyncio.Event()
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
        yield Static(id="spans-legend", markup=False)
        yield Static(id="spans-status", markup=False)
        yield self._hints

    def on_mount(self) -> None:
        self.view.cursor = self._start
        if self.found:
            self.search.value = self.found
            self.action_find()
        else:
            self.view.focus()
        self.call_after_refresh(self._draw_first)

    def _draw_first(self) -> None:
        self._draw()
        self._drawn.set()

    async def has_chosen(self) -> bool:
        await self._drawn.wait()
        return True

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    async def on_key(self, event: Key) -> None:
        """Keys typed right after `/` arrive here, but are meant for the search line."""
        if self.focused is self.search and self.search.wants(event):
            forward_key(event, self.search)
        else:
            await run_own_binding(self, event)

    # -------------------------------------------------------------------------- what is shown

    @property
    def _document(self) -> ReadDocument:
        return self._documents[self._at]

    @property
    def _position(self) -> Position:
        return self._at, self.view.cursor

    @property
    def _key(self) -> tuple[int, int]:
        return self._document.message, self._document.document

    @property
    def _pins_here(self) -> tuple[TextRange, ...]:
        return self._pins.get(self._key, ())

    @property
    def _hits_here(self) -> tuple[TextRange, ...]:
        return tuple((start, end) for index, start, end in self._hits if index == self._at)

    def show(self, documents: Sequence[ReadDocument], keep: float) -> None:
        """Show the same documents as another keep would read them."""
        self._documents.show(documents)
        self._keep = keep
        self.view.show(self._document)
        self._draw()

    def show_progress(
        self,
        documents: Sequence[ReadDocument],
        keep: float,
        try_keep: Callable[[float], None] | None,
        status: str,
    ) -> None:
        """Show the same documents with more of them read. If the user has moved or pinned
        something, the view stays where it is."""
        key, untouched = self._key, self._position == (0, 0) and not any(self._pins.values())
        self._documents = Collection(documents)
        keys = [(each.message, each.document) for each in self._documents.documents]
        self._at = keys.index(key)
        self._read_keep = self._keep = self._tried = keep
        self._try_keep, self._doing = try_keep, status
        if self._hits:
            self._hits = self._documents.find(self.search.value)
        self.view.show(self._document)
        self.view.show_hits(self._hits_here)
        if untouched:
            self._go_to(*self._documents.first())
        self._draw()

    @on(DocumentView.CursorMoved)
    def _draw(self) -> None:
        view, rows = self.view, self.view.rows
        top = min(view.scroll_offset.y, len(rows) - 1)
        last = min(top + max(1, view.size.height), len(rows)) - 1
        visible = rows[top][0], rows[last][1]
        view.show_pins(self._pins_here)
        self.minimap.show(self._document, self._pins_here, self.view.hits, visible)
        width = self.size.width - 4
        self.query_one("#spans-head", Static).update(self._head(width))
        self.query_one("#spans-status", Static).update(
            self._status().truncate(width, ellipsis=True)
        )
        legend = self.query_one("#spans-legend", Static)
        legend.display = self.size.height >= MIN_LEGEND_HEIGHT
        legend.update(self._legend(width))
        hints = reading_hints(
            len(self._documents) > 1,
            self._documents.citations > 0,
            self._document.origin is not None,
        )
        self._hints.show(FINDING if self.search.display else hints)

    def _legend(self, width: int) -> Content:
        """The marks and styles that these documents have, as many as fit, the most important
        first."""
        kinds = {passage.kind for each in self._documents.documents for passage in each.passages}
        if any(self._pins.values()):
            kinds.add(ReadKind.PINNED)
        parts = [
            Content.assemble((mark, "$accent"), (f" {kind.value}", "$ink-dim"))
            for kind, mark in MARKS.items()
            if kind in kinds and mark.strip()
        ]
        if ReadKind.UNREAD in kinds:
            unread = "$ink-unread dim" if self.app.has_class(FEW_COLOURS) else "$ink-unread"
            parts.append(Content.assemble(("dim", unread), (f" {NONE} not read", "$ink-dim")))
        if self._documents.citations:
            parts.append(Content.assemble(("bold", "bold $accent"), (" cited", "$ink-dim")))
        if self._hits:
            parts.append(Content.assemble((HIT, "$accent"), (" hit", "$ink-dim")))
        if ReadKind.UNREAD in kinds:
            parts.append(Content.assemble((SOME, "$accent"), (" partly read", "$ink-dim")))
        legend = Content("")
        for part in parts:
            longer = Content("   ").join([legend, part]) if legend else part
            if longer.cell_length <= width:
                legend = longer
        return legend

    def _head(self, width: int) -> Content:
        document, many = self._document, len(self._documents) > 1
        number = f"{self._at + 1}/{len(self._documents)} " if many else ""
        left = Content.assemble(("What was read  ", "bold $accent"), (number, "$ink-dim"))
        read = f"read {formatting.percent(document.read_fraction)}{self._passages()}"
        if self._doing:
            read = self._doing
        elif self._keep != self._read_keep:
            read = f"keep {formatting.percent(self._keep)} would {read}"
        pins = len(self._pins_here)
        pinned = f" · {formatting.plural(pins, 'pin')}" if pins else ""
        right = Content.assemble((f"   {read}", "$accent"), (pinned, "$ink-dim"))
        room = max(MIN_NAME, width - left.cell_length - right.cell_length)
        name = Content(sanitize_line(document.title)).truncate(room, ellipsis=True)
        return Content.assemble(left, name, right).truncate(width, ellipsis=True)

    def _passages(self) -> str:
        """` in 3 passages`; with several documents, which passage the cursor is in."""
        number = self._documents.passage_number(self._position)
        if len(self._documents) == 1 or number is None:
            count = self._document.passages_read
            return f" in {formatting.plural(count, 'passage')}" if count else ""
        return f" · passage {number} of {formatting.count(self._documents.passages)}"

    def _status(self) -> Content:
        """The row of the cursor, or the last message."""
        offset = self.view.cursor
        message, position = self._message
        if message and position == self._position:
            return Content.styled(message, "$accent")
        place = self._document.place(offset).text
        passage = self._document.at(offset)
        importance = passage.score
        if importance is None:
            importance = self._document.importance_at(offset)
        text = self._read_text(passage)
        if any(start <= offset < end for start, end in self._pins_here):
            text = "pinned by you"
        elif importance is not None:
            text += f" · importance {importance:.1f}x average"
        row = self.view.rows[self.view.row]
        cited = " · cited" if overlapping(self._document.cited, *row) else ""
        return Content.assemble(place, (cited, "$accent"), (f" · {text}", "$ink-dim"))

    @property
    def _unread_text(self) -> str:
        return "not read" if self._keep == self._read_keep else "would not be read"

    def _read_text(self, passage: Passage) -> str:
        if passage.kind is ReadKind.UNREAD:
            return self._unread_text
        tried = passage.kind is ReadKind.SELECTED and self._keep != self._read_keep
        return "would be read" if tried else passage.kind.value

    def show_message(self, text: str) -> None:
        """Show it until the cursor moves."""
        self._message = (text, self._position)
        self._draw()

    # -------------------------------------------------------------------------- moving

    def action_move(self, rows: int) -> None:
        self.view.move(rows)

    def action_page(self, pages: int) -> None:
        self.view.move(pages * max(1, self.view.size.height - 2))

    def action_start(self) -> None:
        self.view.go_to(0)

    def action_end(self) -> None:
        self.view.go_to(len(self._document.text))

    def action_next(self) -> None:
        self._go_or_show_message(
            self._documents.next_read(self._position), "No more passages were read."
        )

    def action_previous(self) -> None:
        start = self.view.rows[self.view.row][0]
        before = min(start, self._document.at(start).start)
        found = self._documents.previous_read((self._at, before))
        self._go_or_show_message(found, "No earlier passages were read.")

    def action_cited(self) -> None:
        self._go_or_show_message(
            self._documents.next_cited(self._position),
            "The answer cites nothing in the documents.",
        )

    def _go_or_show_message(self, position: Position | None, message: str) -> None:
        if position is None:
            self.show_message(message)
        else:
            self._go_to(*position)

    def _go_to(self, index: int, offset: int) -> None:
        if index != self._at:
            self._at = index
            self.view.show(self._document)
            self.view.show_hits(self._hits_here)
        self.view.go_to(offset, centre=True)
        self._draw()

    def action_document(self, by: int) -> None:
        """The document `by` positions further on, at its first passage that was read."""
        self._go_to_document((self._at + by) % len(self._documents))

    def action_documents(self) -> None:
        if len(self._documents) == 1:
            self.show_message("There is only one document.")
        else:
            screen = DocumentsScreen(self._documents, self._at)
            self.app.push_screen(screen, self._go_to_document)

    def _go_to_document(self, index: int | None) -> None:
        if index is not None and index != self._at:
            first = self._documents.next_read((index, -1))
            self._go_to(index, first[1] if first is not None and first[0] == index else 0)

    @on(Minimap.OffsetClicked)
    def _minimap_clicked(self, event: Minimap.OffsetClicked) -> None:
        self.view.go_to(event.offset, centre=True)

    # -------------------------------------------------------------------------- finding

    def action_find(self) -> None:
        self.search.display = True
        self.set_focus(self.search)  # at once: keys typed ahead are meant for it
        self._draw()

    @on(Input.Changed)
    def _search_changed(self, event: Input.Changed) -> None:
        if not self.search.display:  # typed before it closed
            return
        self._hits = self._documents.find(event.value)
        self.view.show_hits(self._hits_here)
        if not self._hits:
            where = "document" if len(self._documents) == 1 else "documents"
            self.show_message(f"Not found in the {where}." if event.value.strip() else "")
        else:
            self._to_hit(next_hit_index(self._hits, self._position))

    @on(Input.Submitted)
    def action_next_hit(self) -> None:
        if self._hits:
            self._to_hit(next_hit_index(self._hits, (self._at, self.view.cursor + 1)))

    def _to_hit(self, number: int) -> None:
        index, start, end = self._hits[number]
        self._go_to(index, start)
        unread = any(p.kind is ReadKind.UNREAD for p in self._document.between(start, end))
        text = f"{self._unread_text} (Space pins it)" if unread else "read"
        found = f"hit {formatting.count(number + 1)} of {formatting.count(len(self._hits))}"
        if (documents := len({index for index, _, _ in self._hits})) > 1:
            found += f" in {formatting.count(documents)} documents"
        self.show_message(f"{found} · {text}")

    def _close_search(self) -> None:
        self._hits = []
        self.search.display = False
        self.search.value = ""
        self.view.show_hits(())
        self.set_focus(self.view)

    # -------------------------------------------------------------------------- doing

    @on(DocumentView.PinClicked)
    def action_pin(self) -> None:
        """Pin the paragraph at the cursor, or remove the pin that is there."""
        offset = self.view.cursor
        others = tuple(pin for pin in self._pins_here if not pin[0] <= offset < pin[1])
        if len(others) < len(self._pins_here):
            self._pins[self._key] = others
            self.show_message("No longer pinned.")
            return
        start, end = self._document.paragraph(offset)
        if start == end:
            self.show_message("No text to pin here.")
            return
        apart = (pin for pin in others if pin[1] <= start or end <= pin[0])
        self._pins[self._key] = tuple(sorted((*apart, (start, end))))
        self.show_message("Pinned: always read from now on. Enter asks again.")

    @on(DocumentView.FoldClicked)
    def action_fold(self) -> None:
        self._collapsed = not self._collapsed
        self.view.collapse(self._collapsed)
        self._draw()

    def action_keep(self, steps: int) -> None:
        if self._try_keep is None:
            self.show_message(
                "Another keep can be tried once the answer is complete."
                if self._doing
                else "Another keep can be tried only on the last answer, if it was scored."
            )
            return
        self._message = ("", (0, 0))
        self._tried = min(1.0, max(KEEP_STEP, round(self._tried + steps * KEEP_STEP, 2)))
        self._try_keep(self._tried)

    def action_copy(self) -> None:
        passage: Passage = self._document.at(self.view.cursor)
        text = self._document.text[passage.start : passage.end]
        self.app.copy_to_clipboard(text)
        sentence = f"Copied {formatting.plural(len(text), 'character')}."
        self.show_message(copied_sentence(self.app, sentence))

    def action_open_original(self) -> None:
        document = self._document
        _, end = self.view.rows[self.view.row]  # the row itself may begin a page
        page = document.place(end).page
        self.app.post_message(OpenOriginal(document.name, document.origin, page))

    def action_again(self) -> None:
        if self._doing:
            self.show_message(
                "Still answering. Esc closes this screen; in the chat, Esc stops the answer."
            )
            return
        keep = None if self._tried == self._read_keep else self._tried
        self.dismiss(AskAgain(keep, self._pins))

    def action_close(self) -> None:
        if self.search.display:
            self._close_search()
            self._draw()
        else:
            self.dismiss(None)

"""Ctrl+S: what was read of the documents, and what another keep would read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, Static

from app.chat.conversation import Pins
from app.ui import figures
from app.ui.help import Section
from app.ui.safe_input import SafeInput
from app.ui.sanitize import sanitize_line
from app.ui.spans.hints import FINDING, READING, Hints
from app.ui.spans.minimap import Minimap
from app.ui.spans.passages import Passage, Read, ReadDocument
from app.ui.spans.view import DocumentView, Range

KEEP_STEP = 0.01
HEIGHTS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Ask the same question again: at this keep, with these characters always read."""

    keep: float
    pins: Pins


class SpansScreen(Screen[AskAgain | None]):
    """`try_keep` asks the engine what another keep would read; the answer comes by `show`. Without
    it the keep cannot be tried."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="spans.up", tooltip="A row up"),
        Binding("down", "move(1)", "Down", id="spans.down", tooltip="A row down"),
        Binding("pageup", "page(-1)", "Page up", id="spans.page_up", tooltip="A page up"),
        Binding("pagedown", "page(1)", "Page down", id="spans.page_down", tooltip="A page down"),
        Binding("home", "begin", "Begin", id="spans.begin", tooltip="To the beginning"),
        Binding("end", "end", "End", id="spans.end", tooltip="To the end"),
        Binding("n", "next", "Next", id="spans.next", tooltip="To the next passage that was read"),
        Binding("p", "previous", "Previous", id="spans.previous", tooltip="To the one before"),
        Binding("slash,ctrl+f", "find", "Find", id="spans.find", tooltip="Find in the document"),
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
        Binding("d", "document", "Document", id="spans.document", tooltip="The next document"),
        Binding("enter", "again", "Again", id="spans.again", tooltip="Ask again, read like this"),
        Binding("escape,ctrl+s,q", "close", "Close", id="spans.close", tooltip="Close"),
    ]

    def __init__(
        self,
        documents: Sequence[ReadDocument],
        keep: float,
        try_keep: Callable[[float], None] | None = None,
    ) -> None:
        """`documents` is not empty."""
        super().__init__()
        self._documents = list(documents)
        self._read_keep = self._keep = keep
        self._try_keep = try_keep
        self._pins: Pins = {(d.message, d.document): d.pinned for d in documents if d.pinned}
        self._at = 0
        self._folded = False
        self._hits: list[Range] = []
        self._said = ("", 0)
        self.view = DocumentView(self._documents[0])
        self.minimap = Minimap(self._documents[0])
        self.search = SafeInput(placeholder="Find", id="spans-search", compact=True)
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
        if self._document.passages[0].read is Read.NOT:
            self.view.cursor = self._document.next_read(0) or 0
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    # -------------------------------------------------------------------------- what is shown

    @property
    def _document(self) -> ReadDocument:
        return self._documents[self._at]

    @property
    def _place(self) -> tuple[int, int]:
        return self._document.message, self._document.document

    @property
    def _own_pins(self) -> tuple[Range, ...]:
        return self._pins.get(self._place, ())

    def show(self, documents: Sequence[ReadDocument], keep: float) -> None:
        """The same documents as another keep would read them."""
        self._documents = list(documents)
        self._keep = keep
        self.view.show(self._document)
        self._draw()

    def _draw(self) -> None:
        view, rows = self.view, self.view.rows
        top = min(view.scroll_offset.y, len(rows) - 1)
        last = min(top + max(1, view.size.height), len(rows)) - 1
        seen = rows[top][0], rows[last][1]
        view.show_pins(self._own_pins)
        self.minimap.show(self._document, self._own_pins, self._hits, seen)
        width = self.size.width - 4
        self.query_one("#spans-head", Static).update(self._head().truncate(width, ellipsis=True))
        self.query_one("#spans-place", Static).update(self._where().truncate(width, ellipsis=True))
        self._hints.show(FINDING if self.search.display else READING)

    def _head(self) -> Content:
        document = self._document
        which = f" {self._at + 1}/{len(self._documents)}" if len(self._documents) > 1 else ""
        fraction = figures.percent(document.read_fraction)
        passages = sum(p.read is not Read.NOT for p in document.passages)
        read = f"read {fraction} · {figures.plural(passages, 'passage')}"
        if self._keep != self._read_keep:
            read = f"keep {figures.percent(self._keep)} would {read}"
        pinned = f" · {len(self._own_pins)} pinned by you" if self._own_pins else ""
        return Content.assemble(
            ("Spans  ", "bold $accent"),
            sanitize_line(document.name),
            (which, "$ink-dim"),
            (f"   {read}", "$accent"),
            (pinned, "$ink-dim"),
        )

    def _where(self) -> Content:
        """About the row of the cursor, or what was just said."""
        offset = self.view.cursor
        words, said_at = self._said
        if words and said_at == offset:
            return Content.styled(words, "$accent")
        line = self._document.text.count("\n", 0, offset) + 1
        passage = self._document.at(offset)
        words = passage.read.value
        if any(s <= offset < e for s, e in self._own_pins):
            words = "pinned by you"
        elif passage.score is not None:
            words += f" · {passage.score:.1f} times as important as the whole"
        elif (importance := self._document.importance_at(offset)) is not None:
            height = HEIGHTS[round(importance * (len(HEIGHTS) - 1))]
            words += f" · importance {height} {figures.percent(importance)} of the highest"
        return Content.assemble(f"line {figures.count(line)}", (f" · {words}", "$ink-dim"))

    def _say(self, words: str) -> None:
        """Until the cursor moves."""
        self._said = (words, self.view.cursor)
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
        self._go_or_say(self._document.next_read(self.view.cursor), "Nothing more was read.")

    def action_previous(self) -> None:
        start = self.view.rows[self.view.row][0]
        found = self._document.previous_read(min(start, self._document.at(start).start))
        self._go_or_say(found, "Nothing before this was read.")

    def _go_or_say(self, offset: int | None, words: str) -> None:
        if offset is None:
            self._say(words)
        else:
            self.view.go_to(offset, centre=True)

    def action_document(self) -> None:
        if len(self._documents) == 1:
            self._say("There is only one document.")
            return
        self._at = (self._at + 1) % len(self._documents)
        self._close_search()
        self.view.show(self._document)
        self._draw()

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
        self._hits = self._document.find(event.value)
        self.view.show_hits(tuple(self._hits))
        if not self._hits:
            self._say("Nowhere in the document." if event.value.strip() else "")
        else:
            self._to_hit(self._hit_from(self.view.cursor))

    @on(Input.Submitted)
    def action_next_hit(self) -> None:
        if self._hits:
            self._to_hit(self._hit_from(self.view.cursor + 1))

    def _hit_from(self, offset: int) -> int:
        """The first hit from here on, or the first of all."""
        return next((i for i, (start, _) in enumerate(self._hits) if start >= offset), 0)

    def _to_hit(self, index: int) -> None:
        start, end = self._hits[index]
        self.view.go_to(start, centre=True)
        unread = any(p.read is Read.NOT for p in self._document.between(start, end))
        words = "NOT READ: Space pins it" if unread else "read"
        self._say(f"{index + 1} of {figures.plural(len(self._hits), 'hit')} · {words}")

    def _close_search(self) -> None:
        self._hits = []
        self.search.value = ""
        self.search.display = False
        self.view.show_hits(())
        self.set_focus(self.view)

    # -------------------------------------------------------------------------- doing

    def action_pin(self) -> None:
        """Pin the paragraph of the cursor, or let go the pin that is there."""
        offset = self.view.cursor
        kept = tuple(pin for pin in self._own_pins if not pin[0] <= offset < pin[1])
        if len(kept) < len(self._own_pins):
            self._pins[self._place] = kept
            self._say("No longer pinned.")
            return
        start, end = self._document.paragraph(offset)
        if start == end:
            self._say("There is no text here to pin.")
            return
        apart = (pin for pin in kept if pin[1] <= start or end <= pin[0])
        self._pins[self._place] = tuple(sorted((*apart, (start, end))))
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
        self._said = ("", 0)
        self._keep = min(1.0, max(KEEP_STEP, round(self._keep + steps * KEEP_STEP, 2)))
        self._try_keep(self._keep)

    def action_copy(self) -> None:
        passage: Passage = self._document.at(self.view.cursor)
        self.app.copy_to_clipboard(self._document.text[passage.start : passage.end])
        self._say(f"Copied {figures.plural(passage.end - passage.start, 'character')}.")

    def action_again(self) -> None:
        self.dismiss(AskAgain(self._keep, self._pins))

    def action_close(self) -> None:
        if self.search.display:
            self._close_search()
            self._draw()
        else:
            self.dismiss(None)

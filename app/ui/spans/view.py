"""The text of a document, drawn row by row: what was read bright, the rest dim. A column beside it
shows the whole document."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from app.ui.spans.passages import ReadDocument, ReadKind
from app.util.formatting import plural
from app.util.sanitize import sanitize

TAB = "    "
GUTTER = 2
CONTEXT_ROWS = 3
"""Rows between the cursor and the edge after a jump."""
MIN_COLLAPSED = 4
"""Lines: a shorter unread range stays as it is."""
STYLES = {
    ReadKind.UNREAD: "document--unread",
    ReadKind.SELECTED: "document--read",
    ReadKind.READ_ON: "document--read",
    ReadKind.PINNED: "document--pinned",
}
MARKS = {ReadKind.PINNED: "█", ReadKind.READ_ON: "◆", ReadKind.SELECTED: "▌", ReadKind.UNREAD: " "}
"""The mark of a row is the first one whose kind it contains."""
ALL, SOME, NONE, HIT = "█", "▒", "·", "◂"
"""The marks of the column beside the text."""


def visible_text(text: str) -> str:
    """A piece of a row as it is drawn."""
    return sanitize(text).replace("\t", TAB).replace("\n", "")


@lru_cache(maxsize=4096)
def _cells(character: str) -> int:
    return cell_len(visible_text(character))


@dataclass(frozen=True, slots=True)
class CollapsedRange:
    """Characters `start:end`, which are `lines` lines, shown as one row."""

    start: int
    end: int
    lines: int


class WrappedRows:
    """The characters of each row. Each of the `collapsed` ranges (ascending, whole lines) is one
    row."""

    def __init__(self, text: str, width: int, collapsed: Iterable[CollapsedRange] = ()) -> None:
        self.text, self.width = text, max(8, width)
        self._starts, self._ends = array("q"), array("q")
        self._collapsed: dict[int, CollapsedRange] = {}
        at = 0
        for each in collapsed:
            self._wrap(at, each.start)
            self._collapsed[len(self._starts)] = each
            self._starts.append(each.start)
            self._ends.append(each.end)
            at = each.end
        self._wrap(at, len(text))
        if not self._starts:
            self._starts.append(0)
            self._ends.append(0)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> tuple[int, int]:
        """The characters `start, end` of a row, without its newline."""
        return self._starts[row], self._ends[row]

    def collapsed(self, row: int) -> CollapsedRange | None:
        return self._collapsed.get(row)

    def at(self, offset: int) -> int:
        return max(0, bisect_right(self._starts, offset) - 1)

    def _wrap(self, start: int, end: int) -> None:
        text = self.text
        while start < end:
            newline = text.find("\n", start, end)
            stop = end if newline < 0 else newline
            self._wrap_line(start, stop)
            start = stop + 1

    def _wrap_line(self, start: int, end: int) -> None:
        line = self.text[start:end]
        plain = line.isascii() and line.isprintable()
        at = 0
        while at < len(line):
            stop = min(len(line), at + self.width) if plain else self._fitting(line, at)
            if stop < len(line):
                space = line.rfind(" ", at + 1, stop + 1)
                stop = space + 1 if space > at else stop
            self._add(start + at, start + stop)
            at = stop
        if not line:
            self._add(start, end)

    def _fitting(self, line: str, at: int) -> int:
        """Where a row that starts at `at` ends; it has at least one character."""
        room = self.width
        for index in range(at, len(line)):
            room -= _cells(line[index])
            if room < 0:
                return max(at + 1, index)
        return len(line)

    def _add(self, start: int, end: int) -> None:
        self._starts.append(start)
        self._ends.append(end)


TextRange = tuple[int, int]


class DocumentView(ScrollView, can_focus=True, inherit_bindings=False):
    """One document at a time. `cursor` is a character; its row is marked."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *STYLES.values(),
        "document--mark",
        "document--collapsed",
        "document--hit",
        "document--cited",
        "document--cursor",
    }

    cursor: reactive[int] = reactive(0, init=False)

    @dataclass
    class CursorMoved(Message):
        """The cursor has moved."""

    @dataclass
    class PinClicked(Message):
        """A row was double-clicked, or clicked in the column of marks."""

    @dataclass
    class FoldClicked(Message):
        """A collapsed range was clicked."""

    def __init__(self, document: ReadDocument) -> None:
        super().__init__()
        self.document = document
        self._pins: tuple[TextRange, ...] = ()
        self.hits: tuple[TextRange, ...] = ()
        self._collapsed = False
        self.rows = WrappedRows("", 80)

    # -------------------------------------------------------------------------- what is shown

    @property
    def row(self) -> int:
        return self.rows.at(self.cursor)

    def show(self, document: ReadDocument) -> None:
        """Show another document, or the same one at another keep."""
        before = self.document
        same = (document.message, document.document) == (before.message, before.document)
        self.document = document
        if not same:
            self.hits = ()
            self.cursor = 0
        if not same or self._collapsed:
            self._wrap()
        self.refresh()

    def show_pins(self, pins: tuple[TextRange, ...]) -> None:
        """Ranges that are always read."""
        if pins != self._pins:
            self._pins = pins
            if self._collapsed:
                self._wrap()
            self.refresh()

    def show_hits(self, hits: tuple[TextRange, ...]) -> None:
        self.hits = hits
        self.refresh()

    def collapse(self, collapsed: bool) -> None:
        """Whether each long range that is neither read nor pinned takes one row."""
        self._collapsed = collapsed
        self._wrap()

    def _wrap(self) -> None:
        before = self.row - self.scroll_offset.y
        ranges = _unread_ranges(self.document, self._pins) if self._collapsed else ()
        self.rows = WrappedRows(self.document.text, self._text_width, ranges)
        self.virtual_size = Size(self.scrollable_content_region.width, len(self.rows))
        self.scroll_to(y=max(0, self.row - before), animate=False, force=True, immediate=True)
        self.refresh()

    @property
    def _text_width(self) -> int:
        return self.scrollable_content_region.width - GUTTER

    def on_resize(self, event: Resize) -> None:
        if self._text_width != self.rows.width or self.rows.text is not self.document.text:
            self._wrap()
            self.go_to(self.cursor, centre=True)

    # -------------------------------------------------------------------------- moving

    def move(self, rows: int) -> None:
        target = min(len(self.rows) - 1, max(0, self.row + rows))
        self.go_to(self.rows[target][0])

    def go_to(self, offset: int, centre: bool = False) -> None:
        """Move the cursor to this character, and scroll its row into view."""
        self.cursor = min(max(0, offset), max(0, len(self.document.text) - 1))
        height, row = self.scrollable_content_region.height, self.row
        top = self.scroll_offset.y
        edge = min(CONTEXT_ROWS, max(0, (height - 1) // 2))
        if centre and not top + edge <= row < top + height - edge:
            self.scroll_to(y=max(0, row - height // 3), animate=False, force=True, immediate=True)
        elif row < top + edge:
            self.scroll_to(y=max(0, row - edge), animate=False, force=True, immediate=True)
        elif row >= top + height - edge:
            self.scroll_to(y=row - height + edge + 1, animate=False, force=True, immediate=True)

    def watch_cursor(self, old: int, new: int) -> None:
        self.refresh_line(self.rows.at(old))
        self.refresh_line(self.rows.at(new))
        self.post_message(self.CursorMoved())

    def on_click(self, event: Click) -> None:
        row = self.scroll_offset.y + event.y
        if row >= len(self.rows):
            return
        self.cursor = self.rows[row][0]
        offset = event.get_content_offset(self)
        if self.rows.collapsed(row):
            self.post_message(self.FoldClicked())
        elif offset is None or offset.x < GUTTER or event.chain == 2:
            self.post_message(self.PinClicked())

    # -------------------------------------------------------------------------- drawing

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y
        width = self.scrollable_content_region.width
        if row >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        base = self.get_component_rich_style("document--cursor") if row == self.row else None
        collapsed = self.rows.collapsed(row)
        segments = self._collapsed_row(collapsed) if collapsed else self._text_row(*self.rows[row])
        strip = Strip(segments).adjust_cell_length(width, self.rich_style)
        return strip.apply_style(base) if base is not None else strip

    def _collapsed_row(self, collapsed: CollapsedRange) -> list[Segment]:
        style = self.get_component_rich_style("document--collapsed")
        return [Segment(f"{'':{GUTTER}}⋯ {plural(collapsed.lines, 'line')} not read", style)]

    def _text_row(self, start: int, end: int) -> list[Segment]:
        document = self.document
        kinds = {passage.kind for passage in document.between(start, end)}
        if overlapping(self._pins, start, end):
            kinds.add(ReadKind.PINNED)
        kind = next(kind for kind in MARKS if kind in kinds)
        mark = self.get_component_rich_style("document--mark")
        segments = [Segment(f"{MARKS[kind]:{GUTTER}}", mark)]
        for first, last in self._pieces(start, end):
            segments.append(Segment(visible_text(document.text[first:last]), self._style_at(first)))
        return segments

    def _pieces(self, start: int, end: int) -> Iterator[TextRange]:
        """The pieces of a row that have one style each."""
        ranges = [(p.start, p.end) for p in self.document.between(start, end)]
        for others in (self.hits, self._pins, self.document.cited):
            ranges += overlapping(others, start, end)
        cuts = {cut for piece in ranges for cut in piece if start < cut < end}
        return pairwise(sorted({start, end, *cuts}))

    def _style_at(self, offset: int) -> Style:
        pinned = overlapping(self._pins, offset, offset + 1)
        read = ReadKind.PINNED if pinned else self.document.at(offset).kind
        style = self.get_component_rich_style(STYLES[read])
        if overlapping(self.document.cited, offset, offset + 1):
            style += self.get_component_rich_style("document--cited")
        if overlapping(self.hits, offset, offset + 1):
            style += self.get_component_rich_style("document--hit")
        return style


def overlapping(ranges: Sequence[TextRange], start: int, end: int) -> Sequence[TextRange]:
    """The `ranges` (ascending, disjoint) that overlap the characters `start:end`."""
    first = bisect_right(ranges, start, key=lambda r: r[1])
    return ranges[first : bisect_left(ranges, end, key=lambda r: r[0])]


def _without(whole: TextRange, ranges: Sequence[TextRange]) -> Iterator[TextRange]:
    """What is left of `whole` without the `ranges` (ascending, disjoint)."""
    start, end = whole
    for first, last in overlapping(ranges, start, end):
        if start < first:
            yield start, first
        start = last
    if start < end:
        yield start, end


def _unread_ranges(document: ReadDocument, pins: Sequence[TextRange]) -> Iterator[CollapsedRange]:
    """Ranges of at least MIN_COLLAPSED whole lines that were neither read nor pinned."""
    text = document.text
    unread = [(p.start, p.end) for p in document.passages if p.kind is ReadKind.UNREAD]
    for start, end in (piece for each in unread for piece in _without(each, pins)):
        if start and text[start - 1] != "\n":
            start = text.find("\n", start, end) + 1 or end
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or start
        lines = text.count("\n", start, end) + (end == len(text) and not text.endswith("\n"))
        if end > start and lines >= MIN_COLLAPSED:
            yield CollapsedRange(start, end, lines)


class Minimap(Widget):
    """Each row stands for an equal share of the characters."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "minimap--read",
        "minimap--unread",
        "minimap--hit",
        "minimap--visible",
    }

    @dataclass
    class OffsetClicked(Message):
        """`offset` is the first character of the row."""

        offset: int

    def __init__(self, document: ReadDocument) -> None:
        super().__init__()
        self._document = document
        self._pins: Sequence[TextRange] = ()
        self._hits: Sequence[TextRange] = ()
        self._visible: TextRange = (0, 0)

    def show(
        self,
        document: ReadDocument,
        pins: Sequence[TextRange],
        hits: Sequence[TextRange],
        visible: TextRange,
    ) -> None:
        """`visible` is what is on the screen, in characters."""
        self._document, self._pins, self._hits, self._visible = document, pins, hits, visible
        self.refresh()

    def row_range(self, row: int) -> TextRange:
        """The characters that a row stands for."""
        length, height = len(self._document.text), max(1, self.size.height)
        return row * length // height, max((row + 1) * length // height, row * length // height + 1)

    def render_line(self, y: int) -> Strip:
        start, end = self.row_range(y)
        character, name = self._mark(start, end)
        style = self.get_component_rich_style(f"minimap--{name}")
        if start < self._visible[1] and self._visible[0] < end:
            style += self.get_component_rich_style("minimap--visible")
        return Strip([Segment(f"{character:>{self.size.width}}", style)])

    def _mark(self, start: int, end: int) -> tuple[str, str]:
        if overlapping(self._hits, start, end):
            return HIT, "hit"
        read = {
            passage.kind is not ReadKind.UNREAD for passage in self._document.between(start, end)
        }
        if read == {True}:
            return ALL, "read"
        if True in read or overlapping(self._pins, start, end):
            return SOME, "read"
        return NONE, "unread"

    def on_click(self, event: Click) -> None:
        self.post_message(self.OffsetClicked(self.row_range(event.y)[0]))

"""The attachments of the next question, as chips above the compose box.

Their texts never enter the TextArea, which rewrites line ends, form feeds and U+2028: the model
gets exactly what was attached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click, Resize
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from app.ingest.records import REASON_TEXTS, Changes, Skipped, SkipReason
from app.ui.attach.attachment import Attachment, FileJob, next_paste_number, paste_attachment
from app.ui.text import HangingLines, hanging_indent
from app.util import formatting
from app.util.sanitize import sanitize_line

MAX_ALONE = 10
"""More files with the same reason are listed together."""
MAX_NAMED = 3
"""Number of these that are named."""
MAX_LISTED = 500
"""Maximum number of sentences of each kind that are listed; the others are counted."""
DOT = Content.styled("· ", "$ink-dim")
_EXPECTED = (SkipReason.IGNORED, SkipReason.GENERATED, SkipReason.EMPTY)
CHIP_BYTES = 4096
CHIP_CELLS = 62
"""Minimum width of a chip. In twice that width, two chips are shown side by side."""
MIN_NAME_CELLS = 8
CROSS = " ✕ "


class SkippedScreen(ModalScreen[None]):
    """A list of changed, skipped and doubtful files. All its keys close it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,space,q", "dismiss", "Close", id="skipped.close")
    ]  # fmt: skip

    def __init__(self, item: Attachment | Changes) -> None:
        super().__init__()
        self._item = item

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield SkippedList(lines(self._item))
            yield Static(Content.styled("Esc close", "$ink-dim"))


class OcrScreen(ModalScreen[bool]):
    """Asks whether the text of pages that are pictures is to be recognised."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "dismiss(True)", "Recognise", id="ocr.start"),
        Binding("escape", "dismiss(False)", "No", id="ocr.close"),
    ]  # fmt: skip

    def __init__(self, problem: str) -> None:
        super().__init__()
        self._problem = problem

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(f"{sanitize_line(self._problem)}.\n", markup=False)
            yield Static("Recognise the text of its pictures? A page takes some seconds.\n")
            yield Static(Content.styled("⏎ recognise   Esc no", "$ink-dim"))


class SkippedList(HangingLines):
    """A heading and a list of sentences."""

    def __init__(self, lines: list[Content]) -> None:
        super().__init__()
        self._heading, *self._sentences = lines

    def lines(self, width: int) -> list[Content]:
        return [self._heading, *(hanging_indent(DOT, each, width) for each in self._sentences)]


def lines(item: Attachment | Changes) -> list[Content]:
    """A heading, then one sentence each, with the expected reasons last."""
    if isinstance(item, Changes):
        facts, groups = item.text, [item.sentences]
    else:
        read = formatting.plural(len(item.texts), "file")
        facts = f"{read} read, {item.skipped_text or '0 skipped'}"
        groups = [
            item.changes.sentences if item.changes else [],
            [*_skipped(item.skipped)],
            [each.sentence for each in item.doubtful],
        ]
    found = [Content.styled(f"{sanitize_line(item.name)}  {facts}", "bold $accent")]
    for sentences in groups:
        found += [Content(sanitize_line(each)) for each in sentences[:MAX_LISTED]]
    more = sum(max(0, len(each) - MAX_LISTED) for each in groups)
    if more:
        found.append(Content.styled(f"… and {more:,} more", "$ink-dim"))
    return found


def _skipped(skipped: Sequence[Skipped]) -> Iterator[str]:
    """A sentence for each, but one for many files with the same reason."""
    of_reason = Counter(each.reason for each in skipped if not each.rest and not each.pages)
    named: dict[SkipReason, list[str]] = {}
    for each in sorted(skipped, key=lambda each: (not each.rest, each.reason in _EXPECTED)):
        if each.rest or each.pages or of_reason[each.reason] <= MAX_ALONE:
            yield each.sentence
        else:
            named.setdefault(each.reason, []).append(each.path)
    for reason, paths in named.items():
        label, advice = REASON_TEXTS[reason][0], REASON_TEXTS[reason][2]
        others = f" and {len(paths) - MAX_NAMED:,} more"
        yield f"{len(paths):,} {label}: {', '.join(paths[:MAX_NAMED])}{others} ({advice})."


Item = Attachment | FileJob
Shown = Item | Changes
"""What a chip shows. The changes are those of files that were sent with an earlier question."""


def is_long(text: str) -> bool:
    """Whether a paste becomes a chip: above 4 KiB of UTF-8."""
    return len(text) > CHIP_BYTES or len(text.encode(errors="replace")) > CHIP_BYTES


class Chip(Widget, can_focus=True):
    """One line: a name, facts, and a cross that removes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter", "read_again", "Read again", id="chip.read_again",
            tooltip="Read a file or folder that has changed again (or click it)",
        ),
        Binding(
            "enter", "choose_part", "Part", id="chip.part",
            tooltip="Attach only a part: pages, a sheet, a heading (select it with Shift+Tab)",
        ),
        Binding(
            "space", "skipped", "Skipped", id="chip.skipped",
            tooltip="List changed and skipped files, and warnings (or click it)",
        ),
        Binding(
            "o", "recognise", "OCR", id="chip.ocr",
            tooltip="Recognise the text of pages that are pictures",
        ),
        Binding(
            "backspace,delete", "remove", "Remove", id="chip.remove",
            tooltip="Remove the attachment (or click its ✕)",
        ),
    ]  # fmt: skip

    @dataclass
    class Removed(Message):
        item: Shown

    @dataclass
    class ReadAgain(Message):
        """Read what has changed again."""

        item: Attachment | Changes

    @dataclass
    class ShowSkipped(Message):
        item: Attachment | Changes

    @dataclass
    class ChoosePart(Message):
        item: Attachment

    @dataclass
    class Recognise(Message):
        item: Attachment

    def __init__(self, item: Shown) -> None:
        super().__init__()
        self.item = item
        self._cross = 0

    @property
    def changes(self) -> Changes | None:
        """What has changed since it was read, if anything."""
        if isinstance(self.item, Attachment):
            return self.item.changes
        return self.item if isinstance(self.item, Changes) else None

    def render(self) -> Content:
        """If it is narrow, the name is shortened first, then the facts."""
        item, width = self.item, self.content_size.width - len(CROSS)
        mark, remarks, facts = "◌ ", list[str](), [""]
        if isinstance(item, Attachment):
            mark, remarks, facts = "▣ ", [item.skipped_text, item.doubt_text], [item.facts]
            if item.limit:  # what is missing comes first
                facts = [remarks.pop(0), *facts]
        elif isinstance(item, FileJob):
            facts = [item.facts]
        else:
            mark = "↻ "
        tail = Content.assemble(
            (f" · {_said(self.changes)}" if self.changes else "", "bold $accent"),
            *((f" · {each}", "$accent") for each in facts if each),
            *(f" · {each}" for each in remarks if each),
        )
        available = max(MIN_NAME_CELLS, width - len(mark) - tail.cell_length)
        name = Content(sanitize_line(item.name)).truncate(available, ellipsis=True)
        line = Content.assemble((mark, "$accent"), name.stylize("$accent"), tail)
        line = line.truncate(max(1, width), ellipsis=True)
        self._cross = line.cell_length
        return Content.assemble(line, (CROSS, "$ink-dim"))

    def show(self, item: Shown) -> None:
        self.item = item
        self.refresh()

    def on_click(self, event: Click) -> None:
        event.stop()
        offset = event.get_content_offset(self)
        if offset is None or offset.x >= self._cross + len(CROSS):
            return
        if offset.x >= self._cross:
            self.action_remove()
        elif self.changes is not None:
            self.action_read_again()
        else:
            self.action_skipped()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enter chooses a part if nothing has changed."""
        return action != "read_again" or self.changes is not None

    def action_read_again(self) -> None:
        assert isinstance(self.item, Attachment | Changes)
        self.post_message(self.ReadAgain(self.item))

    def action_choose_part(self) -> None:
        if isinstance(self.item, Attachment):
            self.post_message(self.ChoosePart(self.item))

    def action_remove(self) -> None:
        self.post_message(self.Removed(self.item))

    def action_recognise(self) -> None:
        if isinstance(self.item, Attachment):
            self.post_message(self.Recognise(self.item))

    def action_skipped(self) -> None:
        if not isinstance(self.item, FileJob):
            self.post_message(self.ShowSkipped(self.item))


def _said(changes: Changes) -> str:
    is_gone = changes.gone and not changes.name.endswith("/")
    return changes.text if is_gone else f"{changes.text}, ⏎ reads it again"


class Chips(VerticalScroll, can_focus=False):
    """The chips in their order, which is the order of the documents for the model."""

    @dataclass
    class Changed(Message):
        """The chips have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.items: tuple[Item, ...] = ()
        self.offers: tuple[Changes, ...] = ()
        """Changes of files that were sent with earlier questions."""

    @property
    def attached(self) -> tuple[Attachment, ...]:
        """The attachments, without files that are still being read."""
        return tuple(each for each in self.items if isinstance(each, Attachment))

    def paste(self, text: str) -> Attachment:
        """The attachment that a paste would become."""
        return paste_attachment(text, next_paste_number(self.attached))

    def add(self, item: Item) -> None:
        self.show((*self.items, item))

    def remove_item(self, item: Item) -> None:
        self.show(each for each in self.items if each is not item)

    def replace(self, item: Item, by: Item) -> None:
        """Replace a chip in its place, if it is still there."""
        if not any(each is item for each in self.items):
            return
        self.items = tuple(by if each is item else each for each in self.items)
        for chip in self.query(Chip):
            if chip.item is item:
                chip.show(by)
        self.post_message(self.Changed())

    def show(self, items: Iterable[Item]) -> None:
        self.items = tuple(items)
        self._show_all()
        self.post_message(self.Changed())

    def offer(self, offers: Iterable[Changes]) -> None:
        """Offer to read these files and folders again."""
        before, self.offers = self.offers, tuple(offers)
        if [each.path for each in before] != [each.path for each in self.offers]:
            self._show_all()
            return
        for chip, offer in zip(self.query(Chip), self.offers, strict=False):
            chip.show(offer)

    def _show_all(self) -> None:
        self.display = bool(self.items or self.offers)
        self.refresh(recompose=True)

    def tick(self) -> None:
        """Update the chips of files that are being read."""
        for chip in self.query(Chip):
            if isinstance(chip.item, FileJob):
                chip.refresh()

    def compose(self) -> ComposeResult:
        yield from map(Chip, (*self.offers, *self.items))

    def on_resize(self, event: Resize) -> None:
        self.styles.grid_size_columns = max(1, min(2, event.size.width // CHIP_CELLS))

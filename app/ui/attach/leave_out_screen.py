"""Asks which documents to leave out when the attachments are too large."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.protocol.prompt import Document
from app.ui.attach.attachment import Attachment, make_attachment
from app.ui.help.screen import Section
from app.util import formatting
from app.util.sanitize import sanitize_line

MIN_NAME_CELLS = 12
BYTES_PER_TOKEN = 4
"""Assumed where tokens have not been counted."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One attached document; `tokens` is its share of those counted for the attachment."""

    document: Document
    size: int
    tokens: int


def pieces(attachments: Sequence[Attachment]) -> list[Piece]:
    """The largest first. A folder's tree is not a piece: it stays while any of its files does."""
    found = []
    for each in attachments:
        rate = _bytes_per_token([each])
        for document in each.texts:
            size = len(document.text.encode(errors="replace"))
            found.append(Piece(document, size, ceil(size / rate)))
    return sorted(found, key=lambda piece: -piece.size)


def without(
    attachments: Sequence[Attachment], left_out: Collection[Document]
) -> tuple[Attachment, ...]:
    """What remains attached. Attachments that lose nothing stay the same objects."""
    remaining: list[Attachment] = []
    for each in attachments:
        texts = [document for document in each.texts if document not in left_out]
        if len(texts) == len(each.texts):
            remaining.append(each)
        elif texts:
            tree = each.documents[:1] if each.is_folder else ()
            fewer = make_attachment([*tree, *texts])
            remaining.append(replace(fewer, skipped=each.skipped, lossy=each.lossy))
    return tuple(remaining)


def excess_text(excess: int, attachments: Sequence[Attachment]) -> str:
    """`12,400 tokens too many: leave out about 50 KB`, without a full stop."""
    text = f"{formatting.plural(excess, 'token')} too many"
    if not attachments:
        return text
    return (
        f"{text}: leave out about {formatting.size(ceil(excess * _bytes_per_token(attachments)))}"
    )


def _bytes_per_token(attachments: Sequence[Attachment]) -> float:
    tokens = sum(each.tokens or 0 for each in attachments)
    counted = sum(each.size for each in attachments if each.tokens)
    return counted / tokens if tokens and counted else BYTES_PER_TOKEN


class LeaveOutScreen(ModalScreen[tuple[Attachment, ...] | None]):
    """Returns what remains attached; None if nothing changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move('cursor_up')", "Up", id="leave_out.up", tooltip="Up"),
        Binding("down", "move('cursor_down')", "Down", id="leave_out.down", tooltip="Down"),
        Binding("pageup", "move('page_up')", "Page up", id="leave_out.page_up", tooltip="A page"),
        Binding(
            "pagedown", "move('page_down')", "Page down", id="leave_out.page_down",
            tooltip="A page down",
        ),
        Binding("space", "leave_out", "Leave out", id="leave_out.one", tooltip="Leave it out"),
        Binding("a", "leave_all_out", "All", id="leave_out.all", tooltip="Leave out all"),
        Binding("enter", "done", "Done", id="leave_out.done", tooltip="Attach the others"),
        Binding("escape", "close", "Close", id="leave_out.close", tooltip="Change nothing"),
    ]  # fmt: skip

    def __init__(self, attached: Sequence[Attachment], excess: int) -> None:
        """`excess` is how many tokens there are too many."""
        super().__init__()
        self._attached, self._excess = tuple(attached), excess
        self._pieces = pieces(attached)
        self._left_out: set[int] = set()
        self.list = OptionList(id="leave-out-list", compact=True, markup=False)
        self.list.can_focus = False  # Enter closes the dialog

    def help_sections(self) -> tuple[Section, ...]:
        return (("Too much is attached", LeaveOutScreen),)

    def compose(self) -> ComposeResult:
        with Vertical(id="leave-out"):
            yield Static(id="leave-out-head", markup=False)
            yield self.list
            foot = "Space leave out   a all   ⏎ attach the rest   Esc back"
            yield Static(Content.styled(foot, "$ink-dim"), id="leave-out-foot")

    def on_mount(self) -> None:
        self._draw(0)

    def on_resize(self) -> None:
        self.call_after_refresh(lambda: self._draw(self.list.highlighted or 0))

    def _draw(self, highlighted: int) -> None:
        width = max(20, self.list.size.width - 2)
        self.list.set_options(
            Option(line(piece, number not in self._left_out, width))
            for number, piece in enumerate(self._pieces)
        )
        self.list.highlighted = highlighted
        self.query_one("#leave-out-head", Static).update(self._head())

    def _head(self) -> Content:
        removed = sum(self._pieces[number].tokens for number in self._left_out)
        if removed < self._excess:
            text = excess_text(self._excess - removed, self._attached)
            return Content.assemble(("! ", "$accent"), (f"About {text}.", "bold"))
        spare = formatting.plural(removed - self._excess, "token")
        return Content.assemble(("✓ It fits", "bold $accent"), (f", with {spare} to spare.", ""))

    def action_move(self, where: str) -> None:
        getattr(self.list, f"action_{where}")()

    def action_leave_out(self) -> None:
        if self.list.highlighted is not None:
            self._left_out ^= {self.list.highlighted}
            self._draw(self.list.highlighted)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_leave_out()

    def action_leave_all_out(self) -> None:
        everything = set(range(len(self._pieces)))
        self._left_out = everything if self._left_out != everything else set()
        self._draw(self.list.highlighted or 0)

    def action_done(self) -> None:
        left_out: set[Document] = {self._pieces[number].document for number in self._left_out}
        self.dismiss(without(self._attached, left_out))

    def action_close(self) -> None:
        self.dismiss(None)


def line(piece: Piece, ticked: bool, width: int) -> Content:
    """One line of at most `width` cells; the name is shortened first."""
    facts = f"{formatting.size(piece.size)} · {formatting.count(piece.tokens)} tok"
    mark = Content.styled("✓ " if ticked else "  ", "$accent")
    available = max(MIN_NAME_CELLS, width - 2 - len(facts) - 2)
    name = Content(sanitize_line(piece.document.name)).truncate(available, ellipsis=True)
    gap = " " * max(1, width - 2 - name.cell_length - len(facts))
    text = Content.assemble(name, gap, (facts, "$ink-dim"))
    text = text if ticked else text.stylize("$ink-dim")
    return Content.assemble(mark, text).truncate(width, ellipsis=True)

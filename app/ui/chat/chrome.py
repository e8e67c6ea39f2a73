"""The bars around the conversation: header, notice and footer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from app.protocol.events import Loaded
from app.protocol.memory import MemoryStats, PressureLevel, format_bytes
from app.protocol.options import AUTO_KEEP
from app.ui.state.draft import NextMode
from app.ui.text import HangingLines, hanging_indent
from app.ui.transcript.panel import ACCENT, BAD, DIM
from app.util import formatting
from app.util.sanitize import sanitize_line

METER_CELLS = 10
GAP = "   "
BUILT_IN = "built-in scorer"
MEMORY_CELLS = 6
MIN_TITLE_CELLS = 10
"""Minimum width of the title; if there is less room, it is not shown."""


@dataclass(frozen=True, slots=True)
class ContextMeter:
    """Tokens `used` by the conversation so far and `new` in the next message, None if unknown.
    `context` is 0 if the model states none. `seconds` is the predicted time to the first token."""

    used: int | None = 0
    new: int | None = 0
    context: int = 0
    seconds: float | None = None

    @property
    def total(self) -> int:
        return (self.used or 0) + (self.new or 0)

    @property
    def exceeded(self) -> bool:
        return 0 < self.context <= self.total

    def variants(self) -> Iterator[Content]:
        """Texts for the footer, from the longest to the shortest."""
        context, new = self._context(), self._new()
        full = [part for part in (self._bar(context), new) if part]
        yield Content(GAP).join(full)
        yield Content(GAP).join([part for part in (context, new) if part])
        yield new or context

    def _context(self) -> Content:
        if self.used is None or not (self.total or self.context):
            return Content("")
        text = f"ctx {formatting.short_count(self.total)}"
        if self.context:
            text += f"/{formatting.short_count(self.context)}"
        return Content.styled(f"{text} full", BAD) if self.exceeded else Content.styled(text, DIM)

    def _bar(self, context: Content) -> Content:
        if not context or not self.context:
            return context
        filled = max(self.total > 0, min(METER_CELLS, METER_CELLS * self.total // self.context))
        bar = ("▓" * filled, BAD if self.exceeded else ACCENT)
        return Content.assemble(context, " ", bar, ("░" * (METER_CELLS - filled), DIM))

    def _new(self) -> Content:
        if self.new == 0:
            return Content("")
        text = "new …" if self.new is None else f"new {thousands(self.new)}"
        if self.seconds is not None:
            soon = "<1 s" if self.seconds < 1 else formatting.seconds(self.seconds)
            text += f" · est {soon}"
        return Content.styled(text, DIM)


def thousands(tokens: int) -> str:
    """Rounded to hundreds, because typed text is only estimated."""
    if tokens < 50:
        return "<0.1K"
    return f"{tokens / 1_000:.1f}K" if tokens < 9_950 else formatting.short_count(tokens)


class Header(Widget):
    """`specchat`, the server's port, the model pair, and the memory in use once the engine has
    reported it."""

    title: reactive[str] = reactive("")
    status: reactive[str] = reactive("")
    """"not saved", if conversations are not saved."""
    port: reactive[int | None] = reactive(None)
    """The port of the server; None while it is stopped."""
    memory: reactive[MemoryStats | None] = reactive(None)
    pressure: reactive[PressureLevel] = reactive(PressureLevel.NORMAL)

    def __init__(self, target: str, draft: str | None) -> None:
        super().__init__()
        self._names = (target, draft)
        self._dense_only = False

    def show_pair(self, loaded: Loaded, machines: int = 1) -> None:
        """`machines` is how many the target is spread over."""
        where = f" on {machines} machines" if machines > 1 else ""
        target = f"{loaded.target.name}{where}"
        self._names = (target, loaded.draft.name if loaded.draft else None)
        self._dense_only = loaded.dense_only is not None
        self.refresh()

    def render(self) -> Content:
        """On a narrow screen the memory bar is dropped first, then the title, then the draft."""
        width = self.content_size.width
        left = Content.styled("specchat", f"bold {ACCENT}")
        serving = "" if self.port is None else f"serving :{self.port}"
        for mark in filter(None, (self.status, serving)):
            left = Content.assemble(left, (f" · {mark}", ACCENT))
        pair = self._pair()
        available = width - left.cell_length - pair.cell_length - 12
        if self.title and available >= MIN_TITLE_CELLS:
            title = Content(sanitize_line(self.title)).truncate(available, ellipsis=True)
            left = Content.assemble(left, "  ", title)
        for memory in (self._memory_text(bar=True), self._memory_text(bar=False), ""):
            free = width - left.cell_length - len(memory) - 6
            if pair.cell_length <= free or not memory:
                break
        pair = pair.truncate(max(0, free), ellipsis=True)
        gap = max(1, width - left.cell_length - 3 - pair.cell_length - len(memory))
        style = (
            DIM
            if self.pressure is PressureLevel.NORMAL
            else BAD
            if self.pressure is PressureLevel.CRITICAL
            else ACCENT
        )
        return Content.assemble(left, "   ", pair, " " * gap, (memory, style))

    def _pair(self) -> Content:
        target, draft = self._names
        name = sanitize_line(target)
        if self._dense_only:
            return Content.assemble(name, (" · no sparse reading", DIM))
        return Content.assemble(name, (" + ", DIM), (sanitize_line(draft or BUILT_IN), DIM))

    def _memory_text(self, bar: bool) -> str:
        memory = self.memory
        if memory is None or not memory.ceiling:
            return ""
        filled = min(round(MEMORY_CELLS * memory.used / memory.ceiling), MEMORY_CELLS)
        cells = "▓" * filled + "░" * (MEMORY_CELLS - filled) + " " if bar else ""
        mark = "" if self.pressure is PressureLevel.NORMAL else "! "
        return f"{mark}mem {cells}{format_bytes(memory.used)} of {format_bytes(memory.ceiling)}"


class Notice(HangingLines):
    """One message above the compose box, or a dimmer suggestion, or nothing. A persistent message
    reappears once a passing one is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self._message = ""
        self._persistent = ""
        self._suggestion = self._note = ""

    @property
    def text(self) -> str:
        return self._message or self._persistent or self._suggestion or self._note

    def show(self, message: str) -> None:
        self._message = message
        self._update()

    def set_persistent(self, message: str) -> None:
        """Shown until it is set to an empty one."""
        if message != self._persistent:
            self._persistent = message
            self._update()

    def suggest(self, suggestion: str) -> None:
        self._suggestion = suggestion
        self._update()

    def set_note(self, note: str) -> None:
        """Shown while there is no message, instead of a suggestion."""
        if note != self._note:
            self._note = note
            self._update()

    def lines(self, width: int) -> list[Content]:
        if message := self._message or self._persistent:
            return [
                hanging_indent(Content.styled("! ", ACCENT), Content(sanitize_line(message)), width)
            ]
        return [Content.styled(sanitize_line(self._note or self._suggestion), DIM)]

    def _update(self) -> None:
        self.display = bool(self.text)
        self.refresh(layout=True)


class Footer(Widget):
    """Two lines: context use and read mode of the next message, and the keys that work now."""

    meter: reactive[ContextMeter] = reactive(ContextMeter())
    next_mode: reactive[NextMode] = reactive(NextMode(AUTO_KEEP))
    hides_mode: reactive[bool] = reactive(False)
    hints: reactive[Sequence[str]] = reactive(())
    """The keys, the most important first: the last ones are dropped on a narrow screen."""

    def render(self) -> Content:
        return Content("\n").join((self._status_line(), self._key_line()))

    def _mode(self, key: bool = True) -> Content:
        mode = Content.assemble(("next: ", DIM), (self.next_mode.label, f"bold {ACCENT}"))
        return (
            Content.assemble(mode, (f"  (^T {self.next_mode.toggle_label})", DIM)) if key else mode
        )

    def _status_line(self) -> Content:
        """The longest variant that fits."""
        width, drawn = self.content_size.width, [*self.meter.variants()]
        rights = [Content("")] if self.hides_mode else [self._mode(), self._mode(key=False)]
        tries = [(left, right) for right in rights for left in drawn[:2]]
        for left, right in (*tries, (drawn[-1], rights[-1])):
            gap = width - left.cell_length - right.cell_length
            if gap >= 2:
                break
        return Content.assemble(left, " " * max(1, gap), right)

    def _key_line(self) -> Content:
        left = ""
        for hint in self.hints:
            longer = f"{left}   {hint}" if left else hint
            if len(longer) > self.content_size.width:
                break
            left = longer
        return Content.styled(left, DIM)


class NewTextMarker(Static):
    """Shown while there is new text below the visible part."""

    class Pressed(Message):
        """Scroll to the end."""

    def __init__(self) -> None:
        text = Content.styled("↓ new text below · ^B goes there", "$accent")
        super().__init__(text, markup=False, id="below")

    def on_click(self, event: Click) -> None:
        event.stop()
        self.post_message(self.Pressed())

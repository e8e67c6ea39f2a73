"""The footer's meter: how full the context is, and what the next message adds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual.content import Content

from app.ui.prefill.panel_render import ACCENT, BAD, DIM
from app.util import formatting

CELLS = 10
GAP = "   "


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
        """From the longest to the shortest."""
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
        filled = max(self.total > 0, min(CELLS, CELLS * self.total // self.context))
        bar = ("▓" * filled, BAD if self.exceeded else ACCENT)
        return Content.assemble(context, " ", bar, ("░" * (CELLS - filled), DIM))

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

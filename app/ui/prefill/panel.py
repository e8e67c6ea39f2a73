"""The widget that shows how a turn is read. Afterwards it is one line, until details are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from app.chat.turn_progress import TurnProgress
from app.ui.prefill.panel_render import Viewport, panel_lines


class PrefillPanel(Widget):
    """Draws a `TurnProgress`. Call `update_progress` after each change of it."""

    details: reactive[bool] = reactive(False, layout=True)

    def __init__(self, progress: TurnProgress, clock: Callable[[], float]) -> None:
        super().__init__()
        self._progress = progress
        self._clock = clock
        self._line_count = 0
        self._previewing = False
        self.hints: Sequence[str] = ()
        """The keys that the line after the answer names."""

    def update_progress(self) -> None:
        """Draw again."""
        if self._previewing != (self._progress.preview is not None):
            self._previewing = not self._previewing
            self._stay_visible()
        if len(self._lines(self.content_size.width)) == self._line_count:
            self.refresh()
        else:
            self.refresh(layout=True)

    def render(self) -> Content:
        lines = self._lines(self.content_size.width)
        self._line_count = len(lines)
        return Content("\n").join(lines)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(width))

    def toggle(self) -> None:
        """Show or hide the details."""
        self.details = not self.details
        self._stay_visible()

    def on_click(self, event: Click) -> None:
        event.stop()
        self.toggle()

    def _lines(self, width: int) -> list[Content]:
        return panel_lines(self._progress, Viewport(width, self._clock()), self.details, self.hints)

    def _stay_visible(self) -> None:
        """A panel that has grown grows upwards, out of a transcript that is scrolled to its end."""
        if self.details or self._previewing:
            self.call_after_refresh(self.scroll_visible, animate=False)

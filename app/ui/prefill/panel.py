"""The widget that shows how a turn is read. Afterwards it folds to one line of stats."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from app.ui.prefill.panel_render import Viewport, panel_lines
from app.ui.prefill.progress import TurnProgress


class PrefillPanel(Widget):
    """Draws a `TurnProgress`. Call `update_progress` after each change of it."""

    folded: reactive[bool] = reactive(False, layout=True)

    def __init__(self, progress: TurnProgress, clock: Callable[[], float]) -> None:
        super().__init__()
        self._progress = progress
        self._clock = clock
        self._line_count = 0
        self._was_finished = progress.finished
        self.set_reactive(PrefillPanel.folded, progress.finished)
        self._folded_before_preview: bool | None = None

    def update_progress(self) -> None:
        """Draw again. Fold when the turn has just finished, open while a keep is tried."""
        if self._progress.finished and not self._was_finished:
            self.folded = True
        self._was_finished = self._progress.finished
        self._open_for_preview()
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
        """Open or fold, once the turn has finished."""
        if self._progress.finished:
            self._folded_before_preview = None
            self.folded = not self.folded
            self._stay_visible()

    def on_click(self, event: Click) -> None:
        event.stop()
        self.toggle()

    def _lines(self, width: int) -> list[Content]:
        return panel_lines(self._progress, Viewport(width, self._clock()), self.folded)

    def _stay_visible(self) -> None:
        """An opened panel grows upwards, out of a transcript that is scrolled to its end."""
        if not self.folded:
            self.call_after_refresh(self.scroll_visible, animate=False)

    def _open_for_preview(self) -> None:
        previewing = self._progress.preview is not None
        if previewing and self._folded_before_preview is None:
            self._folded_before_preview = self.folded
            self.folded = False
            self._stay_visible()
        elif not previewing and self._folded_before_preview is not None:
            self.folded = self._folded_before_preview
            self._folded_before_preview = None

"""Holds the visible part in place while widgets above it change their height."""

from __future__ import annotations

from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.widget import Widget

from app.ui.transcript.lazy_container import LazyContainer, containers_in, row_of


class LockableScroll(VerticalScroll, can_focus=False):
    """A scroll view that `ScrollLock` can hold in place, in addition to Textual's anchor at the
    end. It overrides private methods of Textual (see the package)."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.scroll_locks: list[ScrollLock] = []
        """One for each change that is under way."""

    @property
    def follows_end(self) -> bool:
        """Whether new text scrolls into view by itself."""
        return self.is_anchored and not self._anchor_released

    def leave_end(self) -> bool:
        """Stop following the end; False if everything fits on the screen. Textual shows few lines
        at the bottom by a negative scroll position, from which nothing can be scrolled."""
        if self.max_scroll_y == 0:
            self.anchor()
            return False
        self.release_anchor()
        return True

    def check_end(self) -> None:
        """Follow the end again if it is in view."""
        self._check_anchor()

    def validate_scroll_y(self, value: float) -> float:
        """A locked widget may lie beyond the end until everything is laid out."""
        return max(0.0, value) if self.scroll_locks else super().validate_scroll_y(value)

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Scrolls in the same frame in which something above the locked widget has changed, as
        Textual itself does for an anchored view."""
        arranged = super().arrange(size, optimal)
        shifts = [lock.shift(arranged) for lock in self.scroll_locks]
        if shifts and shifts[0]:
            y = max(0.0, self.scroll_y + shifts[0])
            self.set_reactive(Widget.scroll_y, y)
            self.set_reactive(Widget.scroll_target_y, y)
            self.vertical_scrollbar._reactive_position = y  # type: ignore[attr-defined]
        return arranged

    def _check_anchor(self) -> None:
        if not self.scroll_locks:
            super()._check_anchor()


class ScrollLock:
    """`async with ScrollLock(view):` around the change. Does nothing while the end is followed."""

    def __init__(self, view: LockableScroll) -> None:
        self._view = view
        self._widget: LazyContainer | None = None
        self._row = 0

    async def __aenter__(self) -> None:
        view = self._view
        if view.follows_end:
            return
        top = int(view.scroll_y)
        size = view.scrollable_size
        seen = [*containers_in(view, size, top, top + max(1, size.height))]
        leaves = [each for each in seen if not any(each in other.ancestors for other in seen)]
        # A placeholder may grow when its content is mounted, so prefer one that has its content.
        self._widget = next((each for each in leaves if each.has_content), next(iter(leaves), None))
        if self._widget is not None:
            self._row = row_of(view.arrange(size), self._widget) or 0
            view.scroll_locks.append(self)

    async def __aexit__(self, *_: object) -> None:
        if self._widget is not None:
            self._view.call_after_refresh(self._release)

    def shift(self, arranged: DockArrangeResult) -> int:
        """By how many rows the locked widget has moved since the last call."""
        assert self._widget is not None
        row = row_of(arranged, self._widget)
        if row is None:
            return 0
        shift, self._row = row - self._row, row
        return shift

    def _release(self) -> None:
        view = self._view
        view.scroll_locks.remove(self)
        if not view.scroll_locks and not view.follows_end:
            view.scroll_to(y=view.scroll_y, animate=False, immediate=True)
            view.check_end()

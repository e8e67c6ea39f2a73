"""What is in sight stays where it is while things above it change their height."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.layout import DockArrangeResult

from app.ui.transcript.lazy_container import LazyContainer, containers_in, row_of

if TYPE_CHECKING:
    from app.ui.transcript.transcript import Transcript


class ScrollLock:
    """`async with` around the change. A transcript that follows its end needs no holding."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._widget: LazyContainer | None = None
        self._row = 0

    async def __aenter__(self) -> None:
        transcript = self._transcript
        if transcript.follows_end:
            return
        top = int(transcript.scroll_y)
        size = transcript.scrollable_size
        seen = [*containers_in(transcript, size, top, top + max(1, size.height))]
        leaves = [each for each in seen if not any(each in other.ancestors for other in seen)]
        # One that is asleep may grow: what stands above it is not moved by that.
        self._widget = next((each for each in leaves if each.has_content), next(iter(leaves), None))
        if self._widget is not None:
            self._row = row_of(transcript.arrange(size), self._widget) or 0
            transcript.scroll_locks.append(self)

    async def __aexit__(self, *_: object) -> None:
        if self._widget is not None:
            self._transcript.call_after_refresh(self._release)

    def shift(self, arranged: DockArrangeResult) -> int:
        """By how many rows what is held has moved since the last time."""
        assert self._widget is not None
        row = row_of(arranged, self._widget)
        if row is None:
            return 0
        moved, self._row = row - self._row, row
        return moved

    def _release(self) -> None:
        transcript = self._transcript
        transcript.scroll_locks.remove(self)
        if not transcript.scroll_locks and not transcript.follows_end:
            transcript.scroll_to(y=transcript.scroll_y, animate=False, immediate=True)
            transcript._check_anchor()

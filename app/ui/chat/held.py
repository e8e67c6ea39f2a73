"""What is in sight stays where it is while things above it change their height."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from textual.widget import Widget

from app.ui.chat.sleeper import Sleeper, sleepers

if TYPE_CHECKING:
    from app.ui.chat.transcript import Transcript


class Held:
    """`async with` around the change. A transcript that follows its end needs no holding."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._widget: Sleeper | None = None
        self._at = 0

    async def __aenter__(self) -> None:
        transcript = self._transcript
        if transcript.follows:
            return
        top = int(transcript.scroll_y)
        size = transcript.scrollable_size
        seen = [*sleepers(transcript, size, top, top + max(1, size.height))]
        leaves = [each for each in seen if not any(each in other.ancestors for other in seen)]
        # One that is asleep may grow: what stands above it is not moved by that.
        self._widget = next((each for each in leaves if each.awake), next(iter(leaves), None))
        if self._widget is not None:
            self._at = self._place(self._widget)
            transcript.holds += 1

    async def __aexit__(self, *_: object) -> None:
        if self._widget is not None:
            self._transcript.call_after_refresh(self._put_back)

    def _put_back(self) -> None:
        transcript, widget = self._transcript, self._widget
        transcript.holds -= 1
        if widget is None or transcript.follows:
            return
        moved = self._place(widget) - self._at if widget.region else 0
        y = transcript.scroll_y + moved
        transcript.scroll_to(y=y, animate=False, immediate=True)
        transcript._check_anchor()

    def _place(self, widget: Sleeper) -> int:
        """The row in all that can be scrolled. Not from where it is on the screen: that is as of
        the last drawing, and the user may have scrolled since."""
        place = widget.virtual_region.y
        for parent in takewhile(lambda each: each is not self._transcript, widget.ancestors):
            assert isinstance(parent, Widget)
            place += parent.virtual_region.y + parent.gutter.top
        return place

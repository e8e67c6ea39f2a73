"""Parts of a long conversation that hold widgets only while they are near what is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from textual.containers import Vertical
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.widget import Widget

WAKE, DOZE = 1.0, 3.0
"""Screens: what is nearer than the one has its widgets, what is farther than the other has none."""


class Sleeper(Vertical):
    """Begins asleep: nothing but a height, which is a guess until it was awake once."""

    def __init__(self, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.asleep = True
        self.awake = False
        """Whether all of its widgets are there."""
        self._turning = asyncio.Lock()

    @property
    def may_doze(self) -> bool:
        return True

    def content(self) -> Sequence[Widget]:
        """The widgets of one that is awake, made anew each time."""
        raise NotImplementedError

    def guess(self, width: int) -> int:
        """About how many rows it takes."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.guess_height()

    def guess_height(self) -> None:
        """Anew, when the width is another one."""
        if self.asleep:
            self.styles.height = max(1, self.guess(max(20, self.app.size.width - 6)))

    async def wake(self) -> None:
        async with self._turning:
            if self.asleep and self.is_attached:
                self.asleep = False
                await self.mount_all(self.content())
                self.styles.height = None
                self.awake = True

    async def doze(self) -> None:
        """From now on it takes the rows that it took."""
        async with self._turning:
            if self.awake and self.may_doze:
                self.asleep, self.awake = True, False
                self.styles.height = max(1, self.outer_size.height)
                await self.remove_children()


def sleepers(container: Widget, size: Size, top: int, bottom: int) -> Iterator[Sleeper]:
    """Those of which something lies in these rows of `container`. By what Textual keeps of its
    last layout, so that this costs next to nothing."""
    for placement in container.arrange(size).placements:
        region, widget = placement.region, placement.widget
        if region.bottom <= top or region.y >= bottom or not widget.display:
            continue
        if isinstance(widget, Sleeper):
            yield widget
        if isinstance(widget, Vertical):
            gutter = widget.gutter
            inner = Size(region.width - gutter.width, region.height - gutter.height)
            offset = region.y + gutter.top
            yield from sleepers(widget, inner, top - offset, bottom - offset)


def row_of(arranged: DockArrangeResult, wanted: Widget) -> int | None:
    """The row at which a widget begins in what was laid out, however deep it is."""
    for placement in arranged.placements:
        region, widget = placement.region, placement.widget
        if widget is wanted:
            return region.y
        if widget in wanted.ancestors:
            gutter = widget.gutter
            inner = Size(region.width - gutter.width, region.height - gutter.height)
            row = row_of(widget.arrange(inner), wanted)
            return None if row is None else region.y + gutter.top + row
    return None


def rows(text: str, width: int) -> int:
    """About how many rows a text takes, wrapped."""
    return sum(1 + len(line) // width for line in text.split("\n"))

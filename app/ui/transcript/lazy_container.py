"""Parts of a long conversation that hold widgets only while they are near what is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from textual.containers import Vertical
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.widget import Widget

MOUNT_DISTANCE, UNMOUNT_DISTANCE = 1.0, 3.0
"""Screens: what is nearer than the one has its widgets, what is farther than the other has none."""


class LazyContainer(Vertical):
    """Begins asleep: nothing but a height, which is a guess until it was awake once."""

    def __init__(self, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.is_placeholder = True
        self.has_content = False
        """Whether all of its widgets are there."""
        self._mount_lock = asyncio.Lock()

    @property
    def can_unmount(self) -> bool:
        return True

    def content(self) -> Sequence[Widget]:
        """The widgets of one that is awake, made anew each time."""
        raise NotImplementedError

    def estimate_height(self, width: int) -> int:
        """About how many rows it takes."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.set_estimated_height()

    def set_estimated_height(self) -> None:
        """Anew, when the width is another one."""
        if self.is_placeholder:
            self.styles.height = max(1, self.estimate_height(max(20, self.app.size.width - 6)))

    async def mount_content(self) -> None:
        async with self._mount_lock:
            if self.is_placeholder and self.is_attached:
                self.is_placeholder = False
                await self.mount_all(self.content())
                self.styles.height = None
                self.has_content = True

    async def unmount_content(self) -> None:
        """From now on it takes the rows that it took."""
        async with self._mount_lock:
            if self.has_content and self.can_unmount:
                self.is_placeholder, self.has_content = True, False
                self.styles.height = max(1, self.outer_size.height)
                await self.remove_children()


def containers_in(container: Widget, size: Size, top: int, bottom: int) -> Iterator[LazyContainer]:
    """Those of which something lies in these rows of `container`. By what Textual keeps of its
    last layout, so that this costs next to nothing."""
    for placement in container.arrange(size).placements:
        region, widget = placement.region, placement.widget
        if region.bottom <= top or region.y >= bottom or not widget.display:
            continue
        if isinstance(widget, LazyContainer):
            yield widget
        if isinstance(widget, Vertical):
            gutter = widget.gutter
            inner = Size(region.width - gutter.width, region.height - gutter.height)
            offset = region.y + gutter.top
            yield from containers_in(widget, inner, top - offset, bottom - offset)


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


def estimate_rows(text: str, width: int) -> int:
    """About how many rows a text takes, wrapped."""
    return sum(1 + len(line) // width for line in text.split("\n"))

"""Parts of a long conversation that have widgets only while they are near the visible part."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from textual.containers import Vertical
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.widget import Widget

MOUNT_DISTANCE, UNMOUNT_DISTANCE = 1.0, 3.0
"""Distances from the visible part, in screens: content that is nearer than the first is mounted,
content that is farther than the second is unmounted."""


class LazyContainer(Vertical):
    """Starts as an empty placeholder, whose height is an estimate until it had its content once."""

    def __init__(self, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.is_placeholder = True
        self.has_content = False
        """Whether all of its content is mounted. False, like `is_placeholder`, during mounting."""
        self._mount_lock = asyncio.Lock()

    @property
    def can_unmount(self) -> bool:
        return True

    def content(self) -> Sequence[Widget]:
        """New widgets, each time it is called."""
        raise NotImplementedError

    def estimate_height(self, width: int) -> int:
        """Estimated height of the content, in rows."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.set_estimated_height()

    def set_estimated_height(self) -> None:
        """Set the height of the placeholder. Called again when the width has changed."""
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
        """The placeholder gets the height that the content had."""
        async with self._mount_lock:
            if self.has_content and self.can_unmount:
                self.is_placeholder, self.has_content = True, False
                self.styles.height = max(1, self.outer_size.height)
                await self.remove_children()


def containers_in(container: Widget, size: Size, top: int, bottom: int) -> Iterator[LazyContainer]:
    """The lazy containers that overlap these rows of `container`. Textual caches its layout, so
    this is fast."""
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


def row_of(arranged: DockArrangeResult, target: Widget) -> int | None:
    """The first row of a widget in a layout, at any depth."""
    for placement in arranged.placements:
        region, widget = placement.region, placement.widget
        if widget is target:
            return region.y
        if widget in target.ancestors:
            gutter = widget.gutter
            inner = Size(region.width - gutter.width, region.height - gutter.height)
            row = row_of(widget.arrange(inner), target)
            return None if row is None else region.y + gutter.top + row
    return None


def estimate_rows(text: str, width: int) -> int:
    """Approximate number of rows of a wrapped text."""
    return sum(1 + len(line) // width for line in text.split("\n"))

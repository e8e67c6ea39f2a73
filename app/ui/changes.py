"""Writes only what has changed of a frame.

Textual 8.2.8 draws all rows of a widget that asks for it, several times a second while a text is
read. Over ssh most of those bytes are wasted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import get_character_cell_size
from rich.console import Console
from rich.control import Control
from rich.segment import Segment
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.strip import Strip

Row = dict[int, Strip]
"""Parts of a row by their first cell."""


class Drawn:
    """What the terminal shows, as far as it is known."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}

    def forget(self) -> None:
        """Something else was drawn, or nothing: write all of the next frame."""
        self._rows.clear()

    def replace(self, update: LayoutUpdate) -> None:
        """A whole screen is written."""
        self._rows = {}
        for y, strips in enumerate(update.strips, update.region.y):
            x, row = update.region.x, self._rows.setdefault(y, {})
            for strip in strips:
                row[x] = strip
                x += strip.cell_length

    def changed(self, y: int, x: int, strip: Strip) -> tuple[int, Strip]:
        """The part of a strip that must be written, and its first cell."""
        row = self._rows.setdefault(y, {})
        before = row.get(x)
        if before is None or before.cell_length != strip.cell_length:
            end = x + strip.cell_length
            kept = {at: each for at, each in row.items() if at >= end or at + each.cell_length <= x}
            self._rows[y] = {**kept, x: strip}
            return x, strip
        row[x] = strip
        x, old, new = _without_same_ends(x, [*before], [*strip])
        x, _, new = _without_same_ends(x, _divided(old), _divided(new))
        return x, Strip(new).simplify()


def _divided(segments: Sequence[Segment]) -> list[Segment]:
    """A segment for each character, unless one is wide or has no width."""
    return [
        part
        for each in segments
        for part in (
            (Segment(character, each.style) for character in each.text)
            if all(get_character_cell_size(character) == 1 for character in each.text)
            else (each,)
        )
    ]


def _without_same_ends(
    x: int, old: list[Segment], new: list[Segment]
) -> tuple[int, list[Segment], list[Segment]]:
    """What differs of two texts of one length, and its first cell."""
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and _same(old[start], new[start]):
        x += new[start].cell_length
        start += 1
    end = 0
    while end < shorter - start and _same(old[-1 - end], new[-1 - end]):
        end += 1
    return x, old[start : len(old) - end], new[start : len(new) - end]


def _same(one: Segment, other: Segment) -> bool:
    return one.text == other.text and one.style == other.style


class Changes(CompositorUpdate):
    """Updated parts of the screen. They are compared when they are written, since Textual may also
    drop a frame."""

    def __init__(self, update: ChopsUpdate | LayoutUpdate, drawn: Drawn) -> None:
        self._update, self._drawn = update, drawn

    def render_segments(self, console: Console) -> str:
        if isinstance(self._update, LayoutUpdate):
            self._drawn.replace(self._update)
            return self._update.render_segments(console)
        parts = ((y, self._drawn.changed(y, x, strip)) for y, x, strip in _parts(self._update))
        return "".join(
            f"{Control.move_to(x, y).segment.text}{strip.render(console)}"
            for y, (x, strip) in parts
            if strip
        )


def _parts(update: ChopsUpdate) -> Iterator[tuple[int, int, Strip]]:
    """Row, first cell and strip of all that an update draws. Others may lack widgets."""
    for y, x1, x2 in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is not None and x < x2 and end > x1:
                yield y, x, strip

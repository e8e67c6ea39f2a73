"""Small helpers for lines of text."""

from __future__ import annotations

from textual.content import Content


def spread(left: Content, right: Content, width: int, gap: int = 2) -> Content:
    """One line of at most `width` cells with `right` at its end. `left` is cut where both do not
    fit, with `gap` cells between them."""
    room = max(1, width - right.cell_length - gap)
    left = left.truncate(room, ellipsis=True)
    space = " " * max(1, width - left.cell_length - right.cell_length)
    return Content.assemble(left, space, right).truncate(max(1, width), ellipsis=True)

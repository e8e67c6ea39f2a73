"""What is on the screen as an SVG picture that looks the same wherever it is shown.

Blocks and lines are drawn as shapes, so that no font leaves gaps between them, and every piece of
text is as wide as its cells, whichever font there is. One line of the file is one line of the
screen at most, and all of the text stands at the top: a change can be read in a diff.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

CELL, ROW, EDGE = 9, 20, 12
"""Pixels: a cell's width, a row's height, and the page around all of them."""
BASELINE, FONT_SIZE = 15, 15
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
SHADES = {"░": 0.25, "▒": 0.5, "▓": 0.75}
BARS = "▏▎▍▌▋▊▉"
LEVELS = "▁▂▃▄▅▆▇█"
ARMS = {
    "─": "lr",
    "│": "ud",
    "┌": "rd",
    "┐": "ld",
    "└": "ru",
    "┘": "lu",
    "├": "rud",
    "┤": "lud",
    "┬": "lrd",
    "┴": "lru",
    "┼": "lrud",
}
"""Where lines go from the middle of a cell: left, right, up, down."""
LINE = 2
SHAPES = {*SHADES, *BARS, *LEVELS, *ARMS, "━"}
SYMBOLS = "\u2000"
"""From here on characters are not in every font."""
WORDS = re.compile(r"\S+(?: \S+)*")


@dataclass(frozen=True)
class Cell:
    """A character, or nothing behind a wide one; `width` cells."""

    text: str
    width: int
    ink: str
    page: str
    look: str
    """Attributes of the text that are not its colour."""


def drawn(rows: Sequence[Sequence[Segment]], width: int) -> str:
    """An SVG document. Colours must be true ones, as Textual's own filters leave them."""
    cells = [list(_cells(row)) for row in rows]
    page = Counter(cell.page for row in cells for cell in row).most_common(1)[0][0]
    wide, high = width * CELL + 2 * EDGE, len(rows) * ROW + 2 * EDGE
    text = "\n".join("".join(cell.text for cell in row).rstrip() for row in cells)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
            f'width="{wide}" height="{high}" role="img" font-family="{FONTS}" '
            f'font-size="{FONT_SIZE}">',
            f"<desc>\n{escape(text, quote=False)}\n</desc>",
            f'<rect width="{wide}" height="{high}" rx="{EDGE}" fill="{page}"/>',
            *filter(None, (_row(EDGE + i * ROW, row, page) for i, row in enumerate(cells))),
            "</svg>\n",
        )
    )


def line(row: Sequence[Segment], page: str) -> str:
    """The shapes of one row, EDGE from the left and at the top; `page` is drawn already."""
    return _row(0, list(_cells(row)), page)


def _cells(row: Sequence[Segment]) -> Iterator[Cell]:
    for segment in row:
        style = segment.style or Style.null()
        ink, page = _colour(style.color, "#ffffff"), _colour(style.bgcolor, "#000000")
        if style.reverse:
            ink, page = page, ink
        look = ' font-weight="700"' * bool(style.bold) + ' font-style="italic"' * bool(style.italic)
        look += ' text-decoration="underline"' * bool(style.underline)
        look += ' text-decoration="line-through"' * bool(style.strike)
        look += ' opacity="0.6"' * bool(style.dim)
        for character in segment.text:
            yield Cell(character, cell_len(character), ink, page, look)


def _colour(colour: Color | None, otherwise: str) -> str:
    return otherwise if colour is None else colour.get_truecolor().hex


def _row(y: int, row: Sequence[Cell], page: str) -> str:
    return "".join((*_pages(y, row, page), *_inks(y, row)))


def _pages(y: int, row: Sequence[Cell], page: str) -> Iterator[str]:
    """Where the row is not on the common page."""
    x = EDGE
    for colour, cells in groupby(row, key=lambda cell: cell.page):
        width = sum(cell.width for cell in cells) * CELL
        if colour != page:
            yield _rect(x, y, width, ROW, colour)
        x += width


def _inks(y: int, row: Sequence[Cell]) -> Iterator[str]:
    x = EDGE
    for (ink, look, kind), group in groupby(row, key=lambda c: (c.ink, c.look, _kind(c))):
        text, width = "", 0
        for cell in group:
            text, width = text + cell.text, width + cell.width * CELL
        if kind == "text":
            for words in WORDS.finditer(text):
                at, length = x + words.start() * CELL, len(words[0]) * CELL
                yield _text(words[0], at, y, length, ink, look)
        elif kind in SHAPES:
            yield _shape(kind, x, y, width, ink)
        elif width:
            yield _text(text, x, y, width, ink, look)
        x += width


def _kind(cell: Cell) -> str:
    """`text`, or the one character that is drawn: symbols come from other fonts, where they have
    other widths."""
    return "text" if cell.text < SYMBOLS and cell.width == 1 else cell.text


def _text(text: str, x: int, y: int, width: int, ink: str, look: str) -> str:
    place = f'x="{x}" y="{y + BASELINE}" textLength="{width}" lengthAdjust="spacingAndGlyphs"'
    return f'<text {place} fill="{ink}"{look}>{escape(text, quote=False)}</text>'


def _shape(character: str, x: int, y: int, width: int, ink: str) -> str:
    if character in SHADES:
        return _rect(x, y, width, ROW, ink, f' fill-opacity="{SHADES[character]}"')
    if character == "━":
        return _rect(x, y + (ROW - LINE) // 2, width, LINE + 1, ink)
    if character in ARMS:
        return "".join(_lines(character, x, y, width, ink))
    if character in LEVELS:
        height = ROW * (LEVELS.index(character) + 1) / len(LEVELS)
        return _rect(x, y + ROW - height, width, height, ink)
    part = CELL * (BARS.index(character) + 1) / len(LEVELS)
    return "".join(_rect(left, y, part, ROW, ink) for left in range(x, x + width, CELL))


def _lines(character: str, x: int, y: int, width: int, ink: str) -> Iterator[str]:
    arms, across, down = ARMS[character], CELL // 2, (ROW - LINE) // 2
    if arms == "lr":
        yield _rect(x, y + down, width, LINE, ink)
        return
    for left in range(x, x + width, CELL):
        start = left if "l" in arms else left + across
        end = left + CELL if "r" in arms else left + across + LINE
        if "l" in arms or "r" in arms:
            yield _rect(start, y + down, end - start, LINE, ink)
        top = y if "u" in arms else y + down
        bottom = y + ROW if "d" in arms else y + down + LINE
        if "u" in arms or "d" in arms:
            yield _rect(left + across, top, LINE, bottom - top, ink)


def _rect(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"{more}/>'

"""Frames of a terminal as one animated SVG that plays wherever pictures are shown, without scripts.

Every row of the screen is a window on a strip of all that ever stood in it, and the strip jumps by
CSS keyframes. A line that stands in several rows or at several times is drawn once. Without
animations (or with `prefers-reduced-motion`) the last frame is shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.segment import Segment

from tests.ui.pictures.svg import CELL, EDGE, FONT_SIZE, FONTS, ROW, line

HOLD_SECONDS = 6.0
"""How long the last frame stands before it begins again."""
_FILL = re.compile(r' fill="(#[0-9a-f]{6})"')
_SQUEEZED = ' lengthAdjust="spacingAndGlyphs"'


@dataclass(frozen=True, slots=True)
class Frame:
    """What stood on the screen from `at` (seconds) on: its rows, from the top."""

    at: float
    rows: tuple[tuple[Segment, ...], ...]


def film(frames: Sequence[Frame], width: int, about: str) -> str:
    """An SVG document of frames that are `width` cells wide; `about` says what is seen."""
    began = frames[0].at
    seconds = frames[-1].at - began + HOLD_SECONDS
    page = _page(frames[-1])
    lines: dict[tuple[Segment, ...], str] = {}
    strips = [_Strip(row, seconds, lines) for row in range(len(frames[0].rows))]
    for frame in frames:
        for strip, row in zip(strips, frame.rows, strict=True):
            strip.show(row, frame.at - began)
    wide, high = width * CELL + 2 * EDGE, len(strips) * ROW + 2 * EDGE
    inks = _inks([line(row, page) for row in lines])
    drawn = [f'<g id="{name}">{_short(line(row, page), inks)}</g>' for row, name in lines.items()]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
            f'width="{wide}" height="{high}" role="img" font-family="{FONTS}" '
            f'font-size="{FONT_SIZE}">',
            f"<desc>{escape(about, quote=False)}</desc>",
            "<style>",
            *(f".{name}{{fill:{ink}}}" for ink, name in inks.items()),
            *(strip.keyframes() for strip in strips if strip.moves),
            "@media(prefers-reduced-motion:reduce){g{animation:none!important}}",
            "</style>",
            "<defs>",
            *drawn,
            "</defs>",
            f'<rect width="{wide}" height="{high}" rx="{EDGE}" fill="{page}"/>',
            *(strip.drawn(wide) for strip in strips),
            "</svg>\n",
        )
    )


class _Strip:
    """All that ever stood in one row, each thing once, below one another."""

    def __init__(self, row: int, seconds: float, lines: dict[tuple[Segment, ...], str]) -> None:
        self._row, self._seconds, self._lines = row, seconds, lines
        self._places: dict[str, int] = {}
        self._jumps: list[tuple[float, int]] = []

    def show(self, row: tuple[Segment, ...], at: float) -> None:
        name = self._lines.setdefault(row, f"l{len(self._lines)}")
        place = self._places.setdefault(name, len(self._places))
        if not self._jumps or self._jumps[-1][1] != place:
            self._jumps.append((at, place))

    @property
    def moves(self) -> bool:
        return len(self._jumps) > 1

    def keyframes(self) -> str:
        steps = "".join(
            f"{100 * at / self._seconds:.3f}%{{transform:translateY({-ROW * place}px)}}"
            for at, place in self._jumps
        )
        return (
            f"#r{self._row}{{animation:k{self._row} {self._seconds:.2f}s step-end infinite}}\n"
            f"@keyframes k{self._row}{{{steps}}}"
        )

    def drawn(self, wide: int) -> str:
        uses = "".join(
            f'<use href="#{name}" y="{place * ROW}"/>' for name, place in self._places.items()
        )
        last = f' transform="translate(0,{-ROW * self._jumps[-1][1]})"' if self.moves else ""
        return (
            f'<svg y="{EDGE + self._row * ROW}" width="{wide}" height="{ROW}">'
            f'<g id="r{self._row}"{last}>{uses}</g></svg>'
        )


def _page(frame: Frame) -> str:
    """The colour that is behind most of a frame."""
    colours: Counter[str] = Counter()
    for row in frame.rows:
        for segment in row:
            if segment.style is not None and segment.style.bgcolor is not None:
                colours[segment.style.bgcolor.get_truecolor().hex] += len(segment.text)
    return colours.most_common(1)[0][0]


def _inks(drawn: Sequence[str]) -> dict[str, str]:
    """A short name for every colour, the commonest first."""
    counted = Counter(ink for each in drawn for ink in _FILL.findall(each))
    return {ink: f"c{i}" for i, (ink, _) in enumerate(counted.most_common())}


def _short(drawn: str, inks: dict[str, str]) -> str:
    return _FILL.sub(lambda found: f' class="{inks[found[1]]}"', drawn).replace(_SQUEEZED, "")

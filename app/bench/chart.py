"""Figures of the performance report, as SVG: curves over lengths, and bars of parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from app.eval.drawing import COLOURS, line, mark, path, text

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 66, 46
LEGEND_COLUMN = 150

Curve = Sequence[tuple[float, float]]
"""Places along the bottom, by index of its labels, and values."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Values that are marked, the first one at the bottom and the last one at the top."""

    marked: Sequence[float]
    powers: bool = False
    """As far apart as their logarithms are."""

    def y(self, value: float) -> float:
        low, high, at = self.marked[0], self.marked[-1], value
        if self.powers:
            low, high, at = math.log(low), math.log(high), math.log(value)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (at - low) / (high - low)


def curves(
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Curve],
    unit: str,
    bottom: str,
    powers: bool = False,
) -> str:
    """A curve for each of the series over the labels, in `unit`; values from 0 on, or with `powers`
    the powers of ten around them."""
    values = [value for curve in series.values() for _, value in curve] or [1.0]
    scale = _powers(min(values), max(values)) if powers else _quarters(max(values))
    parts = [*_head(title, list(series)), *_marked(scale, unit), *_labels(labels, bottom)]
    for index, (name, curve) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        places = [(_x(at, len(labels)), scale.y(value)) for at, value in curve]
        parts.append(path(places, colour, 'stroke-width="2"'))
        for (x, y), (_, value) in zip(places, curve, strict=True):
            parts.append(mark(index, x, y, f"<title>{escape(name)}: {value:.3g} {unit}</title>"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def stacks(
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    unit: str,
    bottom: str,
) -> str:
    """A bar for each label, of one part for each of the series."""
    scale = _quarters(max(map(sum, zip(*series.values(), strict=True)), default=1.0))
    parts = [*_head(title, list(series)), *_marked(scale, unit), *_labels(labels, bottom)]
    width = 0.7 * (WIDTH - LEFT - RIGHT) / max(len(labels), 1)
    for at in range(len(labels)):
        below = 0.0
        for index, (name, values) in enumerate(series.items()):
            above = below + values[at]
            x, y = _x(at, len(labels)) - width / 2, scale.y(above)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}"'
                f' height="{scale.y(below) - y:.1f}" fill="{COLOURS[index % len(COLOURS)]}">'
                f"<title>{escape(name)}: {values[at]:.3g} {unit}</title></rect>"
            )
            below = above
    return "\n".join([*parts, "</svg>"]) + "\n"


def _head(title: str, names: Sequence[str]) -> list[str]:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" font-family="sans-serif" font-size="11" fill="#222222" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(12, 20, title, 'font-size="14" font-weight="bold"'),
    ]
    per_row = WIDTH // LEGEND_COLUMN
    for index, name in enumerate(names):
        x, y = 18 + index % per_row * LEGEND_COLUMN, 38 + index // per_row * 16
        parts += [mark(index, x, y), text(x + 10, y + 4, name)]
    return parts


def _quarters(most: float) -> Scale:
    top = _round_up(most)
    return Scale([top * quarter / 4 for quarter in range(5)])


def _powers(least: float, most: float) -> Scale:
    """Raises ValueError unless both are above 0."""
    low = math.floor(math.log10(least))
    high = max(math.ceil(math.log10(most)), low + 1)
    return Scale([10.0**power for power in range(low, high + 1)], powers=True)


def _marked(scale: Scale, unit: str) -> list[str]:
    parts = []
    for value in scale.marked:
        y = scale.y(value)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, "#dddddd"))
        parts.append(text(LEFT - 6, y + 4, f"{value:g} {unit}".strip(), 'text-anchor="end"'))
    return parts


def _labels(labels: Sequence[str], bottom: str) -> list[str]:
    y = HEIGHT - BOTTOM
    middle = 'text-anchor="middle"'
    parts = [text(_x(at, len(labels)), y + 16, each, middle) for at, each in enumerate(labels)]
    return [*parts, text((LEFT + WIDTH - RIGHT) / 2, y + 34, bottom, middle)]


def _x(at: float, count: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (at + 0.5) / max(count, 1)


def _round_up(value: float) -> float:
    """To 1, 2, 4 or 8 times a power of ten, so that quarters of it are round."""
    size = 1e-6
    while True:
        for times in (1, 2, 4, 8):
            if value <= size * times:
                return size * times
        size *= 10

"""SVG charts: lines over labels, in one panel or several, and stacked bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B07D00", "#3A8FC0", "#222222", "#8C564B")
"""Okabe and Ito's colour-blind safe palette, two of them darker for thin lines."""
SHAPES = ("circle", "square", "triangle", "diamond")
SQUARE = ((-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2))
TRIANGLE = ((0, -4.2), (4.2, 3.4), (-4.2, 3.4))
DIAMOND = ((0, -4.6), (4.6, 0), (0, 4.6), (-4.6, 0))
MIDDLE, BOLD = 'text-anchor="middle"', 'font-weight="bold"'
DASHED = 'stroke-dasharray="4 3"'
LEGEND_ROW = 18

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Scale:
    """The values marked on the y axis, from the bottom to the top."""

    ticks: Sequence[float]
    log: bool = False

    def position(self, value: float) -> float:
        """0 at the bottom, 1 at the top."""
        low, high = self.ticks[0], self.ticks[-1]
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Line:
    """A curve in the colour `index`. Its points are (index of the label, value); `notes` are shown
    on hovering a point; `band` has the low and high value at each point; `reference` is dashed."""

    index: int
    points: Points
    notes: Sequence[str]
    band: Points = ()
    reference: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """Axes: labels at equal distances along the bottom, and a scale; values end in `unit`."""

    scale: Scale
    labels: Sequence[str]
    unit: str
    x_title: str
    title: str = ""
    width: int = 640
    height: int = 270
    left: int = 70
    right: int = 16
    top: int = 30
    bottom: int = 46

    def x(self, index: float) -> float:
        width = self.width - self.left - self.right
        return self.left + width * (index + 0.5) / max(len(self.labels), 1)

    def y(self, value: float) -> float:
        height = self.height - self.top - self.bottom
        return self.height - self.bottom - height * self.scale.position(value)

    def axes(self) -> list[str]:
        bottom, right = self.height - self.bottom, self.width - self.right
        parts = [text(self.left, 18, self.title, f'font-size="12" {BOLD}')] if self.title else []
        for value in self.scale.ticks:
            y = self.y(value)
            parts.append(line(self.left, y, right, y, "#dddddd"))
            label = f"{value:g} {self.unit}".strip()
            parts.append(text(self.left - 6, y + 4, label, 'text-anchor="end"'))
        for index, label in enumerate(self.labels):
            parts.append(text(self.x(index), bottom + 16, label, MIDDLE))
        return [*parts, text((self.left + right) / 2, bottom + 33, self.x_title, MIDDLE)]

    def curve(self, curve: Line) -> list[str]:
        colour = COLOURS[curve.index % len(COLOURS)]
        xs = [self.x(index) for index, _ in curve.points]
        points = [(x, self.y(value)) for x, (_, value) in zip(xs, curve.points, strict=True)]
        low = [(x, self.y(low)) for x, (low, _) in zip(xs, curve.band, strict=False)]
        high = [(x, self.y(high)) for x, (_, high) in zip(xs, curve.band, strict=False)]
        reference = [(x, self.y(value)) for x, value in zip(xs, curve.reference, strict=False)]
        parts = []
        if len(low) == 1:
            more = 'stroke-opacity="0.4" stroke-width="4"'
            parts.append(line(*high[0], *low[0], colour, more))
        elif low:
            parts.append(polygon(high + low[::-1], colour, ' fill-opacity="0.13"'))
        if len(reference) == 1:
            ((x, y),) = reference
            reference = [(x - 12, y), (x + 12, y)]
        if reference:
            parts.append(polyline(reference, colour, f'stroke-width="1.5" {DASHED}'))
        parts.append(polyline(points, colour, 'stroke-width="2"'))
        for (x, y), note in zip(points, curve.notes, strict=True):
            parts.append(mark(curve.index, x, y, f"<title>{escape(note)}</title>"))
        return parts


def line_chart(
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Points],
    unit: str,
    x_title: str,
    log: bool = False,
) -> str:
    """A curve for each of the series; the scale begins at 0, or is logarithmic."""
    values = [value for points in series.values() for _, value in points] or [1.0]
    scale = _decades(min(values), max(values)) if log else _quarters(max(values))
    panel = Panel(scale, labels, unit, x_title)
    parts = panel.axes()
    for index, (name, points) in enumerate(series.items()):
        notes = [f"{name}: {value:.3g} {unit}" for _, value in points]
        parts += panel.curve(Line(index, points, notes))
    return figure(title, [(panel, parts)], list(series), legend_column=150)


def stacked_bars(
    title: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str
) -> str:
    """A bar for each label, with a part for each of the series."""
    highest = max(map(sum, zip(*series.values(), strict=True)), default=1.0)
    panel = Panel(_quarters(highest), labels, unit, "")
    parts = panel.axes()
    width = 0.7 * (panel.x(1) - panel.x(0))
    for bar in range(len(labels)):
        low = 0.0
        for index, (name, values) in enumerate(series.items()):
            high = low + values[bar]
            x, y = panel.x(bar) - width / 2, panel.y(high)
            note = f"<title>{escape(name)}: {values[bar]:.3g} {unit}</title>"
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}"'
                f' height="{panel.y(low) - y:.1f}" fill="{COLOURS[index % len(COLOURS)]}">'
                f"{note}</rect>"
            )
            low = high
    return figure(title, [(panel, parts)], list(series), legend_column=150)


def figure(
    title: str,
    panels: Sequence[tuple[Panel, list[str]]],
    legend: Sequence[str],
    dashed: str = "",
    columns: int = 3,
    legend_column: int = 220,
) -> str:
    """The whole picture: a title, a legend of the colours (and of dashed lines), and panels of the
    same size with what is drawn in them."""
    columns = min(columns, max(len(panels), 1))
    panel_width, panel_height = (panels[0][0].width, panels[0][0].height) if panels else (0, 0)
    width = max(columns * panel_width, 2 * legend_column)
    per_row = width // legend_column
    entries = [*legend, *([dashed] if dashed else [])]
    head = 34 + LEGEND_ROW * -(-len(entries) // per_row)
    height = head + panel_height * -(-len(panels) // columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="sans-serif" font-size="11" fill="#222222" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(12, 20, title, f'font-size="14" {BOLD}'),
    ]
    for index, name in enumerate(entries):
        x, y = 14 + index % per_row * legend_column, 38 + index // per_row * LEGEND_ROW
        if index < len(legend):
            parts.append(line(x, y, x + 24, y, COLOURS[index % len(COLOURS)], 'stroke-width="2"'))
            parts.append(mark(index, x + 12, y))
        else:
            parts.append(line(x, y, x + 24, y, "#222222", DASHED))
        parts.append(text(x + 30, y + 4, name))
    for index, (_, inner) in enumerate(panels):
        x, y = index % columns * panel_width, head + index // columns * panel_height
        parts += [f'<g transform="translate({x} {y})">', *inner, "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _quarters(highest: float) -> Scale:
    """From 0 to the next 1, 2, 4 or 8 times a power of ten, so that quarters of it are round."""
    size = 10.0 ** math.floor(math.log10(max(highest, 1e-6)))
    top = next(size * n for n in (1, 2, 4, 8, 10) if highest <= size * n)
    return Scale([top * quarter / 4 for quarter in range(5)])


def _decades(lowest: float, highest: float) -> Scale:
    """The powers of ten around both. Raises ValueError unless they are above 0."""
    low = math.floor(math.log10(lowest))
    high = max(math.ceil(math.log10(highest)), low + 1)
    return Scale([10.0**power for power in range(low, high + 1)], log=True)


# ----------------------------------------------------------------------------- SVG elements


def mark(index: int, x: float, y: float, inner: str = "") -> str:
    """A point of the curve `index`; the shape differs where colours repeat."""
    colour = COLOURS[index % len(COLOURS)]
    match SHAPES[index // 2 % len(SHAPES) if index >= len(COLOURS) else index % len(SHAPES)]:
        case "circle":
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">{inner}</circle>'
        case "square":
            corners: Points = SQUARE
        case "triangle":
            corners = TRIANGLE
        case _:
            corners = DIAMOND
    return polygon([(x + dx, y + dy) for dx, dy in corners], colour, inner=inner)


def polygon(points: Points, colour: str, more: str = "", inner: str = "") -> str:
    return f'<polygon points="{_pairs(points)}" fill="{colour}"{more}>{inner}</polygon>'


def polyline(points: Points, colour: str, more: str) -> str:
    return f'<polyline points="{_pairs(points)}" fill="none" stroke="{colour}" {more}/>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" {more}/>'


def text(x: float, y: float, content: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(content)}</text>'


def _pairs(points: Points) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)

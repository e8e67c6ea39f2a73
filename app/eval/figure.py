"""Accuracy over keep, drawn as an SVG: one panel a suite, one line a length and scoring."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.eval.drawing import COLOURS, line, mark, path, points, text
from app.eval.results import ResultCell

WIDTH, HEIGHT = 300, 210
"""Of a panel, in pixels, with its labels."""
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 30, 42
"""What its labels take at each side."""
COLUMNS = 3
LEGEND_COLUMN, LEGEND_ROW = 220, 18
Series = tuple[int, str]
"""Length in tokens, and scoring."""


def figure(cells: Sequence[ResultCell], title: str) -> str:
    """The whole picture, of cells that are no single cases'; the same text for the same cells."""
    series = sorted({(c.length, c.scoring) for c in cells}, key=lambda s: (s[0], _first(cells, s)))
    keeps = sorted({cell.keep for cell in cells})
    suites = list(dict.fromkeys(cell.suite for cell in cells))
    columns = min(COLUMNS, max(len(suites), 1))
    width = max(columns * WIDTH, 2 * LEGEND_COLUMN)
    per_row = width // LEGEND_COLUMN
    head = 34 + LEGEND_ROW * -(-(len(series) + 1) // per_row)
    height = head + HEIGHT * -(-len(suites) // columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="sans-serif" font-size="11" fill="#222222" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(12, 20, title, 'font-size="14" font-weight="bold"'),
        *_legend(series, per_row),
    ]
    for index, suite in enumerate(suites):
        x, y = index % columns * WIDTH, head + index // columns * HEIGHT
        own = [cell for cell in cells if cell.suite == suite]
        parts += [f'<g transform="translate({x} {y})">', *_panel(suite, own, series, keeps), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _first(cells: Sequence[ResultCell], series: Series) -> int:
    return next(i for i, cell in enumerate(cells) if (cell.length, cell.scoring) == series)


def _legend(series: Sequence[Series], per_row: int) -> list[str]:
    parts = []
    labels = [f"{length:,} tokens, {scoring}" for length, scoring in series]
    for index, label in enumerate([*labels, "dashed: read in full; band: 95 %"]):
        x, y = 14 + index % per_row * LEGEND_COLUMN, 38 + index // per_row * LEGEND_ROW
        if index < len(series):
            parts += [line(x, y, x + 24, y, COLOURS[index % len(COLOURS)], 'stroke-width="2"')]
            parts += [mark(index, x + 12, y)]
        else:
            parts += [line(x, y, x + 24, y, "#222222", 'stroke-dasharray="4 3"')]
        parts.append(text(x + 30, y + 4, label))
    return parts


def _panel(
    suite: str, cells: Sequence[ResultCell], series: Sequence[Series], keeps: Sequence[float]
) -> list[str]:
    counts = sorted({cell.n for cell in cells})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    parts = [text(LEFT, 18, f"{suite} (n = {n})", 'font-size="12" font-weight="bold"')]
    for percent in (0, 25, 50, 75, 100):
        y = _y(percent / 100)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, "#dddddd"))
        parts.append(text(LEFT - 6, y + 4, f"{percent} %", 'text-anchor="end"'))
    for keep in keeps:
        x = _x(keep, keeps)
        parts.append(line(x, _y(0), x, _y(0) + 4, "#777777"))
        parts.append(text(x, _y(0) + 16, f"{keep:g}", 'text-anchor="middle"'))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, _y(0) + 32, "keep", 'text-anchor="middle"'))
    lengths: set[int] = set()
    for index, one in enumerate(series):
        own = sorted((c for c in cells if (c.length, c.scoring) == one), key=lambda c: c.keep)
        if own:
            parts += _curve(index, own, keeps, with_dense=one[0] not in lengths)
            lengths.add(one[0])
    return parts


def _curve(
    index: int, cells: Sequence[ResultCell], keeps: Sequence[float], with_dense: bool
) -> list[str]:
    colour = COLOURS[index % len(COLOURS)]
    places = [_x(cell.keep, keeps) for cell in cells]
    high = [(x, _y(cell.accuracy.high)) for x, cell in zip(places, cells, strict=True)]
    low = [(x, _y(cell.accuracy.low)) for x, cell in zip(places, cells, strict=True)]
    middle = [(x, _y(cell.accuracy.share)) for x, cell in zip(places, cells, strict=True)]
    dense = [(x, _y(cell.dense.share)) for x, cell in zip(places, cells, strict=True)]
    parts = []
    if len(cells) > 1:
        band = points(high + low[::-1])
        parts.append(f'<polygon points="{band}" fill="{colour}" fill-opacity="0.13"/>')
    else:
        (x, top), (_, bottom) = high[0], low[0]
        parts.append(line(x, top, x, bottom, colour, 'stroke-opacity="0.4" stroke-width="4"'))
        dense = [(x - 12, dense[0][1]), (x + 12, dense[0][1])]
    if with_dense:
        parts.append(path(dense, colour, 'stroke-width="1.5" stroke-dasharray="4 3"'))
    parts.append(path(middle, colour, 'stroke-width="2"'))
    for (x, y), cell in zip(middle, cells, strict=True):
        told = f"{cell.length:,} tokens, {cell.scoring}, keep {cell.keep:g}"
        told = f"<title>{told}: {cell.right} of {cell.n} right</title>"
        parts.append(mark(index, x, y, told))
    return parts


def _x(keep: float, keeps: Sequence[float]) -> float:
    """Keeps stand at equal distances: most of them are small."""
    room = WIDTH - LEFT - RIGHT
    return LEFT + room * (keeps.index(keep) + 0.5) / len(keeps)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

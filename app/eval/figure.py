"""Accuracy over keep, drawn as an SVG: one panel a suite, one line a length and scoring."""

from __future__ import annotations

from collections.abc import Sequence

from app.eval.results import ResultCell
from app.util.charts import Line, Panel, Scale, figure

Series = tuple[int, str]
"""Length in tokens, and scoring."""


def accuracy_figure(cells: Sequence[ResultCell], title: str) -> str:
    """The whole picture, of cells without cases; the same text for the same cells."""
    series = sorted({(c.length, c.scoring) for c in cells}, key=lambda s: (s[0], _first(cells, s)))
    keeps = sorted({cell.keep for cell in cells})
    panels = []
    for suite in dict.fromkeys(cell.suite for cell in cells):
        chosen = [cell for cell in cells if cell.suite == suite]
        panel = _panel(suite, chosen, keeps)
        panels.append((panel, panel.axes() + _curves(panel, chosen, series, keeps)))
    legend = [f"{length:,} tokens, {scoring}" for length, scoring in series]
    return figure(title, panels, legend, dashed="dashed: full prefill; band: 95 %")


def _first(cells: Sequence[ResultCell], series: Series) -> int:
    return next(i for i, cell in enumerate(cells) if (cell.length, cell.scoring) == series)


def _panel(suite: str, cells: Sequence[ResultCell], keeps: Sequence[float]) -> Panel:
    counts = sorted({cell.n for cell in cells})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return Panel(
        Scale((0, 25, 50, 75, 100)),
        [f"{keep:g}" for keep in keeps],
        "%",
        "keep",
        f"{suite} (n = {n})",
        width=300,
        height=210,
        left=48,
        right=14,
        bottom=42,
    )


def _curves(
    panel: Panel, cells: Sequence[ResultCell], series: Sequence[Series], keeps: Sequence[float]
) -> list[str]:
    """The dense accuracy of a length is drawn once."""
    parts: list[str] = []
    lengths: set[int] = set()
    for index, one in enumerate(series):
        chosen = sorted(
            (c for c in cells if (c.length, c.scoring) == one), key=lambda cell: cell.keep
        )
        if not chosen:
            continue
        dense = [] if one[0] in lengths else [100 * cell.dense.share for cell in chosen]
        lengths.add(one[0])
        line = Line(
            index,
            [(keeps.index(cell.keep), 100 * cell.accuracy.share) for cell in chosen],
            [
                f"{cell.length:,} tokens, {cell.scoring}, keep {cell.keep:g}:"
                f" {cell.right} of {cell.n} right"
                for cell in chosen
            ],
            [(100 * cell.accuracy.low, 100 * cell.accuracy.high) for cell in chosen],
            dense,
        )
        parts += panel.curve(line)
    return parts

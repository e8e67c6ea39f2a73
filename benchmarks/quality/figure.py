"""Shares over keep, drawn as an SVG: one panel a suite, one line a length and scoring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.protocol.options import AUTO_KEEP
from benchmarks.charts import Line, Panel, Scale, figure
from benchmarks.quality.results import Interval, RealCell, ResultCell

Series = tuple[int, str]
"""Length in tokens, and scoring."""


@dataclass(frozen=True, slots=True)
class Point:
    """The share of `n` items that is drawn at one keep; `dense` is that of a full prefill."""

    panel: str
    series: Series
    keep: float
    n: int
    share: Interval
    dense: float | None
    what: str


def results_figure(cells: Sequence[ResultCell], real: Sequence[RealCell], title: str) -> str:
    """The whole picture: right answers, of cells without cases, and passages that were read; the
    same text for the same cells."""
    points = [p for p in (*_answers(cells), *_passages(real)) if p.keep != AUTO_KEEP]
    series = sorted({p.series for p in points}, key=lambda s: (s[0], _first(points, s)))
    keeps = sorted({point.keep for point in points})
    panels = []
    for name in dict.fromkeys(point.panel for point in points):
        chosen = [point for point in points if point.panel == name]
        panel = _panel(name, chosen, keeps)
        panels.append((panel, panel.axes() + _curves(panel, chosen, series, keeps)))
    legend = [f"{length:,} tokens, {scoring}" for length, scoring in series]
    return figure(title, panels, legend, dashed="dashed: full prefill; band: 95 %")


def _answers(cells: Sequence[ResultCell]) -> Iterator[Point]:
    for cell in cells:
        what = f"{cell.right} of {cell.n} right"
        series = (cell.length, cell.scoring)
        dense = cell.dense.share
        yield Point(cell.suite, series, cell.keep, cell.n, cell.accuracy, dense, what)


def _passages(cells: Sequence[RealCell]) -> Iterator[Point]:
    for cell in cells:
        what = f"{round(cell.passage.share * cell.n)} of {cell.n} passages read"
        series = (cell.length, cell.scoring)
        yield Point(f"{cell.suite}, read", series, cell.keep, cell.n, cell.passage, None, what)


def _first(points: Sequence[Point], series: Series) -> int:
    return next(i for i, point in enumerate(points) if point.series == series)


def _panel(name: str, points: Sequence[Point], keeps: Sequence[float]) -> Panel:
    counts = sorted({point.n for point in points})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return Panel(
        Scale((0, 25, 50, 75, 100)),
        [f"{keep:g}" for keep in keeps],
        "%",
        "keep",
        f"{name} (n = {n})",
        width=300,
        height=210,
        left=48,
        right=14,
        bottom=42,
    )


def _curves(
    panel: Panel, points: Sequence[Point], series: Sequence[Series], keeps: Sequence[float]
) -> list[str]:
    """The dense accuracy of a length is drawn once."""
    parts: list[str] = []
    lengths: set[int] = set()
    for index, one in enumerate(series):
        chosen = sorted((p for p in points if p.series == one), key=lambda point: point.keep)
        if not chosen:
            continue
        dense = [] if one[0] in lengths else [100 * p.dense for p in chosen if p.dense is not None]
        lengths.add(one[0])
        line = Line(
            index,
            [(keeps.index(point.keep), 100 * point.share.share) for point in chosen],
            [f"{one[0]:,} tokens, {one[1]}, keep {p.keep:g}: {p.what}" for p in chosen],
            [(100 * point.share.low, 100 * point.share.high) for point in chosen],
            dense,
        )
        parts += panel.curve(line)
    return parts

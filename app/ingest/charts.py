"""Charts and diagrams of Office documents: their titles, and their values as a table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from xml.etree.ElementTree import Element

from app.ingest import markdown
from app.ingest.elements import attribute, child, every, line_of, name_of
from app.ingest.number_formats import shown_number

_MAX_POINTS, _MAX_LEVELS = 10_000, 20
"""Values of a series that are read, and levels of categories."""


def chart_titles(chart: Element, text: Callable[[Element], str]) -> list[str]:
    """The title of a chart, and a line of those of its axes."""
    own: list[str] = []
    axes: list[str] = []
    for each in chart.iter():
        name = name_of(each)
        if name == "chart" or name.endswith(("Ax", "axis")):
            titles = own if name == "chart" else axes
            titles += [line_of(text(title)) for title in each.findall("{*}title")]
    return [*filter(None, (*own, "; ".join(filter(None, axes))))]


def chart_lines(chart: Element) -> Iterator[str]:
    """Yield a chart's titles, and a table of its values."""
    yield from chart_titles(chart, _text)
    if next(every(chart, "chartData"), None) is not None:  # a chart of 2016 or later
        yield from _newer(chart)
        return
    for names, found in groupby(every(chart, "ser"), _categories):
        columns = [dict(names)]
        titles = [""]
        for series in found:
            values = child(series, "val")
            columns.append(_points(child(series, "yVal") if values is None else values))
            titles.append(" ".join(_points(child(series, "tx")).values()))
        yield _table(titles, columns)


def _categories(series: Element) -> tuple[tuple[int, str], ...]:
    first = child(series, "cat")
    return tuple(_points(child(series, "xVal") if first is None else first).items())


def _table(titles: list[str], columns: list[dict[int, str]]) -> str:
    places = sorted({place for column in columns for place in column})[:_MAX_POINTS]
    if len(places) * len(columns) <= markdown.max_cells(sum(map(len, columns))):
        rows = [[column.get(place, "") for column in columns] for place in places]
    else:
        found: dict[int, list[str]] = {place: [] for place in places}
        for column in columns:
            for place in column.keys() & found.keys():
                found[place].append(column[place])
        rows = [*found.values()]
    return markdown.table([titles, *rows]) if rows else ""


def _points(element: Element | None) -> dict[int, str]:
    """Values by their places. Some places may have none."""
    if element is None:
        return {}
    levels = [*every(element, "lvl")]
    if not levels:
        return _level(element)
    # Categories of several levels: the outer ones stand once, at the first place.
    inner, *outer = [_level(each) for each in levels[:_MAX_LEVELS]]
    shown = {place: [inner[place]] for place in sorted(inner)}
    for level in outer:
        known = sorted(level)
        for place, names in shown.items():
            if at := bisect_right(known, place):
                names.insert(0, level[known[at - 1]])
    return {place: " ".join(names) for place, names in shown.items()}


def _level(element: Element) -> dict[int, str]:
    code = next((each.text or "" for each in every(element, "formatCode")), "")
    code = code or attribute(element, "formatCode")
    found: dict[int, str] = {}
    for number, point in enumerate(every(element, "pt")):
        value = child(point, "v")
        text = ((point.text if value is None else value.text) or "").strip()
        own = point.get("formatCode") or code
        if own and own != "General":
            with suppress(ValueError):
                text = shown_number(float(text), own)
        place = point.get("idx", "")
        found[int(place) if place.isdecimal() and len(place) < 8 else number] = text
    if not found:
        values = [each.text or "" for each in every(element, "v")]
        found = dict(enumerate(values))
    return found


def _newer(chart: Element) -> Iterator[str]:
    """Yield the values of a waterfall, a funnel, a treemap and others."""
    names = {
        attribute(each, "dataId") or attribute(child(each, "dataId") or each, "val"): _text(
            child(each, "tx") or each
        )
        for each in every(chart, "series")
    }
    for data in every(chart, "data"):
        titles, columns = [], []
        for each in data:
            if name_of(each) in ("strDim", "numDim"):
                is_value = name_of(each) == "numDim"
                titles.append(names.get(attribute(data, "id"), "") if is_value else "")
                columns.append(_points(each))
        if columns:
            yield _table(titles, columns)


def diagram_lines(diagram: Element) -> Iterator[str]:
    """Yield the texts of a diagram."""
    lines = [_text(each) for each in every(diagram, "p")]
    shown = "\n".join(f"- {text}" for text in lines if text)
    if shown:
        yield shown


def _text(element: Element) -> str:
    texts = (
        " " if name in ("br", "p") else each.text or ""
        for each in element.iter()
        if (name := name_of(each)) in ("t", "v", "br", "p")
    )
    return line_of("".join(texts))

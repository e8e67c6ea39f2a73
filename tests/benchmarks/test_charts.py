"""SVG charts."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from benchmarks.charts import line_chart, stacked_bars

CURVE = [(0.0, 2.0), (1.0, 20.0), (2.0, 200.0)]
LABELS = ("1k", "4k", "8k")


def heights(svg: str) -> list[float]:
    """Of the curve's points."""
    (drawn,) = re.findall(r'polyline points="([^"]+)"', svg)
    return [float(point.split(",")[1]) for point in drawn.split()]


def texts(svg: str) -> list[str]:
    every = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [each.text or "" for each in every]


def test_on_a_logarithmic_scale_powers_of_ten_are_equally_far_apart() -> None:
    svg = line_chart("Times", LABELS, {"ours": CURVE}, "s", "tokens", log=True)
    low, middle, high = heights(svg)
    assert low - middle == pytest.approx(middle - high, abs=0.2)
    assert [text for text in texts(svg) if text.endswith(" s")] == [
        "1 s",
        "10 s",
        "100 s",
        "1000 s",
    ]


def test_otherwise_distances_are_proportional() -> None:
    low, middle, high = heights(line_chart("Times", LABELS, {"ours": CURVE}, "s", "tokens"))
    assert (middle - high) / (low - middle) == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("log", [True, False])
def test_no_values_and_equal_values_are_drawn_too(log: bool) -> None:
    for series in ({}, {"ours": [(0.0, 1.0), (1.0, 1.0)]}):
        ElementTree.fromstring(line_chart("<Times>", LABELS, series, "s", "tokens", log))
    ElementTree.fromstring(stacked_bars("Parts & more", (), {}, "s"))


def test_parts_are_stacked() -> None:
    svg = stacked_bars("Parts", ("a",), {"one": [30.0], "two": [50.0]}, "s")
    every = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect")
    bars = [(float(bar.get("y", 0)), float(bar.get("height", 0))) for bar in every]
    (one_y, one), (two_y, two) = bars[-2:]
    assert two_y + two == pytest.approx(one_y, abs=0.2)
    assert two / one == pytest.approx(50 / 30, rel=0.01)

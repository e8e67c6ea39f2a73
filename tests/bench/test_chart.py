"""Figures of the performance report."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from app.bench.chart import curves, stacks

CURVE = [(0.0, 2.0), (1.0, 20.0), (2.0, 200.0)]
LABELS = ("1k", "4k", "8k")


def heights(svg: str) -> list[float]:
    """Of the curve's places."""
    (drawn,) = re.findall(r'polyline points="([^"]+)"', svg)
    return [float(place.split(",")[1]) for place in drawn.split()]


def words(svg: str) -> list[str]:
    every = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [each.text or "" for each in every]


def test_values_a_power_of_ten_apart_stand_equally_far_apart_where_that_is_asked() -> None:
    svg = curves("Times", LABELS, {"ours": CURVE}, "s", "tokens", powers=True)
    low, middle, high = heights(svg)
    assert low - middle == pytest.approx(middle - high, abs=0.2)
    assert [word for word in words(svg) if word.endswith(" s")] == [
        "1 s",
        "10 s",
        "100 s",
        "1000 s",
    ]


def test_otherwise_they_stand_as_far_apart_as_they_are() -> None:
    low, middle, high = heights(curves("Times", LABELS, {"ours": CURVE}, "s", "tokens"))
    assert (middle - high) / (low - middle) == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("powers", [True, False])
def test_nothing_and_equal_values_are_drawn_too(powers: bool) -> None:
    for series in ({}, {"ours": [(0.0, 1.0), (1.0, 1.0)]}):
        ElementTree.fromstring(curves("<Times>", LABELS, series, "s", "tokens", powers))
    ElementTree.fromstring(stacks("Parts & more", (), {}, "s", ""))


def test_parts_stand_on_each_other() -> None:
    svg = stacks("Parts", ("a",), {"one": [30.0], "two": [50.0]}, "s", "")
    every = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect")
    bars = [(float(bar.get("y", 0)), float(bar.get("height", 0))) for bar in every]
    (one_y, one), (two_y, two) = bars[-2:]
    assert two_y + two == pytest.approx(one_y, abs=0.2)
    assert two / one == pytest.approx(50 / 30, rel=0.01)

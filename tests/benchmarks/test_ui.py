"""Measures the real program."""

from __future__ import annotations

import pytest

from benchmarks.harness import Options
from benchmarks.ui import BENCH, GOALS, percentile, span_frames
from tests.benchmarks.measuring import measured


@pytest.mark.slow
def test_it_measures_what_it_says() -> None:
    rows = measured(BENCH, Options(1)).rows
    assert [row["what"] for row in rows] == list(GOALS)
    times = [row.median("ms") for row in rows]
    assert all(0 < ms < 60_000 for ms in times)
    assert times[3] <= times[4], "median and 95th percentile of the keys"


async def test_frames_are_drawn_and_timed() -> None:
    seconds = await span_frames()
    assert len(seconds) == 300
    assert min(seconds) > 0


def test_a_percentile() -> None:
    assert percentile([*range(101)], 95) == 95

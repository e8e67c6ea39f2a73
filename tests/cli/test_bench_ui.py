"""`specchat bench ui` measures the real program."""

from __future__ import annotations

import io
import json

import pytest

from app.bench.median_range import Spread
from app.cli.bench_ui import NAMES, WANTED, Figures, _table, bench_ui, percentile, span_frames


@pytest.mark.slow
def test_it_measures_what_it_says() -> None:
    out = io.StringIO()
    assert bench_ui(1, True, out) == 0
    measured = json.loads(out.getvalue())
    assert set(measured["milliseconds"]) == set(NAMES)
    assert all(0 < value < 60_000 for value in measured["milliseconds"].values())
    assert (
        measured["milliseconds"]["key_to_paint_p50"] <= measured["milliseconds"]["key_to_paint_p95"]
    )


async def test_frames_are_drawn_and_timed() -> None:
    seconds = await span_frames()
    assert len(seconds) == 300
    assert min(seconds) > 0


def test_a_percentile() -> None:
    assert percentile([*range(101)], 95) == 95


def test_the_table_says_what_was_wanted() -> None:
    table = _table(Figures(1, 2, 3, 4, 5, 6), "a machine", {"first_paint": Spread(1, 0.5, 1.5)})
    assert table.startswith("a machine\n")
    assert all(words in table for words in NAMES.values())
    assert f"under {WANTED.first_paint:g} wanted, 0.5 to 1.5" in table

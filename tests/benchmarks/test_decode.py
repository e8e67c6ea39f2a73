"""Measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import decode, shapes
from benchmarks.harness import Options
from tests.benchmarks.measuring import measured, printed

TINY = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 4096}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The windowed shape, narrow, and with a window smaller than the selection."""
    target = {**shapes.shapes()["windowed"]["target"], **TINY, "sliding_window": 48}
    pair = {"target": target | {"sliding_window_pattern": 2}, "draft": target}
    monkeypatch.setitem(shapes.shapes(), "windowed", pair)


def options(tokens: int, runs: int) -> Options:
    return Options(runs, (320,), (0.5,), ("windowed",), tokens=tokens)


@pytest.mark.usefixtures("tiny")
def test_ours_is_measured_beside_mlx_lm_over_n_and_m_entries() -> None:
    (row,) = measured(decode.BENCH, options(6, 2)).rows
    assert (row["length"], row["selected"]) == (320, 160)
    assert len(row.runs) == 2
    for run in row.runs:
        for plain in ("plain_selected", "plain_all"):
            assert run[f"of_{plain}"] == pytest.approx(run["ours"] / run[plain])


@pytest.mark.usefixtures("tiny")
def test_the_table_names_the_machine_and_the_spread() -> None:
    text = printed(decode.BENCH, options(3, 2))
    for part in ("cores", "windowed", "320", "ours / mlx-lm, N", " to "):
        assert part in text


def test_the_selection_is_whole_chunks_before_the_last_token() -> None:
    selected = decode._random_chunks(1000, 0.2)
    assert selected[-1] < 999
    assert np.isin(np.diff(selected), [1, *range(33, 1000, 32)]).all()
    assert len(selected) == pytest.approx(200, abs=32)

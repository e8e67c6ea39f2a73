"""`specchat bench decode` measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from app.bench import decode, shapes
from app.bench.decode import Asked

TINY = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 4096}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The windowed shape, narrow, and with a window that what is kept does not fit into."""
    target = {**shapes.shapes()["windowed"]["target"], **TINY, "sliding_window": 48}
    pair = {"target": target | {"sliding_window_pattern": 2}, "draft": target}
    monkeypatch.setitem(shapes.shapes(), "windowed", pair)


@pytest.mark.usefixtures("tiny")
def test_ours_is_measured_beside_plain_mlx_lm_over_n_and_m_entries() -> None:
    out = io.StringIO()
    assert decode.decode(Asked(("windowed",), (320,), 0.5, 6, runs=2), True, out) == 0
    (row,) = json.loads(out.getvalue())["rows"]
    assert (row["length"], row["kept"]) == (320, 160)
    assert len(row["runs"]) == 2
    for name, plain in (("to_plain_kept", "plain_kept"), ("to_plain_all", "plain_all")):
        median, least, most = row["ratios"][name]
        found = [run[plain] / run["ours"] for run in row["runs"]]
        assert (least, most) == pytest.approx((min(found), max(found)))
        assert least <= median <= most


@pytest.mark.usefixtures("tiny")
def test_the_table_names_the_machine_and_the_spread() -> None:
    out = io.StringIO()
    decode.decode(Asked(("windowed",), (320,), 0.5, 3, runs=1), False, out)
    for part in ("cores", "windowed", "320", "ours / plain N", " to "):
        assert part in out.getvalue()


def test_what_is_kept_is_whole_chunks_before_the_last_token() -> None:
    kept = decode._kept(1000, 0.2)
    assert kept[-1] < 999
    assert np.isin(np.diff(kept), [1, *range(33, 1000, 32)]).all()
    assert len(kept) == pytest.approx(200, abs=32)

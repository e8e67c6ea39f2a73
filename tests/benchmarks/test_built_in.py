"""Measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import pytest

from app.errors import UserError
from benchmarks import built_in
from benchmarks.harness import Options
from tests.benchmarks.measuring import measured, printed

OPTIONS = Options(1, (256, 2048), shapes=("small",))


def test_every_length_is_measured() -> None:
    result = measured(built_in.BENCH, OPTIONS)
    assert [row["length"] for row in result.rows] == [256, 2048]
    for row in result.rows:
        (run,) = row.runs
        assert 0 < run["words"] < run["later"]
        assert run["megabytes"] > 30, "the encoder's weights"
        assert run["operations"] == pytest.approx(2 * 3 * 12 * 256**2 * 50 / 32)
    (goal,) = built_in.goals(result)
    assert goal.met


def test_the_table_has_a_line_for_each() -> None:
    lines = printed(built_in.BENCH, OPTIONS).splitlines()
    assert [line.split()[0] for line in lines if line[:1].isdigit()] == ["256", "2,048"]


def test_a_shape_that_makes_no_sense() -> None:
    with pytest.raises(UserError, match="no shape 'huge'"):
        measured(built_in.BENCH, Options(1, (256,), shapes=("huge",)))

"""Measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import pytest

from app.cli.main import run
from app.engine.backend import block_sparse
from app.errors import UserError
from benchmarks import draft
from benchmarks.__main__ import measure
from benchmarks.harness import Options
from tests.benchmarks.measuring import measured, printed


def options(*lengths: int, shape: str = "embedded") -> Options:
    return Options(1, lengths, shapes=(shape,))


def test_every_length_is_measured_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    attended: list[int] = []
    original = block_sparse.attend

    def attend(*args: object, **kw: object) -> object:
        attended.append(1)
        return original(*args, **kw)  # type: ignore[arg-type]

    monkeypatch.setattr(block_sparse, "attend", attend)
    rows = measured(draft.BENCH, options(1024, 4096)).rows
    assert [row["length"] for row in rows] == [1024, 4096]
    for row in rows:
        (each,) = row.runs
        assert each["of_dense"] == pytest.approx(each["sparse"] / each["dense"])
        assert each["of_prefill"] == pytest.approx(each["sparse_prefill"] / each["prefill"])
    layers = 2 - 1  # the last one's attention is not needed
    assert len(attended) == 2 * (1 + layers), "of 4,096 tokens the last two steps"


def test_the_table_has_a_line_for_each() -> None:
    lines = printed(draft.BENCH, options(1024, 1500)).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("1,")] == ["1,024", "1,500"]


def test_a_shape_or_length_that_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="no shape 'huge'"):
        measured(draft.BENCH, options(1024, shape="huge"))
    assert run(["draft", "--length", "512"], measure) != 0
    assert "'512' is not a valid length" in capsys.readouterr().err

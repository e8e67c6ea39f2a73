"""`specchat bench draft` measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import io
import json

import pytest

from app.bench.draft import draft
from app.cli.main import run
from app.engine import block_sparse
from app.errors import UserError


def test_every_length_is_measured_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    attended: list[int] = []
    original = block_sparse.attend

    def attend(*args: object, **kw: object) -> object:
        attended.append(1)
        return original(*args, **kw)  # type: ignore[arg-type]

    monkeypatch.setattr(block_sparse, "attend", attend)
    assert draft("embedded", (1024, 4096), 1, True, out) == 0
    report = json.loads(out.getvalue())
    assert [row["length"] for row in report["rows"]] == [1024, 4096]
    for row in report["rows"]:
        (run,), found = row["runs"], row["figures"]
        assert found["/dense"][0] == pytest.approx(run["sparse"] / run["dense"])
        assert found["/read"][0] == pytest.approx(run["prefill_sparse"] / run["prefill_dense"])
    layers = 2 - 1  # the last one's attention is not needed
    assert len(attended) == 2 * (1 + layers), "of 4,096 tokens the last two steps"


def test_the_table_has_a_line_for_each() -> None:
    out = io.StringIO()
    draft("embedded", (1024, 1500), 1, False, out)
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  1,")] == ["1,024", "1,500"]


def test_a_shape_or_length_that_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="no shape 'huge'"):
        draft("huge", (1024,), 1, False, io.StringIO())
    assert run(["bench", "draft", "--length", "12"]) != 0
    assert "'12' is no length" in capsys.readouterr().err

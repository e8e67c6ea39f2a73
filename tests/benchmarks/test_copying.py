"""Measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import pytest

from app.errors import UserError
from benchmarks import copying
from benchmarks.harness import Options
from tests.benchmarks.measuring import measured, printed

OPTIONS = Options(1, (256,), shapes=("quick",), tokens=24)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    ((document, question),) = copying.tasks("embedded")["quoting"]
    shorter = copying.Document(document.name, document.text[-6000:])
    monkeypatch.setattr(copying, "tasks", lambda target: {"quoting": [(shorter, question)]})


def test_steps_and_answers_are_measured() -> None:
    steps, answer = measured(copying.BENCH, OPTIONS).rows
    (run,) = steps.runs
    assert run["gain_1"] > run["gain_0.9"] > run["gain_0.3"] >= 1
    assert all(run[f"cost_{size}"] > 0 for size in (2, 4, 8, 16))
    assert all(0 < run[f"even_{size}"] <= 1 for size in (2, 4, 8, 16))
    (run,) = answer.runs
    assert (answer["what"], run["same"]) == ("quoting", 1.0)
    assert run["faster"] == pytest.approx(run["fast"] / run["plain"])
    assert run["length"] > 1000


def test_the_table_has_a_line_for_each() -> None:
    lines = printed(copying.BENCH, OPTIONS).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("quick", "embedded"))] == [
        "quick",
        "embedded",
    ]


def test_a_shape_that_makes_no_sense() -> None:
    with pytest.raises(UserError, match="no shape 'huge'"):
        measured(copying.BENCH, Options(1, (256,), shapes=("huge",)))

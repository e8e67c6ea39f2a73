"""Measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import pytest

from benchmarks import store
from benchmarks.harness import Options
from tests.benchmarks.measuring import measured, printed


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CONVERSATIONS", 2)
    monkeypatch.setattr(store, "MESSAGES", 5)
    monkeypatch.setattr(store, "DOCUMENT", 1000)
    monkeypatch.setattr(store, "LARGE", 1000)


@pytest.mark.usefixtures("small")
def test_every_figure_is_measured() -> None:
    rows = measured(store.BENCH, Options(2)).rows
    assert len(rows) == 9
    assert all(row.median("ms") > 0 for row in rows)
    assert [len(row.runs) for row in rows] == [2, 2, 2, 2, 2, 2, 1, 1, 2]


@pytest.mark.usefixtures("small")
def test_the_table_names_the_machine_and_the_goals() -> None:
    text = printed(store.BENCH, Options(1))
    for part in ("5 messages", "cores", "last 30", "search", "goal", "open and close"):
        assert part in text

"""`specchat bench store` measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import io
import json

import pytest

from app.bench import store


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CONVERSATIONS", 2)
    monkeypatch.setattr(store, "MESSAGES", 5)
    monkeypatch.setattr(store, "DOCUMENT", 1000)
    monkeypatch.setattr(store, "LARGE", 1000)


@pytest.mark.usefixtures("small")
def test_every_figure_is_measured() -> None:
    out = io.StringIO()
    assert store.store(2, True, out) == 0
    figures = json.loads(out.getvalue())["figures"]
    assert len(figures) == 9
    assert all(figure["median_ms"] > 0 for figure in figures.values())


@pytest.mark.usefixtures("small")
def test_the_table_names_the_machine_and_the_aims() -> None:
    out = io.StringIO()
    store.store(1, False, out)
    for part in ("10 messages", "cores", "last 30", "search", "aim: below 50", "start and end"):
        assert part in out.getvalue()

"""`specchat bench turns` measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import io
import json

import pytest

from app.bench import turns
from app.protocol.prompt import Document


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    text = turns._document().text[:6000]
    monkeypatch.setattr(turns, "_document", lambda: Document("part.txt", text))


@pytest.mark.usefixtures("small")
def test_ratios_are_of_one_run_and_later_turns_reuse() -> None:
    out = io.StringIO()
    assert turns.turns(1, True, out) == 0
    figures = json.loads(out.getvalue())["ratios_to_turn_1"]
    for name in ("sparse", "full"):
        (run,) = figures[name]["runs"]
        assert figures[name]["turn_2"] == run["second"]["seconds"] / run["first"]["seconds"]
        assert run["first"]["reused"] == 0
        assert run["second"]["reused"] == run["restarted"]["reused"] > 0
        assert (run["second"]["recalled"] > 0) == (name == "sparse")


def test_the_document_is_long_and_holds_both_places() -> None:
    text = turns._document().text
    assert len(text) > 4 * 4096
    for question in turns.QUESTIONS:
        assert question.split('"')[1] in text


def test_the_table_names_the_machine_and_every_figure() -> None:
    first, later = turns.Turn(2.0, 9000, 900, 0, 0), turns.Turn(0.5, 9040, 1300, 9000, 400)
    run = turns.Run(first, later, later)
    table = turns._table({"sparse": [run], "full": [run]}, "2 cores")
    for part in ("2 cores", "sparse, turn 1", "full, turn 2", "after a restart", "25.0%"):
        assert part in table
    assert "(9,000 reused, 400 recalled)" in table

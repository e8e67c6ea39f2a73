"""Measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import pytest

from app.chat.sample import sample
from app.protocol.prompt import Document
from benchmarks import turns
from benchmarks.harness import Options, Result, Row
from tests.benchmarks.measuring import measured


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    text = sample().text[:6000]
    monkeypatch.setattr(turns, "sample", lambda: Document("part.txt", text))


@pytest.mark.usefixtures("small")
@pytest.mark.slow
def test_ratios_are_of_one_run_and_later_turns_reuse() -> None:
    rows = measured(turns.BENCH, Options(1)).rows
    assert [row["turn"] for row in rows] == [f"{m}, {t}" for m in turns.MODES for t in turns.TURNS]
    half = len(turns.TURNS)
    for name, some in (("sparse", rows[:half]), ("full", rows[half:])):
        (first,), (second,), (restarted,), *others = (row.runs for row in some)
        assert second["ratio"] == second["seconds"] / first["seconds"]
        assert first["reused"] == 0
        assert second["reused"] == restarted["reused"] > 0
        assert (second["recalled"] > 0) == (name == "sparse")
        for (other,) in others:
            assert other["reused"] > 0
            assert "fresh" not in other
        assert 1 <= others[-1][0]["memory"] < 10


@pytest.mark.slow
def test_a_hybrid_model_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "CHATS", 5)
    options = Options(1, lengths=(300,), shapes=("hybrid",), scale=0.5)
    rows = {row["turn"]: row for row in measured(turns.BENCH, options).rows}
    assert rows["full, turn 2"].median("reused") > 300
    assert rows["sparse, turn 2"].median("recalled") > 0
    assert rows["sparse, turn 2 after a restart"].median("snapshot") > 0
    assert rows["full, turn 1"].median("cache") > rows["sparse, turn 1"].median("cache")


def test_the_document_is_long_and_has_both_passages() -> None:
    text = sample().text
    assert len(text) > 4 * 4096
    for question in turns.QUESTIONS:
        assert question.split('"')[1] in text


def test_the_table_has_every_figure() -> None:
    later = {"seconds": 0.5, "ratio": 0.25, "prompt": 9040, "reused": 9000, "recalled": 400}
    row = Row({"turn": "full, turn 2"}, [later])
    text = turns.BENCH.table(Result("2 cores", {}, [row]), True).markdown()
    assert "| full, turn 2 | 0.50 | 25.0% | 9,000 | 400 |" in text

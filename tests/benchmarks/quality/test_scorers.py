"""The baseline scorers: what they find and what they miss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.engine.scorers.selection import select
from app.protocol.commands import Ask
from app.protocol.events import FellBackToDense, Loaded, PhaseProgress, Selected
from app.protocol.options import Mode, Tuning
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import Phase, Reading
from benchmarks.quality import scorers
from benchmarks.quality.settings import Scoring, ScoringSwitch
from tests import tiny
from tests.engine.driver import Driver, question

pytestmark = pytest.mark.benchmarks

CHUNK = 32


def test_lexical_finds_the_chunk_with_the_question_s_rare_words() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, 40 * CHUNK).astype(np.int32)
    ids[13 * CHUNK + 4 : 13 * CHUNK + 7] = (101, 102, 103)
    question = np.array([7, 101, 9, 102, 103, 11], np.int32)
    importance = scorers.bm25_scores(np.concatenate([ids, question]), len(ids), CHUNK)
    assert importance[: len(ids)].reshape(-1, CHUNK).mean(axis=1).argmax() == 13
    assert not importance[len(ids) :].any()


def test_lexical_prefers_rare_words() -> None:
    ids = np.zeros(4 * CHUNK, np.int32)
    ids[0], ids[CHUNK], ids[2 * CHUNK] = 1, 1, 2
    importance = scorers.bm25_scores(np.append(ids, [1, 2]).astype(np.int32), len(ids), CHUNK)
    chunks = importance[: len(ids)].reshape(-1, CHUNK)[:, 0]
    assert chunks[2] > chunks[0] == chunks[1] > chunks[3] == 0


def test_lexical_without_a_document_is_flat() -> None:
    assert not scorers.bm25_scores(np.arange(5, dtype=np.int32), 0, CHUNK).any()


def test_random_scores_are_per_chunk_and_the_same_for_the_same_prompt() -> None:
    ids = np.arange(1000, dtype=np.int32)
    first, again = (
        scorers.random_scores(ids, CHUNK),
        scorers.random_scores(ids, CHUNK),
    )
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first)) == -(-1000 // CHUNK)
    assert (first[:CHUNK] == first[0]).all()
    other = scorers.random_scores(ids + 1, CHUNK)
    assert not np.array_equal(first, other)
    pinned = np.zeros(1000, bool)
    selected = select(first, pinned, 0.2).positions
    assert len(np.intersect1d(selected, select(other, pinned, 0.2).positions)) < 0.6 * len(selected)


@pytest.mark.parametrize("keep", [0.05, 0.2, 0.5])
def test_first_reads_the_start_of_the_documents(keep: float) -> None:
    pinned = np.zeros(20_000, bool)
    pinned[:45] = pinned[-30:] = True
    importance = scorers.first_scores(len(pinned), CHUNK)
    selected = select(importance, pinned, keep).positions
    read = np.setdiff1d(selected, np.flatnonzero(pinned))
    assert len(read) == pytest.approx(keep * 20_000, abs=CHUNK)
    np.testing.assert_array_equal(read, np.arange(45, 45 + len(read)))


@pytest.fixture
def switch() -> ScoringSwitch:
    return ScoringSwitch()


@pytest.fixture
def driver(tmp_path: Path, switch: ScoringSwitch) -> Iterator[Driver]:
    target = tiny.save(tmp_path / "target", "qwen3", 0)
    driver = Driver(choose_scorer=switch)
    assert isinstance(driver.load(target, target), Loaded)
    yield driver
    driver.close()


@pytest.mark.parametrize("scoring", [Scoring.RANDOM, Scoring.FIRST, Scoring.LEXICAL])
def test_the_floors_read_without_asking_the_draft(
    driver: Driver, switch: ScoringSwitch, scoring: Scoring
) -> None:
    switch.scoring = scoring
    statistics = driver.answer(question()).statistics
    assert statistics is not None
    assert statistics.reading is Reading.SPARSE
    assert not driver.of(FellBackToDense)
    assert Phase.SCORE not in {event.phase for event in driver.of(PhaseProgress)}
    assert statistics.read_fraction < 0.5


def test_lexical_reads_the_line_that_is_asked_about(driver: Driver, switch: ScoringSwitch) -> None:
    switch.scoring = Scoring.LEXICAL
    text = "\n".join(f"Line {n} says nothing much at all." for n in range(90))
    text = text.replace("Line 77 says nothing much", "The zyx of quokkas is qwx")
    message = Message(Role.USER, "What is the zyx of quokkas?", (Document("a.txt", text),))
    ask = Ask((message,), Mode.SPARSE, 0.05, tuning=Tuning(chunk=16))
    driver.answer(replace(ask, sampling=question().sampling))
    read = "".join(text[t.start : t.end] for t in driver.of(Selected)[-1].texts)
    assert "zyx of quokkas" in read


def test_each_turn_is_scored_as_the_switch_says_also_the_same_question_again(
    driver: Driver, switch: ScoringSwitch
) -> None:
    ask, found = replace(question(), conversation="c", read_again=True), []
    for switch.scoring in (Scoring.LEXICAL, Scoring.RANDOM, Scoring.LEXICAL):
        driver.answer(ask)
        found.append(driver.of(Selected)[-1].spans)
    assert found[0] == found[2] != found[1]

"""Sparse reading keeps the demo pair's answers. Takes a minute here and more in the slow tests;
`python -m benchmarks quality` runs everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.engine.engine import MlxEngine
from app.models.embedded import target_path
from benchmarks.quality import results
from benchmarks.quality.results_log import Record, ResultsLog
from benchmarks.quality.runner import Runner
from benchmarks.quality.settings import Scoring, ScoringSwitch, Settings
from benchmarks.quality.tokens import FolderTokens
from tests.patience import ROUNDS

pytestmark = pytest.mark.benchmarks

SWITCH = ScoringSwitch()
SAFE = ("needle-single", "needle-multikey", "lookup", "quote", "many", "absent")


@pytest.fixture(scope="module")
def session() -> Iterator[EngineSession]:
    with EngineSession(MlxEngine(choose_scorer=SWITCH)) as session:
        session.load(replace(resolve_pair(), only_quotes=False))
        yield session


def measure(session: EngineSession, settings: Settings, folder: Path) -> tuple[Record, ...]:
    log = ResultsLog(folder / "results.jsonl")
    outcome = Runner(session, settings, log, FolderTokens(target_path()), SWITCH).run()
    assert outcome.complete
    assert not results.failures(outcome.records)
    return outcome.records


def check_answers(records: tuple[Record, ...], scoring: Scoring, dense: float, lost: float) -> None:
    """Assert that at least the share `dense` is right densely, and at most `lost` is lost at keep
    0.2."""
    chosen = [cell for cell in results.cells(records) if cell.scoring == scoring]
    items = sum(cell.n for cell in chosen if cell.keep == 0.2)
    assert sum(cell.dense_right for cell in chosen if cell.keep == 0.2) >= dense * items
    assert sum(cell.regressions for cell in chosen if cell.keep == 0.2) <= lost * items
    assert [cell.differing for cell in chosen if cell.keep == 1.0] in ([0] * len(SAFE), [])


@pytest.mark.parametrize(
    ("length", "n", "lost"),
    [
        (1024, 1, 0.1),
        pytest.param(4096, 3 * ROUNDS, 0.1, marks=pytest.mark.slow, id="the length of a contract"),
    ],
)
def test_keep_0_2_is_enough_for_answers_in_one_place(
    session: EngineSession, tmp_path: Path, length: int, n: int, lost: float
) -> None:
    settings = Settings(SAFE, (length,), (0.2, 1.0), (Scoring.BOTH, Scoring.RANDOM), n=n)
    records = measure(session, settings, tmp_path)
    check_answers(records, Scoring.BOTH, dense=0.9, lost=lost)
    with pytest.raises(AssertionError):
        check_answers(records, Scoring.RANDOM, dense=0.9, lost=lost)


@pytest.mark.slow
def test_counts_are_right_densely_and_lost_sparsely(session: EngineSession, tmp_path: Path) -> None:
    settings = Settings(("count", "cwe-3"), (512,), (0.2,), (Scoring.BOTH,), n=10)
    count, words = results.cells(measure(session, settings, tmp_path))
    assert count.dense_right >= 7
    assert words.dense_right >= 3  # the model is weak at them
    assert count.regressions >= 0.8 * count.dense_right
    assert words.regressions >= 0.5 * words.dense_right  # a fifth of a list is a fair sample


@pytest.mark.slow
def test_auto_mode_detects_questions_that_need_everything(
    session: EngineSession, tmp_path: Path
) -> None:
    suites = ("count", "cwe", "vt", "lookup", "quote")
    settings = Settings(suites, (256,), (), (Scoring.BOTH,), n=4, auto=True, held_out=True)
    records = measure(session, settings, tmp_path)
    guard = results.guard_stats(records)
    assert guard is not None
    assert guard.recall.share >= 0.9
    assert guard.precision.share >= 0.9
    read_in_full = {r.suite for r in records if r.guard and r.reading == "dense"}
    assert read_in_full >= {"count", "cwe", "vt"}

"""Questions about completely cached documents, for which keep saves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.engine import engine
from app.engine.scorers.scorer import ScoringError
from app.protocol.commands import Ask, CachePolicy
from app.protocol.events import (
    BackgroundProgress,
    FellBackToDense,
    Finished,
    ImportanceMap,
    PhaseProgress,
    Planned,
    Selected,
)
from app.protocol.options import BackgroundPolicy, Mode
from app.protocol.prompt import Message
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Phase, Reading
from tests.engine.driver import Driver
from tests.engine.test_cache_pool import ask, reply, second


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Background prefill starts at once."""
    monkeypatch.setattr(engine, "IDLE_DELAY", 0.0)


def read_in_background(driver: Driver) -> tuple[Ask, Message, Finished]:
    """A sparse question, its answer, and completed background prefill."""
    driver.engine.send(CachePolicy(background=BackgroundPolicy.ALWAYS))
    question = ask("What is the code of gate 7?")
    answer, finished = reply(driver, question)
    driver.finish(BackgroundProgress)
    return question, answer, finished


def test_after_background_prefill_a_low_keep_only_shows_its_selection(
    loaded: Driver,
) -> None:
    question, answer, _ = read_in_background(loaded)
    later = replace(second(question, answer, "And that of gate 40?"), keep_ratio=0.1)
    statistics = loaded.answer(later).statistics
    assert statistics.reading is Reading.DENSE
    assert statistics.read_fraction == 1.0
    assert statistics.keep_ratio == 0.1
    assert statistics.fallback is None
    assert statistics.reasons == (Reason(ReasonCode.SAVES_NOTHING, {"keep": 0.1}),)
    progress = loaded.of(PhaseProgress)
    prefilled = [e for e in progress if e.phase is Phase.PREFILL]
    assert prefilled[-1].total < 60, "the question, and nothing of the document"
    assert loaded.of(ImportanceMap)
    (chosen,) = loaded.of(Selected)
    assert chosen.keep_ratio == 0.1
    assert 0 < chosen.selected_tokens < 0.3 * chosen.prompt_tokens
    scored = [e for e in progress if e.phase is Phase.SCORE and e.done]
    assert scored[0].done > 0.9 * scored[0].total, "the draft has the document"
    loaded.engine.reselect(loaded.turn, 0.5)
    more = loaded.until(Selected)
    assert more.selected_tokens > chosen.selected_tokens


def test_showing_the_selection_does_not_change_the_answer(loaded: Driver) -> None:
    question, answer, _ = read_in_background(loaded)
    later = second(question, answer, "And that of gate 40?")
    shown = loaded.answer(later)
    full = replace(later, mode=Mode.FULL, conversation=None)
    assert loaded.answer(full).generated_ids == shown.generated_ids


def test_auto_mode_uses_cached_tokens(loaded: Driver) -> None:
    question, answer, _ = read_in_background(loaded)
    later = replace(second(question, answer, "And that of gate 40?"), mode=Mode.AUTO)
    loaded.answer(later)
    (planned,) = loaded.of(Planned)
    assert planned.reasons == (Reason(ReasonCode.ALL_CACHED),)
    assert not loaded.of(Selected)


def test_the_draft_does_not_read_a_document_only_to_show_a_selection(loaded: Driver) -> None:
    loaded.engine.send(CachePolicy(background=BackgroundPolicy.OFF))
    question = ask("What is the code of gate 7?", mode=Mode.FULL)
    answer, _ = reply(loaded, question)
    later = replace(second(question, answer, "And that of gate 40?"), mode=Mode.SPARSE)
    statistics = loaded.answer(later).statistics
    assert statistics.reasons[0].code is ReasonCode.SAVES_NOTHING
    assert not loaded.of(Selected)


def test_failing_scores_do_not_affect_the_answer_or_the_cache(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, answer, _ = read_in_background(loaded)

    def fails(*arguments: object) -> object:
        raise ScoringError("its attention cannot be observed")

    monkeypatch.setattr("app.engine.scorers.attention.score_by_attention", fails)
    finished = loaded.answer(second(question, answer, "And that of gate 40?"))
    assert finished.text or finished.generated_ids
    assert finished.statistics.reused_tokens > 1_000
    (event,) = loaded.of(FellBackToDense)
    data = {"error": "its attention cannot be observed"}
    assert event.reason == Reason(ReasonCode.SELECTION_UNKNOWN, data)

"""What a draft model's attention finds, joined with what the built-in draft does: the default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.engine.backend import memory
from app.engine.turn import prompt_reader, turn_estimate
from app.models.embedded import draft_path, target_path
from app.protocol.commands import Ask, CachePolicy
from app.protocol.events import PhaseProgress, Selected
from app.protocol.options import DEFAULT_TUNING, BackgroundPolicy, Mode, Scoring, Tuning
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import FinishReason, Phase, Reading
from app.util.assets import assets_path
from tests.engine.driver import Driver, question

LICENCE = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")
DOCUMENT = Document("gpl", LICENCE[15000:27000])
REWORDED, PASSAGE = "How many days do I have to fix a violation?", "prior to 30 days after"
Spans = tuple[tuple[int, int], ...]


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver(64)
    driver.load(target_path(), draft_path())
    yield driver
    driver.close()


def selected(driver: Driver, scoring: Scoring | None) -> Spans:
    ask = replace(question(Mode.SPARSE, 0.2, tokens=2), tuning=Tuning(scoring=scoring))
    finished = driver.answer(
        replace(ask, messages=(Message(Role.USER, REWORDED, (DOCUMENT,)),), conversation=None)
    )
    assert finished.statistics
    assert finished.statistics.fallback is None
    assert finished.statistics.reading is Reading.SPARSE
    return tuple((text.start, text.end) for text in driver.of(Selected)[-1].texts)


@pytest.mark.parametrize("scoring", [Scoring.JOINED, Scoring.LIKELIHOOD])
def test_it_finds_a_passage_asked_about_in_other_words(driver: Driver, scoring: Scoring) -> None:
    at = DOCUMENT.text.index(PASSAGE)
    assert any(start <= at and at + len(PASSAGE) <= end for start, end in selected(driver, scoring))


def test_it_is_the_default_where_the_draft_costs_more(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert DEFAULT_TUNING.scoring is None
    by_attention = selected(driver, Scoring.BOTH)
    assert selected(driver, None) == by_attention
    monkeypatch.setattr(turn_estimate, "JOINED_FROM", 0)
    assert selected(driver, None) == selected(driver, Scoring.JOINED) != by_attention


def test_a_prompt_beyond_the_small_drafts_reach_is_scored_by_both(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, alone = selected(driver, Scoring.JOINED), selected(driver, Scoring.BOTH)
    assert selected(driver, None) == alone
    monkeypatch.setattr(turn_estimate, "ALONE_UP_TO", 100)
    assert selected(driver, None) == joined != alone


def test_without_memory_for_the_encoder_attention_decides(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_attention = selected(driver, Scoring.BOTH)
    monkeypatch.setattr(prompt_reader, "ENCODER_BYTES", memory.free() + (1 << 40))
    assert selected(driver, Scoring.JOINED) == by_attention


def test_progress_never_goes_back_and_esc_stops_it(driver: Driver) -> None:
    selected(driver, Scoring.JOINED)
    done = [e.done for e in driver.of(PhaseProgress) if e.phase is Phase.SCORE]
    assert done == sorted(done)
    assert done[-1] > 0
    driver.cancel_when(lambda e: isinstance(e, PhaseProgress) and e.phase is Phase.SCORE)
    ask = replace(question(Mode.SPARSE, 0.2), tuning=Tuning(scoring=Scoring.JOINED))
    other = Document("other", LICENCE[:8000])
    finished = driver.answer(replace(ask, messages=(Message(Role.USER, REWORDED, (other,)),)))
    assert finished.finish_reason is FinishReason.CANCELLED


def test_a_turn_that_was_stopped_selects_the_same_again(driver: Driver) -> None:
    def ask(turn: int, conversation: str) -> Ask:
        asked = replace(question(Mode.SPARSE, 0.3), tuning=Tuning(scoring=Scoring.JOINED))
        message = Message(Role.USER, REWORDED, (DOCUMENT,))
        return replace(asked, messages=(message,), conversation=conversation)

    def spans() -> tuple[tuple[int, int], ...]:
        return tuple((span.start, span.end) for span in driver.of(Selected)[-1].spans)

    driver.engine.send(CachePolicy(BackgroundPolicy.OFF, share_prefixes=False))
    whole = driver.answer(ask(1, "whole"))
    expected = spans()
    driver.cancel_when(
        lambda e: isinstance(e, PhaseProgress) and e.phase is Phase.PREFILL and e.done > 100
    )
    assert driver.answer(ask(2, "stopped")).finish_reason is FinishReason.CANCELLED
    driver.on_event = lambda event: None
    again = driver.answer(ask(3, "stopped"))
    assert again.statistics
    assert again.statistics.reused_tokens > 100
    assert spans() == expected
    assert again.generated_ids == whole.generated_ids

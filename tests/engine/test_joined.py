"""What a draft model's attention finds, joined with what the built-in draft does: the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from app.engine.backend import memory
from app.engine.model.loader import ModelPair
from app.engine.scorers import choice
from app.engine.scorers.attention import AttentionScorer
from app.engine.scorers.choice import ChooseScorer, JoinedScorer, choose_scorer
from app.engine.scorers.scorer import Scorer
from app.models.embedded import draft_path, target_path
from app.protocol.commands import Ask, CachePolicy
from app.protocol.events import PhaseProgress, Selected
from app.protocol.options import BackgroundPolicy, Mode
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import FinishReason, Phase, Reading
from app.util.assets import assets_path
from tests.engine.driver import Driver, question

LICENCE = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")
DOCUMENT = Document("gpl", LICENCE[15000:27000])
REWORDED, PASSAGE = "How many days do I have to fix a violation?", "prior to 30 days after"
Spans = tuple[tuple[int, int], ...]
Select = Callable[[ChooseScorer], Spans]


class Chosen:
    """An engine's `choose_scorer`: what the product chooses, or `wanted` instead."""

    def __init__(self) -> None:
        self.wanted: ChooseScorer = choose_scorer

    def __call__(self, pair: ModelPair, tokens: int) -> Scorer:
        return self.wanted(pair, tokens)


def by_both(pair: ModelPair, tokens: int) -> Scorer:
    return JoinedScorer(AttentionScorer())


def by_attention(pair: ModelPair, tokens: int) -> Scorer:
    return AttentionScorer()


@pytest.fixture
def chosen() -> Chosen:
    return Chosen()


@pytest.fixture
def driver(chosen: Chosen) -> Iterator[Driver]:
    driver = Driver(64, choose_scorer=chosen)
    driver.load(target_path(), draft_path())
    yield driver
    driver.close()


@pytest.fixture
def selected(driver: Driver, chosen: Chosen) -> Select:
    def selected(wanted: ChooseScorer) -> Spans:
        chosen.wanted = wanted
        message = Message(Role.USER, REWORDED, (DOCUMENT,))
        ask = replace(question(Mode.SPARSE, 0.2, tokens=2), messages=(message,))
        finished = driver.answer(ask)
        assert finished.statistics
        assert finished.statistics.fallback is None
        assert finished.statistics.reading is Reading.SPARSE
        return tuple((text.start, text.end) for text in driver.of(Selected)[-1].texts)

    return selected


def test_it_finds_a_passage_asked_about_in_other_words(selected: Select) -> None:
    at = DOCUMENT.text.index(PASSAGE)
    spans = selected(by_both)
    assert any(start <= at and at + len(PASSAGE) <= end for start, end in spans)


def test_it_is_the_default_where_the_draft_costs_more(
    selected: Select, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = selected(by_attention)
    assert selected(choose_scorer) == alone
    monkeypatch.setattr(choice, "JOINED_FROM", 0)
    assert selected(choose_scorer) == selected(by_both) != alone


def test_a_prompt_beyond_the_small_drafts_reach_is_scored_by_both(
    selected: Select, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, alone = selected(by_both), selected(by_attention)
    assert selected(choose_scorer) == alone
    monkeypatch.setattr(choice, "ALONE_UP_TO", 100)
    assert selected(choose_scorer) == joined != alone


def test_without_memory_for_the_encoder_attention_decides(
    selected: Select, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = selected(by_attention)
    monkeypatch.setattr(choice, "ENCODER_BYTES", memory.free() + (1 << 40))
    assert selected(by_both) == alone


def test_progress_never_goes_back_and_esc_stops_it(driver: Driver, selected: Select) -> None:
    selected(by_both)
    done = [e.done for e in driver.of(PhaseProgress) if e.phase is Phase.SCORE]
    assert done == sorted(done)
    assert done[-1] > 0
    driver.cancel_when(lambda e: isinstance(e, PhaseProgress) and e.phase is Phase.SCORE)
    ask = question(Mode.SPARSE, 0.2)
    other = Document("other", LICENCE[:8000])
    finished = driver.answer(replace(ask, messages=(Message(Role.USER, REWORDED, (other,)),)))
    assert finished.finish_reason is FinishReason.CANCELLED


def test_a_turn_that_was_stopped_selects_the_same_again(driver: Driver, chosen: Chosen) -> None:
    chosen.wanted = by_both

    def ask(conversation: str) -> Ask:
        message = Message(Role.USER, REWORDED, (DOCUMENT,))
        asked = question(Mode.SPARSE, 0.3)
        return replace(asked, messages=(message,), conversation=conversation)

    def spans() -> tuple[tuple[int, int], ...]:
        return tuple((span.start, span.end) for span in driver.of(Selected)[-1].spans)

    driver.engine.send(CachePolicy(BackgroundPolicy.OFF, share_prefixes=False))
    whole = driver.answer(ask("whole"))
    expected = spans()
    driver.cancel_when(
        lambda e: isinstance(e, PhaseProgress) and e.phase is Phase.PREFILL and e.done > 100
    )
    assert driver.answer(ask("stopped")).finish_reason is FinishReason.CANCELLED
    driver.on_event = lambda event: None
    again = driver.answer(ask("stopped"))
    assert again.statistics
    assert again.statistics.reused_tokens > 100
    assert spans() == expected
    assert again.generated_ids == whole.generated_ids

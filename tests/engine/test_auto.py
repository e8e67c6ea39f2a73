"""Automatic keep, selecting again with another keep, and auto mode's guard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.memory import cache_pool
from app.engine.turn import preparation
from app.engine.turn.costs import MIN_ANSWERS
from app.engine.turn.decode import is_unsure
from app.engine.turn.turn_estimate import MIN_KEEP, TurnEstimate
from app.protocol.commands import Ask, CachePolicy, DropConversation
from app.protocol.cost_model import Costs
from app.protocol.events import Planned, Selected
from app.protocol.options import AUTO_KEEP, DEFAULT_KEEP_RATIO, BackgroundPolicy, Mode, Tuning
from app.protocol.prompt import Document, Message, Role
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Reading
from tests import tiny
from tests.engine.driver import TEXT, Driver, question
from tests.engine.test_cache_pool import ask
from tests.tables import slow, table

ASK = replace(question(keep=AUTO_KEEP), conversation="x")


def test_events_report_the_chosen_keep(loaded: Driver) -> None:
    found = loaded.figures(ASK)
    selected = loaded.of(Selected)[-1]
    assert 0 < found.keep_ratio < 1
    assert selected.keep_ratio == found.keep_ratio == selected.auto_keep
    requested, chosen = found.reasons
    assert requested.code is ReasonCode.SPARSE_REQUESTED
    assert chosen == Reason(ReasonCode.KEEP_CHOSEN, {"keep": found.keep_ratio})
    assert loaded.of(Planned)[-1].keep_ratio == AUTO_KEEP


@pytest.mark.slow
def test_a_lower_threshold_keeps_more(loaded: Driver) -> None:
    keeps = [
        loaded.figures(replace(ASK, conversation=None, tuning=Tuning(keep_above=above))).keep_ratio
        for turn, above in enumerate((0.9, 0.3, 0.01), 1)
    ]
    assert keeps == sorted(keeps)
    assert keeps[0] < keeps[-1]


def test_previewing_another_keep_reports_the_automatic_one(loaded: Driver) -> None:
    chosen = loaded.figures(ASK).keep_ratio
    loaded.engine.reselect(loaded.turn, 0.6)
    preview = loaded.until(Selected)
    assert (preview.keep_ratio, preview.auto_keep) == (0.6, chosen)
    loaded.engine.reselect(loaded.turn, AUTO_KEEP)
    assert loaded.until(Selected).keep_ratio == chosen


def test_automatic_keep_recalls_all_relevant_tokens_of_earlier_turns(loaded: Driver) -> None:
    """At a fixed keep it would recall only a share of keep."""
    first = loaded.figures(ASK)
    later = replace(question(keep=AUTO_KEEP), conversation="x")
    message = replace(later.messages[0], text="What is the code of gate 30?")
    later = replace(later, messages=(message,))
    loaded.run(later)
    selected = loaded.of(Selected)[-1]
    assert selected.auto_keep is not None
    alone = loaded.figures(replace(later, conversation="y"))
    fresh = {p for span in loaded.of(Selected)[-1].spans for p in range(span.start, span.end)}
    reread = {p for span in selected.spans for p in range(span.start, span.end)}
    assert fresh <= reread
    assert alone.read_tokens <= first.read_tokens + len(fresh)


@pytest.mark.parametrize(("most", "seconds"), [(0.02, 0.0), (0.02, 10.0)])
def test_free_memory_limits_automatic_keep(
    most: float, seconds: float, loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TurnEstimate, "max_keep", lambda *_: most)
    found = loaded.figures(replace(ASK, within_seconds=seconds))
    wanted = loaded.of(Selected)[-1].auto_keep
    assert found.keep_ratio == most
    data = {"wanted": wanted, "keep": 0.02, "timed": seconds > 0}
    assert Reason(ReasonCode.KEEP_LIMITED, data) in found.reasons


def test_the_time_limit_limits_automatic_keep(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With costs at which reading everything takes 99 seconds."""
    found: dict[float, float] = {}

    def spy(self: TurnEstimate, costs: Costs, waited: float, of=TurnEstimate.max_keep) -> float:
        monkeypatch.setattr(TurnEstimate, "_sparse_ttft", lambda self, costs, keep: 99 * keep)
        for seconds in (0.0, 5.0, 20.0, 500.0):
            estimate = replace(self, ask=replace(self.ask, within_seconds=seconds))
            found[seconds] = of(estimate, costs, 0.0)
        found[-1] = of(replace(self, ask=replace(self.ask, within_seconds=5.0)), costs, 20.0)
        return 1.0

    monkeypatch.setattr(TurnEstimate, "max_keep", spy)
    loaded.run(ASK)
    assert found == {0.0: 1.0, 5.0: 0.05, 20.0: 0.2, 500.0: 1.0, -1: MIN_KEEP}


def test_before_scoring_the_default_keep_is_assumed() -> None:
    assert ASK.expected_keep == DEFAULT_KEEP_RATIO
    assert replace(ASK, keep_ratio=0.3).expected_keep == 0.3


def test_the_next_turn_is_predicted_at_the_last_automatic_keep(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TurnEstimate, "_sparse_ttft", lambda self, costs, keep: 10_000 * keep)
    ask = replace(ASK, tuning=Tuning(keep_above=0.95))
    chosen = loaded.figures(ask).keep_ratio
    assert loaded.of(Planned)[-1].ttft == pytest.approx(2_000, rel=0.05)
    assert chosen < DEFAULT_KEEP_RATIO
    loaded.run(ask)
    assert loaded.of(Planned)[-1].ttft == pytest.approx(10_000 * chosen, rel=0.05)


@pytest.mark.parametrize("name", ["qwen3_5", slow("qwen3")])
def test_models_with_and_without_recurrent_layers_can_read_on(
    name: str, driver: Driver, tmp_path: Path
) -> None:
    driver.load(tiny.save(tmp_path / "target", name, 0), tiny.save(tmp_path / "draft", "qwen3", 1))
    found = driver.figures(question())
    assert Reason(ReasonCode.CANNOT_INSERT) not in found.reasons
    assert found.confidence is not None
    assert 0 < found.confidence < 1


def test_without_free_memory_nothing_is_recalled_while_answering(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TurnEstimate, "can_recall", lambda self, count: False)
    ask = replace(question(), keep_ratio=0.1)
    no_memory = Reason(ReasonCode.NO_MEMORY_TO_READ_ON)
    assert no_memory in loaded.figures(ask).reasons
    anyway = loaded.figures(replace(ask, skip_memory_check=True))
    assert no_memory not in anyway.reasons


@pytest.mark.slow
def test_an_unusually_unsure_answer_is_flagged_after_sparse_reading(loaded: Driver) -> None:
    """The usual confidence is set, because a random model is never confident."""
    sparse = replace(question(), keep_ratio=0.1)
    full = replace(sparse, mode=Mode.FULL)
    assert not loaded.figures(sparse).unsure, "nothing is known yet"
    for _ in range(MIN_ANSWERS):
        last = loaded.figures(sparse)
    assert not last.unsure, "as sure as always"
    costs = loaded.engine._loaded.costs
    costs._stored.confidences[:] = [0.99] * MIN_ANSWERS
    assert loaded.figures(sparse).unsure
    assert not loaded.figures(full).unsure, "there is nothing else to read"


@table(
    "own, usual, unsure",
    [
        (0.89, 0.99, True),
        (0.91, 0.99, False),
        (0.5, 0.6, False),
        (0.3, 0.6, True),
        (None, 0.9, False),
        (0.1, None, False),
    ],
)
def test_unsure_is_relative_to_the_models_own_usual_confidence(
    own: float | None, usual: float | None, unsure: bool
) -> None:
    assert is_unsure(own, usual) == unsure


def _asked(text: str, mode: Mode) -> Ask:
    message = Message(Role.USER, text, (Document("gates.txt", TEXT),))
    return replace(question(mode=mode, tokens=2), messages=(message,))


def test_auto_mode_reads_counting_questions_in_full(loaded: Driver) -> None:
    statistics = loaded.figures(_asked("How many gates are there?", Mode.AUTO))
    planned = loaded.of(Planned)[-1]
    assert statistics.reading is planned.reading is Reading.DENSE
    assert (planned.guard,) == planned.reasons == statistics.reasons
    assert planned.guard == Reason(ReasonCode.NEEDS_EVERY_TOKEN, {"words": "how many"})


def test_the_guard_does_not_affect_other_questions_or_modes(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.estimate.plan.MIN_SKIPPABLE", 0)
    monkeypatch.setattr("app.estimate.plan.sparse_pays", lambda sparse, full: True)
    for text, mode in (
        ("What is the code of gate 7?", Mode.AUTO),
        ("How many gates are there?", Mode.SPARSE),
    ):
        statistics = loaded.figures(_asked(text, mode))
        assert statistics.reading is Reading.SPARSE
        assert loaded.of(Planned)[-1].guard is None


QUESTION = "What is the code of gate 7?"


def test_scores_survive_turns_of_other_conversations(loaded: Driver) -> None:
    policy = CachePolicy(BackgroundPolicy.OFF, memory_budget=1)
    loaded.engine.send(policy)
    loaded.answer(ask(QUESTION, name="app"))
    first = loaded.turn
    loaded.answer(ask(QUESTION, name="guest", on_disk=False))
    assert [*loaded.engine._loaded.caches._caches] == ["guest"], "its cache is not needed"  # type: ignore[union-attr]
    for turn in (first, loaded.turn):
        loaded.engine.reselect(turn, 0.5)
        selected = loaded.until(Selected)
        assert (selected.turn, selected.keep_ratio) == (turn.number, 0.5)


def test_the_conversation_that_asks_is_the_last_to_be_dropped(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while its prompt is built."""
    for name in "ab":
        loaded.answer(ask(QUESTION, name=name))
    build, last = preparation._build_prompt, list[str]()

    def noted(*arguments: Any) -> Any:
        last.append(next(reversed(loaded.engine._loaded.caches._caches)))
        return build(*arguments)

    monkeypatch.setattr(preparation, "_build_prompt", noted)
    loaded.answer(ask(QUESTION, name="a"))
    assert last == ["a"]


def test_scores_of_a_deleted_conversation_are_dropped(loaded: Driver) -> None:
    loaded.answer(ask(QUESTION, name="a"))
    caches = loaded.engine._loaded.caches
    assert "a" in caches.scored
    loaded.engine.send(DropConversation("a"))
    loaded.answer(ask(QUESTION, name=None))
    assert "a" not in caches.scored
    assert None in caches.scored


def test_the_number_of_stored_scores_is_limited(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_pool, "MAX_CONVERSATIONS", 2)
    for name in "abca":
        loaded.answer(ask(QUESTION, name=name))
    assert list(loaded.engine._loaded.caches.scored) == ["c", "a"]

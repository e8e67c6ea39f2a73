"""Another keep is tried on a conversation's last answer, whatever was asked elsewhere since."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from app.engine.turn.scored_turns import MOST_SCORED, ScoredTurns
from app.protocol.commands import CachePolicy, DropConversation
from app.protocol.events import Selected
from app.protocol.options import BackgroundPolicy
from tests.engine.driver import Driver
from tests.engine.test_cache_pool import ask

QUESTION = "What is the code of gate 7?"


def test_a_turn_of_another_conversation_leaves_it_to_be_selected_from(loaded: Driver) -> None:
    policy = CachePolicy(BackgroundPolicy.OFF, memory_budget=1)
    loaded.engine.send(policy)
    loaded.answer(ask(1, QUESTION, name="app"))
    first = loaded.turn
    loaded.answer(ask(2, QUESTION, name="guest", on_disk=False))
    assert [*loaded.engine._loaded.caches._caches] == ["guest"], "its cache is not needed"  # type: ignore[union-attr]
    for turn in (first, loaded.turn):
        loaded.engine.reselect(turn, 0.5)
        selected = loaded.until(Selected)
        assert isinstance(selected, Selected)
        assert (selected.turn, selected.keep_ratio) == (turn.number, 0.5)


def test_nothing_of_a_deleted_conversation_is_held(loaded: Driver) -> None:
    loaded.answer(ask(1, QUESTION, name="a"))
    assert loaded.engine._scored.find(1)
    loaded.engine.send(DropConversation("a"))
    loaded.answer(ask(2, QUESTION, name=None))
    assert loaded.engine._scored.find(1) is None
    assert loaded.engine._scored.find(2)


def test_they_are_limited_and_the_last_of_a_number_counts() -> None:
    turns = ScoredTurns()

    def scored(turn: int) -> Any:
        return SimpleNamespace(turn=turn)

    for number in range(MOST_SCORED + 10):
        turns.set(str(number), scored(number))
    assert turns.find(9) is None
    assert turns.find(10)
    turns.set("10", again := scored(7000))
    turns.set("11", other := scored(7000))
    assert turns.find(7000) is other
    turns.set("10", again)
    assert turns.find(7000) is again
    turns.set("10", None)
    assert turns.find(7000) is other
    turns.clear()
    assert turns.find(7000) is None

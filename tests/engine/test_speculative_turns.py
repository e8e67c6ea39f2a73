"""Whole turns with speculative decoding, by copies and by a draft."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.model.speculation import DRAFTED, Gate, Proposal
from app.protocol.commands import Ask
from app.protocol.events import Finished, PhaseProgress, Token
from app.protocol.options import Sampling
from app.protocol.prompt import Message, Role
from app.protocol.stats import FinishReason, Phase
from tests import tiny
from tests.engine.driver import TEXT, Driver, question
from tests.tables import slow

WRITTEN = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Driver]:
    """The draft is the target itself, so most proposals are accepted."""

    def always(self: Gate, kind: int, available: int) -> Proposal:
        return Proposal(2.0 + (kind == DRAFTED), min(available, 4))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "choose", always)
        found = Driver()
        found.load(folder, folder)
        yield found
        found.close()


def ask(keep: float, speculate: bool, *earlier: tuple[Ask, Finished], text: str = TEXT) -> Ask:
    first = question(keep=keep, text=text)
    history: tuple[Message, ...] = ()
    for asked, answer in earlier:
        written = Message(Role.ASSISTANT, answer.text, token_ids=answer.generated_ids)
        history = (*asked.messages, written)
    messages = (*history, Message(Role.USER, "And of gate 9?")) if history else first.messages
    return replace(
        first,
        messages=messages,
        sampling=Sampling(max_tokens=WRITTEN, speculate=speculate),
        conversation="gates",
    )


def scored(driver: Driver) -> list[int]:
    """Number of tokens that the draft had cached at each step."""
    return [e.done for e in driver.of(PhaseProgress) if e.phase is Phase.SCORE and e.done]


@pytest.mark.parametrize("keep", [0.3, 1.0])
def test_two_turns_are_the_same_with_and_without_speculation(loaded: Driver, keep: float) -> None:
    answers = []
    for speculate in (False, True):
        driver = loaded.fresh()
        first = ask(keep, speculate)
        one = driver.answer(first)
        two = driver.answer(ask(keep, speculate, (first, one)))
        statistics = two.statistics
        assert (statistics.proposed_tokens > 0) == speculate
        assert (statistics.accepted_tokens > 0) == speculate
        assert statistics.verified_steps <= statistics.proposed_tokens
        answers.append((one.generated_ids, two.generated_ids, scored(driver)))
    assert answers[0] == answers[1]
    assert answers[1][2][0] > 500, "the draft still has the document"


@pytest.mark.parametrize("after", [1, slow(2), slow(4), 5, slow(6), 11])
def test_the_next_turn_continues_from_a_cancel_at_any_token(loaded: Driver, after: int) -> None:
    ask_short = functools.partial(ask, 0.3, text=TEXT[:600])
    first = ask_short(True)
    loaded.cancel_when(lambda event: isinstance(event, Token))
    one = loaded.answer(first)
    loaded.on_event = lambda event: None
    assert one.finish_reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
    # Token events are coalesced, so only some of the generated and cached tokens are in them.
    one = replace(one, generated_ids=one.generated_ids[:after])
    two = loaded.answer(ask_short(True, (first, one)))
    plain = loaded.fresh().answer(ask_short(False))
    assert plain.generated_ids[: len(one.generated_ids)] == one.generated_ids
    again = loaded.answer(ask_short(False, (first, one)))
    assert two.generated_ids == again.generated_ids

"""Which earlier turns the engine sees."""

from __future__ import annotations

import pytest

from app.chat.conversation import Conversation, Question, QuestionError, Turn, TurnState
from app.protocol.events import Failed, Finished
from app.protocol.options import Mode
from app.protocol.stats import FinishReason
from tests.fakes import MEMORY_EXHAUSTED


def _over(turn: Turn, text: str = "", ended: FinishReason = FinishReason.STOP) -> Turn:
    turn.apply(Finished(turn.number, ended, text, (1, 2) if text else (), None))
    return turn


def _texts(conversation: Conversation) -> list[str]:
    _, ask = conversation.start_turn(Question("next?"))
    return [message.text for message in ask.messages[:-1]]


def test_questions_and_answers_go_before_the_next_question() -> None:
    conversation = Conversation()
    _over(conversation.start_turn(Question("one?"))[0], "1")
    assert _texts(conversation) == ["one?", "1"]


def test_a_failed_turn_is_left_out_and_a_stopped_one_stays() -> None:
    conversation = Conversation()
    turn, _ = conversation.start_turn(Question("too long?"))
    turn.apply(Failed(turn.number, MEMORY_EXHAUSTED))
    _over(conversation.start_turn(Question("two?"))[0], "half an ans", FinishReason.CANCELLED)
    assert _texts(conversation) == ["two?", "half an ans"]


def _answered_and_asked_again() -> tuple[Conversation, Turn]:
    conversation = Conversation()
    first = _over(conversation.start_turn(Question("one?"))[0], "good")
    again, ask = conversation.start_turn(Question("one?", mode=Mode.FULL), retry_of=first)
    assert [m.text for m in ask.messages] == ["one?"], "asked as if for the first time"
    return conversation, again


def test_an_answer_given_again_takes_the_old_ones_place() -> None:
    conversation, again = _answered_and_asked_again()
    _over(again, "better")
    assert _texts(conversation) == ["one?", "better"]


def test_a_second_try_that_fails_or_is_stopped_leaves_the_old_answer() -> None:
    conversation, again = _answered_and_asked_again()
    again.apply(Failed(again.number, MEMORY_EXHAUSTED))
    assert _texts(conversation) == ["one?", "good"]
    conversation, again = _answered_and_asked_again()
    _over(again, "half", FinishReason.CANCELLED)
    assert again.state is TurnState.STOPPED
    assert _texts(conversation) == ["one?", "good"]


def test_a_third_try_still_replaces_the_first() -> None:
    conversation, again = _answered_and_asked_again()
    _over(again, "", FinishReason.CANCELLED)
    third, _ = conversation.start_turn(Question("one?"), retry_of=again)
    _over(third, "best")
    assert _texts(conversation) == ["one?", "best"]


def test_half_an_answer_is_better_than_a_failure() -> None:
    conversation = Conversation()
    first, _ = conversation.start_turn(Question("one?"))
    first.apply(Failed(first.number, MEMORY_EXHAUSTED))
    again, _ = conversation.start_turn(Question("one?"), retry_of=first)
    _over(again, "half", FinishReason.CANCELLED)
    assert _texts(conversation) == ["one?", "half"]


@pytest.mark.parametrize("question", [Question(" \n"), Question("q", keep=2), Question("\udc80")])
def test_what_cannot_be_asked(question: Question) -> None:
    with pytest.raises(QuestionError):
        question.check()

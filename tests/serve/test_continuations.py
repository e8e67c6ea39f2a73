"""A request that continues an earlier one uses its cache, and its answer's ids."""

from __future__ import annotations

from app.protocol.prompt import Message, Role
from app.serve.answers import MOST, Continuations


def user(text: str) -> Message:
    return Message(Role.USER, text)


def said(text: str, ids: tuple[int, ...] | None = None) -> Message:
    return Message(Role.ASSISTANT, text, token_ids=ids)


def test_the_next_turn_continues_with_the_ids_of_the_answer() -> None:
    known = Continuations()
    name, messages, _ = known.place((user("one"),))
    known.answered(name, messages, said("two", (1, 2)))
    again, messages, dropped = known.place((user("one"), said("two"), user("three")))
    assert (again, dropped) == (name, None)
    assert messages == (user("one"), said("two", (1, 2)), user("three"))


def test_another_answer_or_another_question_is_another_conversation() -> None:
    known = Continuations()
    name, messages, _ = known.place((user("one"),))
    known.answered(name, messages, said("two", (1, 2)))
    assert known.place((user("one"), said("other"), user("three")))[0] != name
    assert known.place((user("else"),))[0] != name


def test_the_least_recently_used_is_dropped() -> None:
    known = Continuations()
    names = []
    for number in range(MOST):
        name, messages, dropped = known.place((user(f"question {number}"),))
        known.answered(name, messages, said("answer", ()))
        names.append(name)
        assert dropped is None
    assert known.place((user("question 0"), said("answer"), user("more")))[0] == names[0]
    assert known.place((user("one more"),))[2] == names[1]

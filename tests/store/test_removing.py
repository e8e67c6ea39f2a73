"""Deleting messages and undoing that; what else the fourth schema keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.protocol.prompt import Role
from app.store.records import State, StoreError
from app.store.store import Store
from tests.store.samples import answered, attach, versions


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


def texts(store: Store) -> list[str]:
    return [message.text for message in store.branch(1)]


def three_turns(store: Store) -> None:
    store.create()
    for number in range(3):
        asked = store.add_message(1, Role.USER, f"Question {number}?")
        reply = store.begin_reply(asked.id)
        reply.append(f"Answer {number}.")
        reply.finish()


def test_a_message_goes_with_all_that_follows_and_comes_back(store: Store) -> None:
    three_turns(store)
    before = store.branch(1)
    removed = store.delete_message(before[2].id)
    assert removed.messages == tuple(message.id for message in before[2:])
    assert texts(store) == ["Question 0?", "Answer 0."]
    assert store.search("Answer")
    assert not store.search("Question 2")
    assert len(store.tree(1).messages) == 2
    assert store.sizes()[1].questions == 1
    store.restore_messages(removed)
    assert store.branch(1) == before
    assert store.search("Question 2")


def test_a_title_goes_and_comes_with_the_question_that_gave_it(store: Store) -> None:
    three_turns(store)
    first, *_ = store.branch(1)
    removed = store.delete_message(first.id)
    assert store.conversation(1).title == ""
    store.restore_messages(removed)
    assert store.conversation(1).title == "Question 0?"
    store.delete_message(first.id)
    store.add_message(1, Role.USER, "Another?")
    assert store.conversation(1).title == "Another?"


@pytest.mark.parametrize("renamed", [True, False])
def test_a_title_stays_that_was_given_or_has_questions(store: Store, renamed: bool) -> None:
    three_turns(store)
    if renamed:
        store.rename(1, "Lease")
    store.delete_message(store.branch(1)[0 if renamed else 2].id)
    assert store.conversation(1).title == ("Lease" if renamed else "Question 0?")


def test_where_there_is_another_version_that_is_current_then(store: Store) -> None:
    three_turns(store)
    second = store.branch(1)[2]
    edited = store.edit(second.id, "Otherwise?")
    assert store.forks(1) == dict.fromkeys((second.id, edited.id), (second.id, edited.id))
    removed = store.delete_message(edited.id)
    assert texts(store)[2:] == ["Question 1?", "Answer 1.", "Question 2?", "Answer 2."]
    assert store.forks(1) == {}
    assert versions(store, second.id) == (second.id,)
    store.restore_messages(removed)
    assert texts(store)[2:] == ["Otherwise?"]


def test_what_is_not_on_the_current_branch_goes_and_that_stays(store: Store) -> None:
    three_turns(store)
    before = store.branch(1)
    edited = store.edit(before[0].id, "Otherwise?")
    store.set_branch(before[0].id)
    store.delete_message(edited.id)
    assert store.branch(1) == before


def test_a_conversation_may_be_left_empty_and_gone_on_with(store: Store) -> None:
    three_turns(store)
    removed = store.delete_message(store.branch(1)[0].id)
    assert texts(store) == []
    store.add_message(1, Role.USER, "New?")
    store.restore_messages(removed)
    assert len(texts(store)) == 6
    assert len(store.tree(1).messages) == 7


def test_what_was_deleted_within_stays_deleted(store: Store) -> None:
    three_turns(store)
    store.delete_message(store.branch(1)[4].id)
    removed = store.delete_message(store.branch(1)[2].id)
    store.restore_messages(removed)
    assert texts(store)[2:] == ["Question 1?", "Answer 1."]


def test_it_expires_with_the_trash(tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    with Store(tmp_path, clock=lambda: now) as store:
        answered(store)
        removed = store.delete_message(store.branch(1)[0].id)
        sha256 = attach(store).sha256
    with Store(tmp_path, clock=lambda: now + timedelta(days=31)) as store:
        with pytest.raises(StoreError, match="no longer exists"):
            store.restore_messages(removed)
        assert texts(store) == []
    assert not list((tmp_path / "attachments").rglob(f"{sha256[2:]}*"))


def test_pins_and_cut_answers_are_kept_and_exported(store: Store) -> None:
    store.create()
    document = replace(attach(store), pinned=((1, 5),))
    asked = store.add_message(1, Role.USER, "Who?", [document, attach(store, "Letter", "letter")])
    store.pin_passages(asked.id, {1: ((0, 2), (3, 4))})
    assert [a.pinned for a in store.message(asked.id).attachments] == [((1, 5),), ((0, 2), (3, 4))]
    reply = store.begin_reply(asked.id)
    reply.append("Half")
    reply.end(State.DONE, truncated=True).result()
    assert [message.truncated for message in store.branch(1)] == [False, True]
    copy = store.duplicate(1)
    question, answer = store.branch(copy.id)
    assert (question.attachments[1].pinned, answer.truncated) == (((0, 2), (3, 4)), True)

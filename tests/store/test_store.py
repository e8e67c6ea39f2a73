"""Conversations, messages and runs, as the rest of the app sees them."""

from __future__ import annotations

import gc
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from app.protocol.prompt import Origin, Role
from app.protocol.reasons import too_long
from app.store.records import (
    AttachmentRecord,
    ConversationSize,
    DraftRecord,
    EarlierVersion,
    ReadMap,
    ReplyEnd,
    State,
    StoreError,
    quantise,
)
from app.store.store import Store
from tests.store.samples import DOCUMENT, all_texts, answer_stats, answered, attach, versions
from tests.tables import table


def texts(store: Store, conversation: int = 1, limit: int | None = None) -> list[str]:
    return [message.text for message in store.branch(conversation, limit)]


def test_everything_about_an_answer_comes_back(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        conversation = answered(store)
    with Store(tmp_path) as store:
        assert store.notices == []
        question, answer = store.branch(conversation)
        read_map = store.read_map(answer.id)
        assert store.text(question.attachments[0]).startswith("The tenant pays.\n")
    assert (question.role, question.text, question.token_ids) == (Role.USER, "Who pays?", None)
    assert [(a.name, a.size) for a in question.attachments] == [("contract.txt", 3050)]
    assert (answer.role, answer.state, answer.text) == (Role.ASSISTANT, State.DONE, "The tenant.")
    assert answer.parent == question.id
    assert answer.token_ids == (1, 70_000, 2**32 - 1)
    assert answer.stats == answer_stats()
    assert answer.created_at.tzinfo is UTC
    assert isinstance(read_map, ReadMap)
    assert [span.score for span in read_map.spans] == [None, 2.5]
    assert [(text.message, text.start) for text in read_map.texts] == [
        (question.id, 4),
        (question.id, 17),
    ]
    assert read_map.importance == bytes([0, 128, 255])


def test_the_figures_of_all_answers_newest_first(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        assert store.answer_stats() == ()
        for seed in (1, 2, 3):
            question = store.add_message(store.create().id, Role.USER, "?")
            store.begin_reply(question.id).finish(answer_stats(seed=seed))
        assert [each.seed for each in store.answer_stats()] == [3, 2, 1]
        assert [each.seed for each in store.answer_stats(limit=2)] == [3, 2]
    database = sqlite3.connect(tmp_path / "conversations.db")
    database.execute("UPDATE runs SET phases = 'damaged' WHERE seed = '2'")
    database.commit()
    database.close()
    with Store(tmp_path) as store:
        assert [each.seed for each in store.answer_stats()] == [3, 1]


def test_a_message_without_a_read_map_has_none(store: Store) -> None:
    conversation = store.create()
    assert store.read_map(store.add_message(conversation.id, Role.USER, "x").id) is None


def test_importance_is_kept_in_255ths_of_the_highest() -> None:
    assert quantise([0.0, 2.0, 4.0, -1.0]) == bytes([0, 128, 255, 0])
    assert quantise([0.0, 0.0]) == bytes(2)
    assert quantise([]) == b""


@pytest.mark.parametrize(
    ("question", "title"),
    [
        ("  What are\n the termination\trights?  ", "What are the termination rights?"),
        ("word " * 30, "word " * 11 + "word…"),
        ("x" * 100, "x" * 59 + "…"),
        ("", ""),
    ],
)
def test_the_first_question_gives_the_title(store: Store, question: str, title: str) -> None:
    conversation = store.create().id
    store.add_message(conversation, Role.SYSTEM, "Be brief.")
    store.add_message(conversation, Role.USER, question)
    assert store.conversation(conversation).title == title


def test_a_title_that_was_given_stays(store: Store) -> None:
    conversation = store.create("Lease")
    store.add_message(conversation.id, Role.USER, "Who pays?")
    assert store.conversation(conversation.id).title == "Lease"


def test_the_last_used_comes_first_and_pinned_before_all(store: Store) -> None:
    first, second, third = (store.create(title).id for title in ("first", "second", "third"))
    store.add_message(first, Role.USER, "again")
    store.pin(second)
    assert [c.id for c in store.conversations()] == [second, first, third]
    store.pin(second, False)
    assert [c.id for c in store.conversations()] == [first, third, second]


def test_a_clock_that_was_moved_back_changes_no_order(tmp_path: Path) -> None:
    times = [datetime(2030, 1, 1, tzinfo=UTC) - timedelta(days=400 * n) for n in range(20)]
    remaining = iter(times)
    with Store(tmp_path, clock=lambda: next(remaining)) as store:
        conversations = [store.create(str(n)).id for n in range(3)]
        for text in "abc":
            store.add_message(conversations[1], Role.USER, text)
    with Store(tmp_path) as store:
        assert [c.id for c in store.conversations()] == [2, 3, 1]
        messages = store.branch(conversations[1])
        assert [message.text for message in messages] == ["a", "b", "c"]
        assert messages[0].created_at > messages[2].created_at
        store.edit(messages[0].id, "x")
        assert versions(store, messages[0].id)[0] == messages[0].id


def test_editing_and_trying_again_fork(store: Store) -> None:
    conversation = answered(store)
    question, answer = store.branch(conversation)
    edited = store.edit(question.id, "Who may terminate?")
    assert edited.attachments == question.attachments
    assert edited.parent is None
    assert texts(store, conversation) == ["Who may terminate?"]
    for text in ("The landlord.", "Both."):
        reply = store.begin_reply(edited.id)
        reply.append(text)
        reply.finish()
    assert texts(store, conversation) == ["Who may terminate?", "Both."]
    assert versions(store, edited.id) == (question.id, edited.id)
    assert len(versions(store, reply.message)) == 2
    store.set_branch(question.id)
    assert texts(store, conversation) == ["Who pays?", "The tenant."]
    assert store.conversation(conversation).current == answer.id
    store.set_branch(edited.id)
    assert texts(store, conversation) == ["Who may terminate?", "Both."]


def test_an_edit_may_take_other_documents(store: Store) -> None:
    question, _ = store.branch(answered(store))
    assert store.edit(question.id, "And now?", []).attachments == ()
    other = attach(store, "other")
    assert store.edit(question.id, "And this?", [other]).attachments == (other,)


def test_the_last_messages_of_a_branch(store: Store) -> None:
    conversation = store.create().id
    for number in range(10):
        store.add_message(conversation, Role.USER, str(number))
    assert texts(store, conversation, 3) == ["7", "8", "9"]
    assert texts(store, conversation, 50) == [str(n) for n in range(10)]
    assert texts(store, store.create().id, 3) == []


def test_what_was_asked_in_a_conversation_another_process_deleted_went_into_the_trash(
    store: Store,
) -> None:
    conversation = store.create().id

    def write(write_it: Callable[[], object]) -> None:
        store.trash(conversation)
        write_it()
        assert [c.id for c in store.conversations()] == [conversation]

    question = store.add_message(conversation, Role.USER, "Who pays?")
    write(lambda: store.add_message(conversation, Role.USER, "And when?"))
    write(lambda: store.edit(question.id, "Who does not?"))
    reply = store.begin_reply(question.id)
    reply.end(ReplyEnd(State.STOPPED)).result()
    write(lambda: store.continue_reply(reply.message, False))
    write(lambda: store.begin_reply(question.id))


def test_the_trash_and_back(store: Store) -> None:
    conversation = answered(store)
    store.trash(conversation)
    assert store.conversations() == ()
    assert [c.id for c in store.conversations(trashed=True)] == [conversation]
    store.restore(conversation)
    assert [c.id for c in store.conversations()] == [conversation]
    assert store.conversations(trashed=True) == ()
    assert len(store.branch(conversation)) == 2


def test_what_is_in_the_trash_for_long_goes_with_its_documents(tmp_path: Path) -> None:
    def opened(days: float) -> Store:
        return Store(tmp_path, clock=lambda: datetime(2030, 1, 1, tzinfo=UTC) + timedelta(days))

    with opened(0) as store:
        conversation = answered(store)
        kept = store.create("kept").id
        store.add_message(kept, Role.USER, "x", [attach(store, "another")])
        store.trash(conversation)
    files = tmp_path / "attachments"
    with opened(29.9) as store:
        assert len(store.conversations(trashed=True)) == 1
        assert len(list(files.rglob("*.gz"))) == 2
    with opened(30.1) as store:
        assert store.conversations(trashed=True) == ()
        assert [c.id for c in store.conversations()] == [kept]
        assert store.search("tenant") == ()
        assert len(list(files.rglob("*.gz"))) == 1
        with pytest.raises(StoreError, match="no longer exists"):
            store.conversation(conversation)
        assert store.create().id > kept  # ids of what has gone never come back
    with sqlite3.connect(tmp_path / "conversations.db") as connection:
        connection.execute("INSERT INTO message_text(message_text) VALUES ('integrity-check')")


def test_emptying_the_trash(store: Store) -> None:
    kept, deleted = store.create("kept").id, answered(store)
    store.trash(deleted)
    store.empty_trash()
    assert store.conversations(trashed=True) == ()
    assert [c.id for c in store.conversations()] == [kept]


def test_a_duplicate_is_the_same_but_for_its_name_and_ids(store: Store) -> None:
    conversation = answered(store)
    question, answer = store.branch(conversation)
    store.edit(question.id, "Another version")
    store.set_branch(question.id)
    store.pin(conversation)
    copy = store.duplicate(conversation)
    assert copy.title == "Who pays? (copy)"
    assert not copy.pinned
    copied_question, copied_answer = store.branch(copy.id)
    assert copied_answer.id > answer.id
    assert copied_answer.stats == answer.stats
    assert copied_answer.token_ids == answer.token_ids
    assert copied_question.attachments == question.attachments
    assert len(versions(store, copied_question.id)) == 2
    copied_map, read_map = store.read_map(copied_answer.id), store.read_map(answer.id)
    assert copied_map is not None
    assert read_map is not None
    assert copied_map.spans == read_map.spans
    assert {text.message for text in copied_map.texts} == {copied_question.id}
    store.trash(conversation)
    store.empty_trash()
    assert len(store.branch(copy.id)) == 2


def test_a_reply_that_is_being_written_is_seen_as_partial(store: Store) -> None:
    conversation = store.create().id
    question = store.add_message(conversation, Role.USER, "x")
    reply = store.begin_reply(question.id)
    reply.append("Half", [1])
    assert store.message(reply.message).state is State.PARTIAL
    copy = store.duplicate(conversation).id
    assert store.branch(copy)[-1].state is State.STOPPED
    reply.end(ReplyEnd(State.STOPPED, answer_stats(generated_tokens=1))).result()
    ended = store.message(reply.message)
    assert (ended.state, ended.text, ended.token_ids) == (State.STOPPED, "Half", (1,))
    assert ended.stats is not None
    with pytest.raises(RuntimeError, match="has ended"):
        reply.append("more")
    with pytest.raises(RuntimeError, match="has ended"):
        reply.finish()


def test_a_reply_that_failed_keeps_why(store: Store) -> None:
    question = store.add_message(store.create().id, Role.USER, "x")
    reply = store.begin_reply(question.id)
    failure = too_long(900, "tiny", 500)
    reply.end(ReplyEnd(State.FAILED, failure=failure)).result()
    failed = store.message(reply.message)
    assert (failed.state, failed.failure) == (State.FAILED, failure)


def test_an_answer_that_nobody_writes_any_more_ends_with_the_store(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        conversation = store.create().id
        store.begin_reply(store.add_message(conversation, Role.USER, "x").id)
        gc.collect()
    with Store(tmp_path) as store:
        assert store.notices == []
        assert store.branch(conversation)[1].state is State.STOPPED


def test_closing_stops_what_is_being_written(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        conversation = store.create().id
        reply = store.begin_reply(store.add_message(conversation, Role.USER, "x").id)
        reply.append("Half")
    store.close()  # a second time, harmlessly
    with Store(tmp_path) as store:
        assert store.notices == []
        assert store.branch(conversation)[-1].text == "Half"
        assert store.branch(conversation)[-1].state is State.STOPPED


def test_after_closing_nothing_is_taken(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.close()
    with pytest.raises(StoreError, match="are closed"):
        store.create()


def test_a_reply_to_what_has_gone_says_so(store: Store) -> None:
    conversation = store.create().id
    reply = store.begin_reply(store.add_message(conversation, Role.USER, "x").id)
    store.trash(conversation)
    store.empty_trash()
    with pytest.raises(StoreError, match="no longer exists"):
        reply.finish()


@table("text", ["a\0b", "\x1b[31m", "naïve 中文 🙂", "\u202eabc", "\r\n\x0c\u2028"])
def test_any_text_comes_back_as_it_was(store: Store, text: str) -> None:
    conversation = store.create().id
    store.add_message(conversation, Role.USER, text)
    assert store.branch(conversation)[0].text == text


def test_half_a_character_is_refused_and_nothing_kept(store: Store) -> None:
    conversation = store.create().id
    for attempt in (
        lambda: store.add_message(conversation, Role.USER, "\ud800"),
        lambda: store.rename(conversation, "\ud800"),
        lambda: attach(store, "x", name="\ud800"),
    ):
        with pytest.raises(StoreError, match="not valid Unicode"):
            attempt()
    assert store.branch(conversation) == ()


def test_many_threads_write_and_read_at_once(store: Store, tmp_path: Path) -> None:
    def chat(name: str) -> None:
        conversation = store.create(name).id
        for number in range(10):
            store.add_message(conversation, Role.USER, f"{name}{number}")
            assert texts(store, conversation, 1) == [f"{name}{number}"]

    threads = [threading.Thread(target=chat, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert sorted(all_texts(tmp_path)) == sorted(f"{n}{i}" for n in "abcd" for i in range(10))


def test_each_conversation_has_its_draft_and_a_new_one_too(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        id = answered(store)
        assert store.last_draft() is None
        assert store.draft(id) == DraftRecord(id)
        written = DraftRecord(
            id, "And who\npays?", (attach(store, "new", "new.txt"),), "sparse", 0.3, "{}"
        )
        store.save_draft(DraftRecord(id, "And"))
        store.save_draft(DraftRecord(None, "New"))
        store.save_draft(written)
    with Store(tmp_path) as store:
        assert (store.draft(id), store.draft(None)) == (written, DraftRecord(None, "New"))
        assert store.last_draft() == written
        assert store.text(written.attachments[0]) == "new", "its document survives a start"
        store.save_draft(DraftRecord(None))
        assert store.last_draft() == DraftRecord(None)


def test_a_document_goes_with_the_last_draft_that_has_it(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        attachment = attach(store, "new")
        store.save_draft(DraftRecord(None, "", (attachment,)))
        store.save_draft(DraftRecord(None))
    with Store(tmp_path) as store, pytest.raises(StoreError):
        store.text(attachment)


def test_a_draft_goes_with_its_conversation(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        id = answered(store)
        store.save_draft(DraftRecord(id, "And?"))
        store.trash(id)
        assert store.last_draft() is None
        store.restore(id)
        assert store.last_draft() == DraftRecord(id, "And?")
        store.trash(id)
        store.empty_trash()
        assert store.last_draft() is None
        with pytest.raises(StoreError):
            store.save_draft(DraftRecord(id, "And?"))


def test_a_draft_without_its_document_is_not_kept(tmp_path: Path) -> None:
    with Store(tmp_path) as store, pytest.raises(StoreError, match="attach it again"):
        store.save_draft(DraftRecord(None, "", (AttachmentRecord("0" * 64, "gone.txt", 3),)))


def test_sizes(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        first, second = answered(store), answered(store)
        store.create()
        store.add_message(first, Role.USER, "Two?", [attach(store, "12345"), attach(store, "1")])
        document = len(DOCUMENT.encode())
        assert store.sizes() == {
            first: ConversationSize(2, document + 6),
            second: ConversationSize(1, document),
        }


def three_turns(store: Store) -> None:
    store.create()
    for number in range(3):
        asked = store.add_message(1, Role.USER, f"Question {number}?")
        reply = store.begin_reply(asked.id)
        reply.append(f"Answer {number}.")
        reply.finish()


def from_file(store: Store, path: str, text: str, part: str = "") -> AttachmentRecord:
    stored = attach(store, text, path.removeprefix("/files/"))
    return replace(stored, origin=Origin(path.rstrip("/"), part=part))


def test_documents_are_listed_once_with_their_newest_version(store: Store) -> None:
    first, second, gone = (store.create().id for _ in range(3))
    tree = from_file(store, "/files/src/", "a tree")
    code = from_file(store, "/files/src/a.py", "old code")
    lease = from_file(store, "/files/lease.docx", "old rent")
    ask = partial(store.add_message, role=Role.USER, text="Who pays?")
    ask(first, attachments=[tree, code, lease])
    ask(first, attachments=[from_file(store, "/files/lease.docx", "new rent")])
    earlier = EarlierVersion(tree.name, tree.sha256)
    newer = replace(from_file(store, "/files/src/", "a newer tree"), replaces=earlier)
    ask(second, attachments=[newer, from_file(store, "/files/src/b.py", "changed only")])
    ranges = [from_file(store, "/files/a.log", text, "1,9") for text in ("line 1", "line 9")]
    ask(second, attachments=[*ranges, attach(store, "imported", "old.md")])
    ask(gone, attachments=[from_file(store, "/files/secret.txt", "x")])
    store.trash(gone)
    found = {each.label: each for each in store.documents()}
    assert {name: len(each.conversations) for name, each in found.items()} == {
        "src/": 2,
        "lease.docx": 1,
        "a.log#1,9": 1,
        "old.md": 1,
    }

    def texts_of(name: str) -> list[str]:
        known = found[name]
        return [*map(store.text, store.message(known.message).attachments[known.start : known.end])]

    assert texts_of("src/") == ["a tree", "old code"]  # all of it, not only what had changed
    assert texts_of("lease.docx") == ["new rent"]
    assert texts_of("a.log#1,9") == ["line 1", "line 9"]
    assert found["a.log#1,9"].path == "/files/a.log#1,9"
    assert (found["old.md"].path, found["old.md"].origin) == ("", None)


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
def test_a_title_stays_if_it_was_given_or_has_questions(store: Store, renamed: bool) -> None:
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
    reply.end(ReplyEnd(State.DONE, truncated=True)).result()
    assert [message.truncated for message in store.branch(1)] == [False, True]
    copy = store.duplicate(1)
    question, answer = store.branch(copy.id)
    assert (question.attachments[1].pinned, answer.truncated) == (((0, 2), (3, 4)), True)

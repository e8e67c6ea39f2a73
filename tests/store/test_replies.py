"""When what is being written gets to the disk."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from app.protocol.prompt import Role
from app.store import reply_writer
from app.store.database import Writer
from app.store.records import DamagedError, ReplyEnd, State, StoreError
from app.store.reply_writer import ReplyWriter
from app.store.store import Store


def begin(store: Store) -> ReplyWriter:
    return store.begin_reply(store.add_message(store.create().id, Role.USER, "x").id)


def wait_for(predicate: Callable[[], bool]) -> float:
    """Seconds until it holds."""
    begun = time.monotonic()
    while not predicate():
        assert time.monotonic() - begun < 30, "it never came"
        time.sleep(0.005)
    return time.monotonic() - begun


def test_one_append_is_committed_though_nothing_follows(store: Store, tmp_path: Path) -> None:
    reply = begin(store)
    reply.append("Hello", [7])
    # Another connection sees only what is committed.
    with closing(sqlite3.connect(tmp_path / "conversations.db")) as other:
        query = "SELECT text FROM messages WHERE id = ?"
        wait_for(lambda: other.execute(query, (reply.message,)).fetchone() == ("Hello",))
    partial = store.message(reply.message)
    assert (partial.state, partial.token_ids) == (State.PARTIAL, (7,))


def test_a_steady_stream_is_committed_all_along(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_writer, "FLUSH_SECONDS", 0.02)
    reply, lengths = begin(store), set[int]()
    for _ in range(10_000):
        reply.append("x")
        lengths.add(len(store.message(reply.message).text))
        if len(lengths) > 3:
            break
    assert len(lengths) > 3
    reply.finish()


def test_appending_does_not_wait_for_the_disk(store: Store) -> None:
    reply, held, release = begin(store), threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        held.set()
        assert release.wait(30)

    assert store._writer is not None
    held_back = store._writer.submit(hold)
    assert held.wait(30)
    for _ in range(1000):
        reply.append("x", [1])
    release.set()
    held_back.result(30)
    reply.finish()
    assert store.message(reply.message).text == "x" * 1000


def test_while_the_disk_is_full_nothing_is_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_writer, "FLUSH_SECONDS", 0.01)
    reply = begin(store)
    assert store._writer is not None
    (pages,) = store._writer.run(lambda c: c.execute("PRAGMA page_count").fetchone())
    # In a transaction of its own, as everything on this thread is.
    store._writer.run(lambda c: c.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    text = "word " * 20_000
    reply.append(text, range(1000))
    wait_for(lambda: reply.problem is not None)
    assert "disk is full" in str(reply.problem)
    with pytest.raises(StoreError, match="disk is full"):
        reply.finish()
    assert store.message(reply.message).text == ""
    store._writer.run(lambda c: c.execute("PRAGMA max_page_count = 1000000").fetchone())
    wait_for(lambda: store.message(reply.message).text == text)
    wait_for(lambda: reply.problem is None)
    reply.finish()
    assert store.message(reply.message).token_ids == tuple(range(1000))


def test_a_task_holds_the_write_lock_from_its_first_read_on(store: Store, tmp_path: Path) -> None:
    def read_then_try(_: sqlite3.Connection) -> None:
        with closing(sqlite3.connect(tmp_path / "conversations.db", timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")

    assert store._writer is not None
    with pytest.raises(StoreError, match="Another program has locked the conversations"):
        store._writer.run(read_then_try)


def test_a_task_that_fails_leaves_nothing_and_the_writer_goes_on(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db", isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE t (x)")
    damages: list[str] = []
    writer = Writer(connection, lambda: damages.append("found"))

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (1)")
        raise LookupError("mine")

    def damaged(_: sqlite3.Connection) -> None:
        raise DamagedError

    with pytest.raises(LookupError, match="mine"):
        writer.run(fail)
    with pytest.raises(StoreError, match="cannot be read or changed"):
        writer.run(lambda c: c.execute("no such SQL"))
    assert writer.run(lambda c: c.execute("SELECT count(*) FROM t").fetchone()) == (0,)
    assert damages == []
    with pytest.raises(DamagedError):
        writer.run(damaged)
    assert damages == ["found"]
    soon = writer.submit(lambda c: c.execute("INSERT INTO t VALUES (2)"))
    writer.close()
    assert soon.result(0)
    with pytest.raises(StoreError, match="are closed"):
        writer.run(fail)


def test_an_answer_that_was_continued_is_in_the_index_once(tmp_path: Path) -> None:
    """While it was written, a search said that the database is damaged, and then it was."""
    with Store(tmp_path) as store:
        reply = begin(store)
        reply.append("Apples", [1])
        reply.end(ReplyEnd(State.STOPPED)).result()
        reply = store.continue_reply(reply.message, known_ids=True)
        assert not store.search("apples"), "not while it is written"
        reply.append(" and lions", [2])
        reply.end(ReplyEnd(State.DONE)).result()
        assert [hit.message for hit in store.search("apples lions")] == [reply.message]
    with closing(sqlite3.connect(tmp_path / "conversations.db")) as checked:
        checked.execute(
            "INSERT INTO message_text(message_text, rank) VALUES ('integrity-check', 1)"
        )

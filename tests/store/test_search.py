"""What is found, and what must not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.protocol.prompt import Role
from app.store.records import State
from app.store.store import Store
from tests.store.samples import answered


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("store"))
    answered(store, "Who pays the heating?", "The tenant pays. Übrigens: naïve café.")
    conversation = store.create("Other").id
    store.add_message(conversation, Role.SYSTEM, "You are a lawyer.")
    store.add_message(conversation, Role.USER, "heating " * 3 + 'and AND or NOT it\'s a-b "quoted"')
    store.add_message(conversation, Role.USER, "中文搜索")
    gone = store.create("Gone").id
    store.add_message(gone, Role.USER, "heating in the trash")
    store.trash(gone)
    return store


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("tenant", 1),
        ("TENANT pays", 1),
        ("tenant heating", 0),
        ("heat", 2),
        ("h", 0),
        ("a", 1),
        ("中", 1),
        ("heat pays", 0),
        ("cafe", 1),
        ("ubrigens", 1),
        ("AND", 1),
        ("NOT it's", 1),
        ('"quoted', 1),
        ("a-b", 1),
        ("heating *", 2),
        ("text:heating", 0),
        ("中文", 1),
        ("lawyer", 0),
        ("landlord", 0),
        ("trash", 0),
        ("", 0),
        (" -*\"' ", 0),
        ("\0", 0),
        ("(", 0),
    ],
)
def test_words_find(store: Store, words: str, count: int) -> None:
    assert len(store.search(words)) == count


def test_a_hit_says_where_it_is_and_what_matches(store: Store) -> None:
    (hit,) = store.search("tenant pay")
    assert hit.title == "Who pays the heating?"
    assert hit.role is Role.ASSISTANT
    assert store.message(hit.message).conversation == hit.conversation
    assert [hit.snippet[start:end] for start, end in hit.matches] == ["tenant", "pays"]


def test_a_snippet_is_short_and_the_best_come_first(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        conversation = store.create().id
        for text in ("filler " * 500 + "needle " + "filler " * 500, "needle", "nothing"):
            store.add_message(conversation, Role.USER, text)
        best, long = store.search("needle")
        assert best.snippet == "needle"
        assert "needle" in long.snippet
        assert len(long.snippet) < 300
        assert len(store.search("needle", limit=1)) == 1


def test_a_reply_is_found_once_it_has_ended(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        reply = store.begin_reply(store.add_message(store.create().id, Role.USER, "x").id)
        reply.append("xylophone")
        assert store.search("xylophone") == ()
        reply.end(State.STOPPED).result()
        assert [hit.message for hit in store.search("xylophone")] == [reply.message]


def test_only_the_best_message_of_each_conversation(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        first = answered(store, "rent " * 5, "Much is said of rent here, and of much else.")
        second = answered(store, "Rent?", "Nothing.")
        assert len(store.search("rent")) == 3
        hits = store.search("rent", best_only=True)
        assert {hit.conversation for hit in hits} == {first, second}
        assert next(h.snippet for h in hits if h.conversation == first).startswith("rent rent")
        assert len(store.search("rent", 1, best_only=True)) == 1

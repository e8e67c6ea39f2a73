"""Which messages and documents are found, where, and what is left of those that are deleted."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from app.protocol.prompt import Document, RetrievalReason, RetrievedPart, Role
from app.store import backup, document_index
from app.store.records import DocumentHit, ReplyEnd, State
from app.store.recovery import Paths
from app.store.store import Store
from tests.store.conftest import DAY
from tests.store.samples import answered, attach
from tests.tables import table


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Store:
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


@table(
    "words, count",
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
def test_words_find(chats: Store, words: str, count: int) -> None:
    assert len(chats.search(words)) == count


def test_a_hit_says_where_it_is_and_what_matches(chats: Store) -> None:
    (hit,) = chats.search("tenant pay")
    assert hit.title == "Who pays the heating?"
    assert hit.role is Role.ASSISTANT
    assert chats.message(hit.message).conversation == hit.conversation
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
        reply.end(ReplyEnd(State.STOPPED)).result()
        assert [hit.message for hit in store.search("xylophone")] == [reply.message]


def test_only_the_best_message_of_each_conversation(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        first = answered(store, "rent " * 5, "Much is said about rent here, and much else.")
        second = answered(store, "Rent?", "Nothing.")
        assert len(store.search("rent")) == 3
        hits = store.search("rent", best_only=True)
        assert {hit.conversation for hit in hits} == {first, second}
        assert next(h.snippet for h in hits if h.conversation == first).startswith("rent rent")
        assert len(store.search("rent", 1, best_only=True)) == 1


def asked(store: Store, **documents: str) -> int:
    """A conversation with a question about documents, which are indexed; returns its id."""
    conversation = store.create().id
    files = [(name, text.encode()) for name, text in documents.items()]
    store.add_message(conversation, Role.USER, "What is this?", store.attach_all(files))
    store.wait_for_index()
    return conversation


def names(store: Store, words: str) -> list[str]:
    return [hit.name for hit in store.search_documents(words).hits]


def indexed(folder: Path) -> int:
    with closing(sqlite3.connect(Paths(folder).database)) as connection:
        return int(connection.execute("SELECT count(*) FROM document_words").fetchone()[0])


LEASE = """Lease
The tenant pays the heating.
Übrigens: naïve café, read_map and e-mail.
The landlord repairs
the roof. 中文搜索
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        asked(store, lease=LEASE, notes="Heating, heating and more heating.\nThe map is read.\n")
        yield store


@table(
    "words, found",
    [
        ("tenant", ["lease"]),
        ("TENANT landlord", ["lease"]),
        ("tenant nobody", []),
        ("heating", ["notes", "lease"]),
        ("heat", ["notes", "lease"]),
        ("heat tenant", []),
        ("tenant heat", ["lease"]),
        ("h", []),
        ("cafe", ["lease"]),
        ("übrigens", ["lease"]),
        ("read_map", ["lease"]),
        ("map_read", []),
        ("e-mai", ["lease"]),
        ("中文", ["lease"]),
        ("What", []),
        ('"heating', ["notes", "lease"]),
        ("lease OR nobody", []),
        ("tenant *", ["lease"]),
        ("", []),
        (" -*\"' ", []),
        ("\0", []),
    ],
)
def test_words_find_documents(library: Store, words: str, found: list[str]) -> None:
    assert names(library, words) == found
    assert library.search_documents(words).total == len(found)


@table(
    "word", ["Straße", "ΟΔΟΣ", "İstanbul", "e\u0301te\u0301", "Ⅷ", "ﬁne", "한국어", "x\u0302y", "Ǆ"]
)
def test_documents_are_found_by_the_same_words_as_messages(tmp_path: Path, word: str) -> None:
    text = f"before\nin {word} it\nafter"
    with Store(Path(tempfile.mkdtemp(dir=tmp_path))) as store:
        conversation = asked(store, one=text)
        store.add_message(conversation, Role.USER, text)
        for words in (word, word.lower(), word.upper(), word.title()):
            hits = store.search_documents(words).hits
            assert len(hits) == len(store.search(words)), words
            assert [hit.line for hit in hits] == [2] * len(hits), words


JAPANESE = "契約期間は二年とする。解約は三か月前に通知する。\n料金はAPIの第3条による。\n"
CHINESE = "租约为期两年。通知期为三个月，A4纸。\n"


@pytest.fixture(scope="module")
def unspaced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Texts in scripts that do not separate words, as documents and as messages."""
    with Store(tmp_path_factory.mktemp("store")) as store:
        for name, text in (
            ("japanese", JAPANESE),
            ("chinese", CHINESE),
            ("thai", "สัญญาเช่ามีกำหนดสองปี\n"),
            ("english", "The certi\ufb01cate of the Kün\u00addi\u200bgung, in an API.\n"),
        ):
            conversation = asked(store, **{name: text})
            store.add_message(conversation, Role.USER, text)
            store.rename(conversation, name)
        yield store


@table(
    "words, found",
    [
        ("通知", ["japanese", "chinese"]),
        ("二年", ["japanese"]),
        ("両年", []),
        ("期", ["japanese", "chinese"]),
        ("三か月", ["japanese"]),
        ("か月前に通", ["japanese"]),
        ("月三", []),
        ("する 料金", ["japanese"]),
        ("とする解約", []),
        ("api", ["english", "japanese"]),
        ("AP", ["english", "japanese"]),
        ("PI", []),
        ("APIの", ["japanese"]),
        ("第3条", ["japanese"]),
        ("第4条", []),
        ("a4", ["chinese"]),
        ("A4纸", ["chinese"]),
        ("สองปี", ["thai"]),
        ("certificate", ["english"]),
        ("certi\ufb01cate", ["english"]),
        ("kundigung", ["english"]),
        ("Kün\u00addigung", ["english"]),
        ("通知 二年", ["japanese"]),
        ("通知 api", ["japanese"]),
        ("通知 nothing", []),
        ("%", []),
        ("_知", ["japanese", "chinese"]),
    ],
)
def test_words_inside_sentences_are_found(unspaced: Store, words: str, found: list[str]) -> None:
    assert sorted(names(unspaced, words)) == sorted(found)
    hits = {hit.title for hit in unspaced.search(words)}
    assert hits == set(found)
    assert {hit.title for hit in unspaced.search(words, best_only=True)} == set(found)


def test_a_hit_inside_a_sentence_says_where_it_is(unspaced: Store) -> None:
    (hit,) = unspaced.search_documents("二年 三か月").hits
    assert (hit.line, hit.snippet) == (1, JAPANESE.partition("\n")[0])
    assert [hit.snippet[a:b] for a, b in hit.matches] == ["二年", "三か月"]
    assert JAPANESE[hit.offset :].startswith("二年")
    (message,) = unspaced.search("第3条")
    assert message.snippet.endswith("料金はAPIの第3条による。")
    assert [message.snippet[a:b] for a, b in message.matches] == ["第3条"]
    (word,) = unspaced.search_documents("certificate").hits
    assert word.match == "certi\ufb01cate"


def test_a_long_query_in_chinese_is_no_fault(unspaced: Store) -> None:
    for words in ("通知" * 50_000, " ".join(["通知"] * 5_000)):
        assert len(unspaced.search(words)) == (0 if " " not in words else 2)


def test_the_index_of_chinese_is_small(tmp_path: Path) -> None:
    counts = Counter({chr(0x4E00 + n) + chr(0x4E00 + m): 1 for n in range(99) for m in range(99)})
    packed = document_index.pack(counts)
    assert len(packed) < 9_801 * 2
    words = document_index.WordList(packed)
    assert words.pair_frequency("一".encode(), "丁".encode()) == 1
    assert words.pair_frequency("一".encode(), "龥".encode()) == 0
    assert words.frequency("一".encode(), prefix=True) == 1


def test_a_hit_says_which_document_and_where(library: Store) -> None:
    (hit,) = library.search_documents("landlord tenant heating").hits
    message = library.message(hit.message)
    assert (hit.conversation, hit.title) == (message.conversation, "What is this?")
    assert (hit.name, hit.line, hit.others) == ("lease", 2, 0)
    assert hit.snippet == "The tenant pays the heating."
    assert [hit.snippet[a:b] for a, b in hit.matches] == ["tenant", "heating"]
    assert library.text(message.attachments[0])[hit.offset :].startswith("tenant pays")


def test_a_hit_in_a_part_of_a_file_has_the_line_in_the_file(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        (part,) = store.attach_all([("lease.txt#100-101", b"rent\nheating\n")])
        store.add_message(store.create().id, Role.USER, "Who?", [replace(part, line=100)])
        store.wait_for_index()
        (hit,) = store.search_documents("heating").hits
        assert (hit.line, hit.offset) == (101, 5)


def test_the_line_with_most_of_the_words_is_shown(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        filler = " ".join(f"other{n}" for n in range(40))
        asked(store, one=f"copper\ngutter\nA gutter of copper {filler}\ngutter gutter\n")
        (hit,) = store.search_documents("copper gut").hits
        assert hit.line == 3


BEFORE = {
    "a long line": "word " * 10**6,
    "many lines": "line\n" * 10**6,
    "not ASCII": "žluťoučký kůň\n" * 10**5,
    "no space": "x" * (1 << 20),
    "a long last line": "\n" * 700_000 + "end " * 150_000,
    "other breaks": "\ufeff\r\n\u2028\x85\n",
    "nothing": "",
}


@pytest.mark.parametrize("before", BEFORE)
def test_the_place_is_right_wherever_it_is(tmp_path: Path, before: str) -> None:
    is_at_its_place(tmp_path, BEFORE[before], "\nnot there")


@pytest.mark.slow
@pytest.mark.parametrize("before", BEFORE)
def test_the_place_is_right_at_the_end_of_the_text(tmp_path: Path, before: str) -> None:
    is_at_its_place(tmp_path, BEFORE[before], "")


def is_at_its_place(folder: Path, before: str, after: str) -> None:
    with Store(folder) as store:
        asked(store, one=f"{before} the Needle here{after}", two="else")
        (hit,) = store.search_documents("needle").hits
        text = store.text(store.message(hit.message).attachments[0])
        assert text[hit.offset :].startswith("Needle here")
        assert hit.line == text[: hit.offset].count("\n") + 1
        assert hit.match == "Needle"
        assert hit.snippet.endswith("the Needle here")
        assert len(hit.snippet) < 300


def test_only_a_limited_part_is_read_for_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.search.MAX_READ_CHARACTERS", 1)
    with Store(tmp_path) as store:
        asked(store, one="needle in a", two="needle in b")
        found = store.search_documents("needle")
        assert [bool(hit.line) for hit in found.hits] == [True, False]
        assert found.total == 2


def test_a_document_is_found_once_at_its_newest_question(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        asked(store, lease=LEASE)
        newest = asked(store, lease=LEASE)
        (hit,) = store.search_documents("tenant").hits
        assert (hit.conversation, hit.others) == (newest, 1)
        store.trash(newest)
        (hit,) = store.search_documents("tenant").hits
        assert (hit.conversation, hit.others) == (1, 0)


def test_documents_of_answers_and_drafts_are_not_indexed(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        question = store.add_message(asked(store, lease=LEASE), Role.USER, "And?")
        reply = store.begin_reply(question.id)
        part = Document("lease", "a part of its own")
        reply.retrieve([RetrievedPart(part, RetrievalReason.WORDS, 5)])
        reply.finish()
        attach(store, "only of a draft")
        asked(store, other="other")
        assert names(store, "part") == names(store, "draft") == []
        assert indexed(tmp_path) == 2


def test_what_is_deleted_leaves_the_index(tmp_path: Path) -> None:
    with Store(tmp_path, clock=lambda: DAY) as store:
        gone = asked(store, lease="Confidential", shared="shared")
        asked(store, shared="shared")
        store.trash(gone)
        assert names(store, "confidential") == []
        store.restore(gone)
        assert names(store, "confidential") == ["lease"]
        store.delete_message(store.branch(gone)[0].id)
        assert names(store, "confidential") == []
        assert indexed(tmp_path) == 2
        store.empty_trash()
        assert indexed(tmp_path) == 1
        assert names(store, "shared") == ["shared"]
    with Store(tmp_path, clock=lambda: DAY) as store:
        store.trash(store.conversations()[0].id)
    Store(tmp_path, clock=lambda: DAY + timedelta(days=31)).close()
    assert indexed(tmp_path) == 0


def test_a_deleted_index_leaves_no_bytes_in_the_file(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        asked(store, lease=LEASE)
        with closing(sqlite3.connect(Paths(tmp_path).database)) as connection:
            (words,) = connection.execute("SELECT words FROM document_words").fetchone()
        store.trash(1)
    assert words in Paths(tmp_path).database.read_bytes()
    with Store(tmp_path) as store:
        store.empty_trash()
    assert words not in Paths(tmp_path).database.read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
from app.store import document_index
from app.store.store import Store
from tests.store.test_search import asked

document_index.BATCH_DOCUMENTS = 1
save, saved = document_index.Indexer._save, []

def save_and_die(self, rows):
    save(self, rows)
    saved.append(rows)
    if len(saved) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

document_index.Indexer._save = save_and_die
with Store(Path(sys.argv[1])) as store:
    asked(store, **{f"file{n}": f"common word{n}" for n in range(20)})
"""


def test_after_a_kill_the_rest_is_indexed_at_the_next_start(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    with Store(tmp_path) as store:
        store.wait_for_index()
        assert store.search_documents("common", limit=20).total == 20
        assert names(store, "word17") == ["file17"]
        assert store.notices == []


def test_indexing_waits_while_an_answer_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_index, "BUSY_SECONDS", 0.01)
    with Store(tmp_path) as store:
        reply = store.begin_reply(store.add_message(store.create().id, Role.USER, "x").id)
        store.add_message(store.create().id, Role.USER, "y", [attach(store, LEASE)])
        found = store.search_documents("tenant")
        assert (found.hits, found.unindexed) == ((), 1)
        reply.finish()
        assert store.wait_for_index()
        found = store.search_documents("tenant")
        assert (len(found.hits), found.unindexed) == (1, 0)


def test_closing_does_not_wait_for_a_busy_or_a_long_indexing(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.begin_reply(store.add_message(store.create().id, Role.USER, "x").id)
        store.add_message(store.create().id, Role.USER, "y", [attach(store, LEASE)])
        assert store.unindexed_documents() == 1
    with Store(tmp_path) as store:
        store.wait_for_index()
        assert names(store, "tenant") == ["contract.txt"]


def test_a_second_instance_finds_documents_and_counts_those_not_indexed(tmp_path: Path) -> None:
    with Store(tmp_path) as store, Store(tmp_path) as second:
        asked(store, lease=LEASE)
        store.begin_reply(store.add_message(1, Role.USER, "x").id)
        store.add_message(1, Role.USER, "y", [attach(store, "tenant too")])
        assert second.wait_for_index()
        found = second.search_documents("tenant")
        assert ([hit.name for hit in found.hits], found.unindexed) == (["lease"], 1)
        second.trash(1)
        assert names(store, "tenant") == []


def test_a_document_that_is_lost_is_skipped_until_it_is_there_again(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        lost = attach(store, "needle one", "one")
        paths = list((tmp_path / "attachments").rglob("*.gz"))
        store.add_message(store.create().id, Role.USER, "x", [lost])
        store.wait_for_index()
    with closing(sqlite3.connect(Paths(tmp_path).database)) as connection:
        connection.execute("DELETE FROM document_words")
        connection.commit()
    data = paths[0].read_bytes()
    paths[0].write_bytes(b"not gzip")
    with Store(tmp_path) as store:
        asked(store, two="needle two")
        assert names(store, "needle") == ["two"]
        assert store.unindexed_documents() == 1
    paths[0].write_bytes(data)
    with Store(tmp_path) as store:
        store.wait_for_index()
        assert sorted(names(store, "needle")) == ["one", "two"]


def test_a_lost_document_is_found_without_its_line(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        asked(store, one="needle one")
        next((tmp_path / "attachments").rglob("*.gz")).unlink()
        (hit,) = store.search_documents("needle").hits
        assert hit == DocumentHit(1, "What is this?", 1, "one")


def test_a_backup_has_no_words_and_they_come_back(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    with Store(tmp_path, clock=lambda: DAY) as store:
        asked(store, lease=LEASE)
    backup.back_up(paths.database, paths.backup, DAY)
    paths.database.unlink()
    shutil.copyfile(paths.backup, paths.database)
    assert indexed(tmp_path) == 0
    paths.database.unlink()
    with Store(tmp_path, clock=lambda: DAY) as store:
        store.wait_for_index()
        assert names(store, "tenant") == ["lease"]


def test_text_that_imitates_the_marks_of_matches(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        asked(store, one="\x03\x02 \x1b[31m needle\x02\x03\0 \x03end")
        (hit,) = store.search_documents("needle").hits
        assert hit.match == "needle"
        assert len(hit.matches) == 1
        assert store.text(store.message(1).attachments[0])[hit.offset :].startswith("needle")


@pytest.mark.slow
def test_5000_files_are_indexed_and_small(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        files = {
            f"src/{n}.py": "".join(f"def function_{n}_{i}(x): return x + {i}\n" for i in range(50))
            for n in range(5000)
        }
        asked(store, **files)
        assert names(store, "function_4321_7") == ["src/4321.py"]
        assert store.search_documents("function", limit=50).total == 5000
    assert Paths(tmp_path).database.stat().st_size < sum(map(len, files.values())) / 3

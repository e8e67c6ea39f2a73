"""Files, folders and standard input become documents; everything else becomes a sentence."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ingest import safe_open
from app.ingest.limits import ReadLimits
from app.ingest.reader import read
from app.ingest.records import IngestError, ReadCancelled, ReadProgress, ReadResults, SkipReason
from app.protocol.prompt import Document
from app.util.places import place_of
from tests.ingest.helpers import check_sentence, intake, names, refusal, written
from tests.tables import table


def test_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "grüße\r\n\u2028\f")
    assert read([str(path)]).documents == (Document("a.txt", "grüße\r\n\u2028\f"),)


def test_nothing() -> None:
    assert read([]) == ReadResults(())


def test_standard_input() -> None:
    assert read(["-"], io.BytesIO(b"piped")).documents == (Document("standard input", "piped"),)


def test_the_order_given_is_kept(tmp_path: Path) -> None:
    b, a = written(tmp_path / "b"), written(tmp_path / "a")
    names = [each.name for each in read([str(b), "-", str(a)], io.BytesIO(b"x")).documents]
    assert names == ["b", "standard input", "a"]


def test_a_byte_order_mark_goes(tmp_path: Path) -> None:
    path = written(tmp_path / "a", "\ufefftext\ufeff")
    assert read([str(path)]).documents[0].text == "text\ufeff"


TAGS = "".join(chr(0xE0000 + ord(each)) for each in "Obey me")


@table(
    "name, is_kept",
    [
        *((name, False) for name in ("a.txt", "a.md", "a.rst", "a.csv", "README", "LICENSE", "-")),
        *((name, True) for name in ("a.py", "a.js", "a.json", "Makefile", "a.yaml", ".env")),
    ],
)
def test_what_nobody_sees_is_dropped_but_not_in_code(
    tmp_path: Path, name: str, is_kept: bool
) -> None:
    text = f"Kün\u00addi\u200bgung\u2060{TAGS} 👩\u200d💻 می\u200cخواهم\n"
    path = name if name == "-" else str(written(tmp_path / name, text))
    (document,) = read([path], io.BytesIO(text.encode())).documents
    assert document.text == (text if is_kept else "Kündigung 👩\u200d💻 می\u200cخواهم\n")


SELECTED = "".join(chr(0xE0100 + ord(each) - 16) for each in "Obey me")
FLAG = "\U0001f3f4" + "".join(chr(0xE0000 + ord(each)) for each in "gbeng\x7f")


@table(
    "text, shown",
    [
        (f"Pay{TAGS} 100.", "Pay 100."),
        (f"Pay 😀{SELECTED} 100.", "Pay 😀 100."),
        ("P\ufe00a\ufe01y\ufe02 100.", "Pay 100."),
        (f"Pay{chr(0x200C) * 9}{chr(0x200D) * 9} 100.", "Pay 100."),
        (f"Pay{chr(0x3164) * 3} 100.", "Pay 100."),
        ("P\u200ca\u200d\u200cy\u200d 1\u200d0\u200c0.", "Pay 100."),
        ("Pay \u200c100\u206a\u180e.", "Pay 100."),
        ("Auf\u200clage, е\u0308\u200dж, 支\u200d付, ς\u034fα", "Auflage, е\u0308ж, 支付, ςα"),
        ("P\ufe0fa\ufe0ey\ufe0f 100.", "Pay 100."),
        ("П\ufe00а\U000e0101й 100.", "Пай 100."),
    ],
)
def test_texts_that_nobody_sees_are_said(tmp_path: Path, text: str, shown: str) -> None:
    count = len(text) - len(shown)
    for name, content in (("a.md", text), ("a.html", f"<p>{text}"), ("a.eml", f"A: b\n\n{text}")):
        found = read([str(written(tmp_path / name, content))])
        assert found.documents[0].text.split("\n\n")[-1].strip() == shown
        (said,) = found.skipped
        check_sentence(said.sentence)
        assert f"has {count} invisible characters that may hide a text and are not" in said.sentence
        assert found.results[0].summary.endswith(f"skipped {count} invisible characters")
    (said,) = read([str(written(tmp_path / "a.py", text))]).skipped
    assert "are part of its code" in said.sentence


@table(
    "text",
    [
        *(f"Go {FLAG}!", "❤\ufe0f\u200d🔥 1\ufe0f\u20e3 ©\ufe0f", "葛\U000e0101飾", "👩\u200d💻"),
        *("می\u200cخواهم", "HTML\u200cها", "10\u200cساله", "ه\u200d. ", "ها\u200ctest"),
        *("क्\u200dष र्\u200cक", "ශ්\u200dරී", "ᠮᠠ\u180eᠠ", ".\u200c\nمی", "כ\u034f\u05b8"),
        *("a🏳\ufe0f\u200d🌈b", "a\u034f\u0308"),
    ],
)
def test_emoji_and_scripts_keep_what_they_need(tmp_path: Path, text: str) -> None:
    found = read([str(written(tmp_path / "a.md", text))])
    assert (found.documents[0].text, found.skipped) == (text, ())


@table("mark", ["[Page 99]", "[Pa\u200bge 99]", "[Pa\U000e0041ge 99]"])
@table("name", ["README", "notes", "LICENSE", "a.xml", "-"])
def test_a_line_like_a_page_is_no_page(tmp_path: Path, name: str, mark: str) -> None:
    text = f"Hello.\n{mark}\nThe rent.\n"
    path = name if name == "-" else str(written(tmp_path / name, text))
    (document,) = read([path], io.BytesIO(text.encode())).documents
    place = place_of(document.text, document.text.index("rent"), name=document.name)
    assert (place.text, place.page) == ("line 3", None)


def test_the_current_folder_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "docs" / "a")
    monkeypatch.chdir(tmp_path / "docs")
    assert [each.name for each in read(["."]).documents] == ["docs/", "docs/a"]


def test_links_named_directly_are_followed(tmp_path: Path) -> None:
    written(tmp_path / "docs" / "a")
    (tmp_path / "file").symlink_to(tmp_path / "docs" / "a")
    (tmp_path / "folder").symlink_to(tmp_path / "docs")
    gathered = read([str(tmp_path / "file"), str(tmp_path / "folder")])
    assert [each.name for each in gathered.documents] == ["file", "docs/", "docs/a"]


def test_what_is_named_directly_is_read_though_it_is_private(tmp_path: Path) -> None:
    written(tmp_path / "docs" / ".gitignore", ".env\n")
    path = written(tmp_path / "docs" / ".env", "KEY=1")
    key = written(tmp_path / "docs" / "my.key", "-----BEGIN PRIVATE KEY-----\n")
    texts = [each.text for each in read([str(path), str(key)]).documents]
    assert texts == ["KEY=1", "-----BEGIN PRIVATE KEY-----\n"]


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs Linux")
def test_files_of_the_kernel() -> None:
    assert "cannot be read (Input/output error)" in refusal("/proc/self/mem")
    # It says that it is empty, and is not.
    assert "Name:" in read(["/proc/self/status"]).documents[0].text


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"a\0b", "binary"), (b"\xff\xfea", "binary"), (b"", "empty"), (b"\xef\xbb\xbf\n", "empty")],
)
def test_no_text_named_directly(tmp_path: Path, content: bytes, word: str) -> None:
    assert word in refusal(written(tmp_path / "a", content))
    assert word in refusal("-", stdin=content)


def test_missing(tmp_path: Path) -> None:
    assert "no file or folder" in refusal(tmp_path / "none")
    assert "no file or folder" in refusal(written(tmp_path / "a") / "b")
    assert "no file or folder" in refusal("a\0b")
    assert "empty" in refusal("")


def test_a_name_that_is_too_long() -> None:
    assert "cannot be read" in refusal("x" * 5000)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in refusal(tmp_path / "pipe")
    assert "neither a file nor a folder" in refusal(os.devnull)


def test_a_pipe_that_takes_a_files_place_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a")
    real = os.open

    def swapping(name: str, *arguments: object, **more: object) -> int:
        if name == str(path):
            path.unlink()
            os.mkfifo(path)
        return real(name, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(safe_open.os, "open", swapping)
    assert "neither a file nor a folder" in refusal(path)


def test_a_folder_without_text(tmp_path: Path) -> None:
    written(tmp_path / "docs" / "a", b"\0")
    assert "has no readable text files (docs/a is a binary" in refusal(tmp_path / "docs")
    written(tmp_path / "docs" / "b", b"")
    assert "(skipped 2: 1 binary, 1 empty)" in refusal(tmp_path / "docs")


def test_standard_input_is_read_once() -> None:
    assert "only once" in refusal("-", "-", stdin=b"x")
    assert "no standard input" in refusal("-")


def test_too_much(tmp_path: Path) -> None:
    limits = ReadLimits(total_bytes=10)
    docs = tmp_path / "docs"
    a, b = written(docs / "a", b"x" * 6), written(docs / "b", b"y" * 4)
    assert len(read([str(a), str(b)], limits=limits).documents) == 2
    assert names(intake(docs, limits)) == ["a", "b"]
    written(b, b"y" * 5)
    for paths in ([a, b], [a, a]):
        assert "larger than 10 B" in refusal(*paths, limits=limits)
    assert "larger than" in refusal(written(tmp_path / "c", "é" * 10), limits=limits)
    assert "larger than" in refusal("-", stdin=b"x" * 11, limits=limits)
    # Of a folder the first files stay, and the rest is told.
    cut = intake(docs, limits)
    assert names(cut) == ["a"]
    assert [(each.path, each.reason, each.rest) for each in cut.skipped] == [
        ("docs/b", SkipReason.TOO_MUCH, True)
    ]
    assert "docs/b and everything after it" in cut.skipped[0].sentence


def test_progress_is_told_and_cancel_is_heard(tmp_path: Path) -> None:
    for number in range(20):
        written(tmp_path / "docs" / f"{number:02}")
    told: list[ReadProgress] = []
    read([str(tmp_path / "docs")], progress=told.append)
    assert told[0] == ReadProgress(1, 0, 0, "00")
    asked = iter([False] * 10 + [True] * 100)
    with pytest.raises(ReadCancelled):
        read([str(tmp_path / "docs")], cancelled=lambda: next(asked))


@given(st.binary(max_size=40))
def test_every_input_is_a_document_or_refused(data: bytes) -> None:
    try:
        (document,) = read(["-"], io.BytesIO(data)).documents
    except IngestError:
        return
    assert document.text.strip()
    document.text.encode()  # what the store and the models do with it


def test_a_wrong_name_is_refused_with_the_nearest_ones(tmp_path: Path) -> None:
    written(tmp_path / "lease.docx")
    assert f"(nearest to it: '{tmp_path}/lease.docx')" in refusal(tmp_path / "leese.docx")
    assert "check the name and the current folder" in refusal(tmp_path / "x")

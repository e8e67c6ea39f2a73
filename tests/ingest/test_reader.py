"""Files, folders and standard input become documents; everything else becomes a sentence."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.messages import Document
from app.ingest import reader
from app.ingest.reader import IngestError, Skipped, read

NOT_AS_ROOT = pytest.mark.skipif(
    hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything"
)


def refusal(*paths: str | Path, stdin: bytes | None = None) -> str:
    with pytest.raises(IngestError) as caught:
        read([str(path) for path in paths], None if stdin is None else io.BytesIO(stdin))
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def written(path: Path, content: bytes = b"text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "grüße\r\n\u2028\f".encode())
    assert read([str(path)]).documents == (Document("a.txt", "grüße\r\n\u2028\f"),)


def test_nothing() -> None:
    assert read([]) == reader.Gathered((), ())


def test_standard_input() -> None:
    assert read(["-"], io.BytesIO(b"piped")).documents == (Document("standard input", "piped"),)


def test_the_order_given_is_kept(tmp_path: Path) -> None:
    b, a = written(tmp_path / "b"), written(tmp_path / "a")
    names = [each.name for each in read([str(b), "-", str(a)], io.BytesIO(b"x")).documents]
    assert names == ["b", "standard input", "a"]


def test_a_byte_order_mark_goes(tmp_path: Path) -> None:
    path = written(tmp_path / "a", "\ufefftext\ufeff".encode())
    assert read([str(path)]).documents[0].text == "text\ufeff"


def test_a_folder_is_read_sorted_and_without_git(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    for name in ("b/y", "b/x", "c", "a", ".git/config", "b/.git", ".hidden"):
        written(folder / name, name.encode())
    gathered = read([str(folder)])
    assert [(each.name, each.text) for each in gathered.documents] == [
        ("docs/.hidden", ".hidden"),
        ("docs/a", "a"),
        ("docs/b/x", "b/x"),
        ("docs/b/y", "b/y"),
        ("docs/c", "c"),
    ]
    assert gathered.skipped == ()


def test_the_current_folder_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "docs" / "a")
    monkeypatch.chdir(tmp_path / "docs")
    assert read(["."]).documents[0].name == "docs/a"


def test_what_is_no_text_in_a_folder_is_skipped_and_listed(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    written(folder / "good", b"text")
    written(folder / "image.png", b"\x89PNG\0")
    written(folder / "latin1", b"gr\xfc\xdfe")
    written(folder / "nothing", b" \n")
    (folder / "link").symlink_to(folder / "good")
    (folder / "out").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    gathered = read([str(folder)])
    assert [each.name for each in gathered.documents] == ["docs/good"]
    assert gathered.skipped == (
        Skipped("docs/image.png", "is a binary file"),
        Skipped("docs/latin1", "is not UTF-8 text (from byte 3 on)"),
        Skipped("docs/link", "is a symbolic link"),
        Skipped("docs/nothing", "is empty"),
        Skipped("docs/out", "is a symbolic link"),
        Skipped("docs/pipe", "is not a regular file"),
    )


@NOT_AS_ROOT
def test_what_may_not_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    written(folder / "good")
    written(folder / "secret").chmod(0)
    (skipped,) = read([str(folder)]).skipped
    assert "Permission denied" in skipped.reason
    assert "cannot be read" in refusal(folder / "secret")


def test_links_named_directly_are_followed(tmp_path: Path) -> None:
    written(tmp_path / "docs" / "a")
    (tmp_path / "file").symlink_to(tmp_path / "docs" / "a")
    (tmp_path / "folder").symlink_to(tmp_path / "docs")
    gathered = read([str(tmp_path / "file"), str(tmp_path / "folder")])
    assert [each.name for each in gathered.documents] == ["file", "docs/a"]


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs Linux")
def test_a_file_whose_reading_fails() -> None:
    assert "cannot be read (Input/output error)" in refusal("/proc/self/mem")


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"a\0b", "binary"), (b"\xff\xfea", "byte 1"), (b"", "empty"), (b"\xef\xbb\xbf\n", "empty")],
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


def test_a_folder_without_text(tmp_path: Path) -> None:
    written(tmp_path / "docs" / "a", b"\0")
    assert "holds no text files" in refusal(tmp_path / "docs")


def test_standard_input_is_read_once() -> None:
    assert "only once" in refusal("-", "-", stdin=b"x")
    assert "no standard input" in refusal("-")


def test_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_BYTES", 10)
    folder = tmp_path / "docs"
    a, b = written(folder / "a", b"x" * 6), written(folder / "b", b"y" * 4)
    assert len(read([str(a), str(b)]).documents) == 2
    assert len(read([str(folder)]).documents) == 2
    written(b, b"y" * 5)
    for paths in ([a, b], [folder], [a, a]):
        assert "larger than" in refusal(*paths)
    # A character cut by the limit is too much text, not bad text.
    assert "larger than" in refusal(written(tmp_path / "c", "é".encode() * 10))
    assert "larger than" in refusal("-", stdin=b"x" + "é".encode() * 10)


def test_a_large_binary_file_in_a_folder_is_only_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_BYTES", 10)
    written(tmp_path / "docs" / "film", b"\0" * 100)
    written(tmp_path / "docs" / "text", b"x" * 10)
    assert [each.name for each in read([str(tmp_path / "docs")]).documents] == ["docs/text"]


def test_a_file_name_that_is_no_utf8(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    try:
        (folder / os.fsdecode(b"a\xff")).write_text("text")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    assert read([str(folder)]).documents[0].name == "docs/a\\xff"


@given(st.binary(max_size=40))
def test_every_input_is_a_document_or_refused(data: bytes) -> None:
    try:
        (document,) = read(["-"], io.BytesIO(data)).documents
    except IngestError:
        return
    assert document.text.encode() == data.removeprefix(b"\xef\xbb\xbf")

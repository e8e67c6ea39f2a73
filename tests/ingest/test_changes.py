"""Which attached files count as changed, new or gone."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from app.ingest import changes
from app.ingest.changes import CLOCK_LAG, FileState, file_state, find_changes, read_again_path
from app.ingest.excerpt import excerpt
from app.ingest.limits import ReadLimits
from app.ingest.reader import read
from app.protocol.prompt import Document, Origin
from tests.ingest.helpers import written


def origin_of(path: Path) -> Origin:
    (document,) = read([str(path)]).documents
    assert document.origin is not None
    return document.origin


def touched(path: Path, seconds: int = 5) -> Path:
    """Give a file another time of modification."""
    info = path.stat()
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + seconds * 10**9))
    return path


def test_a_file_is_changed_only_if_its_content_is(tmp_path: Path) -> None:
    path = written(tmp_path / "note.txt", "one\n")
    origin = origin_of(path)
    assert origin.path == str(path)
    assert file_state(origin) is FileState.SAME
    assert file_state(origin_of(touched(path))) is FileState.SAME
    assert file_state(origin) is FileState.SAME  # another time, the same content
    touched(written(path, "two\n"))
    assert file_state(origin) is FileState.CHANGED
    written(path, "longer\n")
    assert file_state(origin) is FileState.CHANGED
    path.unlink()
    assert file_state(origin) is FileState.GONE
    path.mkdir()
    assert file_state(origin) is FileState.GONE


def test_an_unchanged_time_and_size_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = origin_of(written(tmp_path / "note.txt", "one\n"))
    monkeypatch.setattr(changes, "open_file", lambda path: pytest.fail("it was opened"))
    assert file_state(origin) is FileState.SAME


def test_a_pipe_in_place_of_a_file_is_not_opened(tmp_path: Path) -> None:
    path = written(tmp_path / "note.txt", "one\n")
    origin = origin_of(path)
    path.unlink()
    os.mkfifo(path)
    assert file_state(origin) is FileState.GONE


def test_a_file_that_cannot_be_reached_counts_as_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = origin_of(written(tmp_path / "note.txt", "one\n"))

    def times_out(path: str) -> None:
        raise TimeoutError

    monkeypatch.setattr(os, "stat", times_out)
    assert file_state(origin) is FileState.SAME


def test_changes_are_grouped_by_folder(tmp_path: Path) -> None:
    for name in ("a.py", "sub/b.py", "c.py", "old.bin"):
        written(tmp_path / "src" / name, "\0" if name == "old.bin" else f"{name}\n")
    time.sleep(2 * CLOCK_LAG / 1e9)  # the binary file is older than the first reading
    alone = written(tmp_path / "alone.txt", "one\n")
    documents = read([str(tmp_path / "src"), str(alone)]).documents
    assert find_changes(documents, ReadLimits()) == []
    written(tmp_path / "src" / "a.py", "changed\n")
    written(tmp_path / "src" / "sub" / "new.py", "new\n")
    (tmp_path / "src" / "c.py").unlink()
    written(alone, "changed\n")
    single, folder = find_changes(documents, ReadLimits())
    assert (single.text, single.path) == ("changed", str(alone))
    assert (folder.text, folder.path) == ("1 changed, 1 new, 1 gone", str(tmp_path / "src"))
    assert folder.new == (str(tmp_path / "src" / "sub" / "new.py"),)
    assert [each.text for each in find_changes(documents)] == ["changed", "1 changed, 1 gone"]


def test_a_file_that_is_moved_into_a_folder_is_new(tmp_path: Path) -> None:
    moved = written(tmp_path / "moved.py", "moved\n")
    touched(moved, -1000)
    written(tmp_path / "src" / "a.py", "a\n")
    written(tmp_path / "src" / ".gitignore", "ignored.py\n")
    time.sleep(2 * CLOCK_LAG / 1e9)
    documents = read([str(tmp_path / "src")]).documents
    moved.rename(tmp_path / "src" / "moved.py")
    written(tmp_path / "src" / "ignored.py", "ignored\n")
    (folder,) = find_changes(documents, ReadLimits())
    assert folder.text == "1 new"
    shutil.rmtree(tmp_path / "src")
    (folder,) = find_changes(documents, ReadLimits())
    assert folder.text == f"{len(documents) - 1} gone"


def test_pastes_have_no_changes() -> None:
    assert find_changes([Document("paste-1.txt", "text")]) == []


def test_a_part_of_a_file_is_read_again_as_a_part() -> None:
    whole = Document("a#1.md", "# C# / F#\none\ntwo\n", origin=Origin("/files/a#1.md"))
    for wanted in ("2-", "C# / F#"):
        (part,) = excerpt(whole, wanted)
        assert read_again_path(part) == f"/files/a#1.md#{wanted}"
    assert read_again_path(whole) == "/files/a#1.md"


def test_a_path_that_is_not_unicode_is_not_remembered(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.txt"
    try:
        Path(os.fsdecode(path)).write_text("text\n")
    except OSError:
        pytest.skip("this file system allows no such names")
    (document,) = read([os.fsdecode(path)]).documents
    assert document.origin is None
    for each in read([str(tmp_path)]).documents[1:]:
        assert each.origin is None

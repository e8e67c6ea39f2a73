"""What one folder holds, for choosing from it: bounded, and honest about what it left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.ingest.records import IngestError, ReadCancelled
from app.ingest.walk import DirListing, list_folder
from tests.ingest.helpers import check_sentence, written


def listed(path: Path, most: int = 100, seconds: float = 10.0) -> DirListing:
    return list_folder(str(path), most, seconds)


def test_names_kinds_and_what_would_be_left_out(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    written(tmp_path / ".gitignore", "*.log\n/out/\n")
    for name in ("sub/b.py", "sub/a.log", "sub/.env", "sub/keep/x", "sub/out/x", "out/y"):
        written(tmp_path / name)
    os.mkfifo(tmp_path / "sub" / "pipe")
    (tmp_path / "sub" / "loop").symlink_to("loop")
    (tmp_path / "sub" / "link").symlink_to("keep")
    found = {
        each.name: (each.is_folder, each.skip_reason) for each in listed(tmp_path / "sub").entries
    }
    assert found == {
        ".env": (False, "private"),
        "a.log": (False, "ignored"),
        "b.py": (False, ""),
        "keep": (True, ""),
        "link": (True, ""),
        "out": (True, ""),
    }
    assert [e.name for e in listed(tmp_path).entries if e.skip_reason] == ["out"]
    assert ".git" not in [each.name for each in listed(tmp_path).entries]


def test_no_more_than_asked_are_looked_at(tmp_path: Path) -> None:
    for number in range(20):
        written(tmp_path / f"{number:02}")
    assert len(listed(tmp_path, most=7).entries) == 7
    assert listed(tmp_path, most=7).truncated
    assert not listed(tmp_path, most=20).truncated


def test_a_slow_folder_gives_what_it_gave(tmp_path: Path) -> None:
    written(tmp_path / "a")
    assert listed(tmp_path, seconds=-1.0) == DirListing((), truncated=True)


def test_cancelled(tmp_path: Path) -> None:
    written(tmp_path / "a")
    with pytest.raises(ReadCancelled):
        list_folder(str(tmp_path), 10, 10.0, lambda: True)


@pytest.mark.parametrize("name", ["nowhere", "file", "file/x"])
def test_what_is_no_folder_is_said_in_one_sentence(tmp_path: Path, name: str) -> None:
    written(tmp_path / "file")
    with pytest.raises(IngestError, match="no folder") as caught:
        listed(tmp_path / name)
    check_sentence(str(caught.value))

"""What `specchat ask -f` tells of the files and folders it was given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.cli import given
from app.cli.arguments import parser
from app.cli.given import read_given
from app.ingest.limits import Limits
from app.ingest.records import Progress


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, content in {"a": b"a", ".env": b"K=1", "e": b"", ".gitignore": b"*.log"}.items():
        (folder / name).write_bytes(content)
    (folder / "x.log").write_bytes(b"x")
    return folder


def told(path: Path, capsys: pytest.CaptureFixture[str], limits: Limits | None = None) -> list[str]:
    read_given([str(path)], limits)
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_what_was_taken_of_a_folder_and_what_was_not(
    docs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(docs, capsys) == [
        "Read docs: 2 files, 6 bytes; left out 3: 1 private, 1 empty, 1 ignored.",
        "Left out: docs/.env may hold passwords or keys: name it itself to have it read.",
        "Left out: docs/e is empty: give one that holds text.",
        "Left out: docs/x.log is ignored by git's rules: name it itself to have it read.",
    ]
    assert told(docs, capsys, Limits(private=True, ignored=True)) == [
        "Read docs: 4 files, 10 bytes; left out 1: 1 empty.",
        "Left out: docs/e is empty: give one that holds text.",
    ]


def test_a_file_needs_no_words(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(docs / "a", capsys) == []


def test_what_is_no_utf8_is_told(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (docs / "a").write_bytes("grüße ".encode() * 20 + b"\xff")
    assert told(docs / "a", capsys) == ["a is not all UTF-8: what is not reads as \\xff."]


def test_many_are_told_in_one_line(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(30):
        (docs / f"empty {number}").touch()
    lines = told(docs, capsys)
    assert len(lines) == 1 + given.LISTED + 1
    assert lines[-1] == "Left out: 23 more."
    assert ".env" in lines[1], "what matters comes first"


def test_names_are_not_trusted(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (docs / "\x1b]0;x\x07\u202e").touch()
    err = "\n".join(told(docs, capsys))
    assert "\x1b" not in err
    assert "\u202e" not in err


def test_progress_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for terminal, expected in ((False, ""), (True, "\r\x1b[Kreading: 1 taken of 2 looked at")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        live = given.Live()
        live.show(Progress(2, 1, 3, "a"))
        assert capsys.readouterr().err == expected
    live.clear()
    assert capsys.readouterr().err == "\r\x1b[K"


def test_the_options() -> None:
    options = parser().parse_args(["ask", "--private", "--ignored", "x"])
    assert (options.private, options.ignored) == (True, True)

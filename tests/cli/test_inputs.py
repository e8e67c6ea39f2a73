"""What `specchat ask -f` tells of the files and folders it was given."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.cli import ask
from app.cli.ask import read_inputs
from app.errors import UserError
from app.extras.ocr import RECOGNITION
from app.ingest.limits import ReadLimits
from app.ingest.records import IngestError, ReadProgress, ReadResults
from tests.extras.test_ocr import fake_rapidocr
from tests.ingest.test_pdf import pdf_of


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, content in {"a": b"a", ".env": b"K=1", "e": b"", ".gitignore": b"*.log"}.items():
        (folder / name).write_bytes(content)
    (folder / "x.log").write_bytes(b"x")
    return folder


def told(
    path: Path, capsys: pytest.CaptureFixture[str], limits: ReadLimits | None = None
) -> list[str]:
    read_inputs([str(path)], limits)
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_what_was_taken_of_a_folder_and_what_was_not(
    docs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(docs, capsys) == [
        "Read docs: 2 files, 6 B; skipped 3: 1 private, 1 empty, 1 ignored.",
        "Skipped: docs/.env may contain passwords or keys: add it by name to include it.",
        "Skipped: docs/e is empty: there is nothing to read.",
        "Skipped: docs/x.log is ignored by git: add it by name to include it.",
    ]
    assert told(docs, capsys, ReadLimits(include_private=True, include_ignored=True)) == [
        "Read docs: 4 files, 10 B; skipped 1: 1 empty.",
        "Skipped: docs/e is empty: there is nothing to read.",
    ]


def test_a_file_needs_no_words(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(docs / "a", capsys) == []


def test_what_is_no_utf8_is_told(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (docs / "a").write_bytes("grüße ".encode() * 20 + b"\xff")
    assert told(docs / "a", capsys) == [
        "a is not entirely valid UTF-8: invalid bytes appear as \\xff."
    ]


def test_a_guessed_encoding_is_told(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (docs / "a").write_bytes("Výpovědní lhůta činí třicet dní.".encode("cp1250"))
    assert told(docs / "a", capsys) == [
        "a states no encoding and was read as Windows-1250 (Central European): if letters"
        " look wrong, save it as UTF-8."
    ]


def test_how_pages_without_text_can_be_read_is_told(
    docs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = docs / "scan.pdf"
    scan.write_bytes(pdf_of("Cover", ""))
    monkeypatch.setattr(ask, "installed_recogniser", lambda: "")
    command = RECOGNITION.install_command()
    assert re.search(r" install .*'(?:rapidocr|ocrmac)>=", command)
    assert told(scan, capsys)[-1] == f"To read pages without text, run `{command}`, and add --ocr."
    monkeypatch.setattr(ask, "installed_recogniser", lambda: "rapidocr")
    assert told(scan, capsys)[-1] == "To read pages without text, add --ocr."
    with pytest.raises(UserError, match=r"has pages with pictures but no text \(2\): add --ocr."):
        read_inputs([f"{scan}#2"])


def test_a_scan_is_read_with_ocr(
    docs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_rapidocr(docs / "packages", monkeypatch)
    scan = docs / "scan.pdf"
    scan.write_bytes(pdf_of("Cover", ""))
    assert told(scan, capsys, ReadLimits(ocr=True)) == [
        "scan.pdf has 1 page read by OCR: names and figures may be wrong."
    ]


def test_many_are_told_in_one_line(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(30):
        (docs / f"empty {number}").touch()
    lines = told(docs, capsys)
    assert len(lines) == 1 + ask.MAX_LISTED + 1
    assert lines[-1] == "23 more were skipped or not read completely."
    assert ".env" in lines[1], "what matters comes first"


def test_names_are_not_trusted(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (docs / "\x1b]0;x\x07\u202e").touch()
    err = "\n".join(told(docs, capsys))
    assert "\x1b" not in err
    assert "\u202e" not in err


def test_progress_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading(
        paths: object,
        stdin: object,
        limits: object,
        show: Callable[[ReadProgress], None],
        questions: object,
    ) -> ReadResults:
        show(ReadProgress(2, 1, 3, "a"))
        return ReadResults(())

    monkeypatch.setattr(ask, "read", reading)
    for terminal, expected in (
        (False, ""),
        (True, "\r\x1b[KReading: 1 files of 2 visited\r\x1b[K"),
    ):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        read_inputs(["x"])
        assert capsys.readouterr().err == expected


@contextmanager
def piped(monkeypatch: pytest.MonkeyPatch, content: bytes = b"") -> Iterator[int]:
    """Standard input is a pipe that holds this; gives the end to write to."""
    end, start = os.pipe()
    os.write(start, content)
    with open(end) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield start


def test_what_is_piped_in_is_a_document_where_nothing_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with piped(monkeypatch, "zählt\n".encode()) as start:
        os.close(start)
        (document,) = read_inputs([]).documents
    assert (document.name, document.text) == ("standard input", "zählt\n")


def test_a_file_as_standard_input_is_a_document_and_a_binary_one_is_refused(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (docs / "a").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert [each.text for each in read_inputs([]).documents] == ["a"]
    (docs / "binary").write_bytes(b"\0\1")
    with (docs / "binary").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(IngestError, match="Standard input"):
            read_inputs([])


def test_standard_input_that_holds_nothing_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with piped(monkeypatch) as start:
        os.close(start)
        assert read_inputs([]).documents == ()
    with open(os.devnull) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert read_inputs([]).documents == ()


def test_an_open_pipe_is_waited_for_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ask, "SILENCE_SECONDS", 0.0)

    def said(text: str) -> int:
        os.close(start)
        return len(text)

    with piped(monkeypatch) as start, monkeypatch.context() as patch:
        patch.setattr(sys.stderr, "write", said)  # else it would be waited for without end
        assert read_inputs([]).documents == ()


def test_a_pipe_beside_named_files_is_not_read_and_that_is_said(
    docs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with piped(monkeypatch) as start:
        assert len(read_inputs([str(docs / "a")]).documents) == 1  # waits for nobody
        assert capsys.readouterr().err == ""
        os.write(start, b"text")
        assert len(read_inputs([str(docs / "a")]).documents) == 1
        assert "not read with -f" in capsys.readouterr().err
        os.close(start)
        assert len(read_inputs([str(docs / "a"), "-"]).documents) == 2

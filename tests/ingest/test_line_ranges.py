"""Parts of text files of any size: `server.log#2871569-`, `server.log#-500`."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random

import pytest

from app.ingest import line_ranges
from app.ingest.limits import ReadLimits
from app.ingest.reader import read, read_outline
from app.ingest.records import IngestError, ReadProgress
from app.protocol.prompt import Document
from tests.ingest.helpers import written
from tests.ingest.test_pdf import pdf_of
from tests.tables import table

LARGE = ReadLimits(total_bytes=4_000)
LINES = [f"{number}: every gate {'é' * (number % 7)}\n" for number in range(1, 1001)]


def parts(path: Path, part: str, limits: ReadLimits = LARGE) -> list[tuple[int, str]]:
    found = read([f"{path}#{part}"], limits=limits).documents
    return [(each.line, each.text) for each in found]


@table("encoding", ["utf-8", "utf-16", "utf-16-be", "utf-32", "cp1252"])
def test_lines_are_those_of_the_whole_file(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of 128 bytes, which begin and end inside of lines and characters."""
    monkeypatch.setattr(line_ranges, "PIECE", 128)
    file, random = tmp_path / "log.txt", Random(encoding)
    lines = [*LINES, "Größe: für Müller", "\n", "last, without an end"]
    for content in ("".join(lines), "".join(lines) + "\n"):
        file.write_bytes(content.encode(encoding))
        for _ in range(2):
            first, last = sorted(random.sample(range(1, 1003), 2))
            last = min(last, first + 30)
            for part in (f"{first}-{last}", f"-{last - first + 1}", f"{990 + first % 9}-", "-1"):
                assert parts(file, part) == parts(file, part, ReadLimits()), part


def test_the_last_lines(tmp_path: Path) -> None:
    file = written(tmp_path / "log.txt", "".join(LINES))
    for limits in (LARGE, ReadLimits()):
        (last,) = read([f"{file}#-3"], limits=limits).documents
        assert (last.name, last.line, last.text) == ("log.txt#-3", 998, "".join(LINES[-3:]))
        assert last.origin is not None
        assert last.origin.part == "-3"
        assert parts(file, "1-2,-2,-1", limits) == [
            (1, "".join(LINES[:2])),
            (999, "".join(LINES[-2:])),
        ]
    short = written(tmp_path / "short.txt", "one\ntwo\n")
    assert parts(short, "-500", ReadLimits()) == [(1, "one\ntwo\n")]
    with pytest.raises(IngestError, match="has no part '-0'"):
        parts(short, "-0", ReadLimits())


def test_the_last_pages(tmp_path: Path) -> None:
    file = written(tmp_path / "a.pdf", pdf_of("One.", "Two.", "Three."))
    (document,) = read([f"{file}#-2"]).documents
    assert document.name == "a.pdf#-2"
    assert "[Page 2]" in document.text
    assert "[Page 1]" not in document.text


@table(
    "part, lines, advised",
    [
        ("1-900", LINES, "its last 100 lines: {}#-100"),
        ("-900", LINES, "its last 100 lines: {}#-100"),
        ("Summary", LINES, "its last 100 lines: {}#-100"),
        ("1-", ["x" * 3_000 + "\n"] * 9, "its last line: {}#-1"),
        ("1-", ["x" * 9_000 + "\n"] * 9, None),
    ],
)
def test_a_part_that_is_too_large_names_one_that_is_not(
    part: str, lines: list[str], advised: str | None, tmp_path: Path
) -> None:
    file = written(tmp_path / "log.txt", "".join(lines))
    with pytest.raises(IngestError, match="is larger than 4 KB in this part") as caught:
        parts(file, part)
    if advised is None:
        assert caught.value.advice == "its lines are too long"
    else:
        assert caught.value.advice == f"use fewer lines, such as {advised.format(file)}"
        assert parts(file, caught.value.advice.rpartition("#")[2])


def test_a_part_of_a_document_that_is_too_large(tmp_path: Path) -> None:
    """No part of it can be read, so none is advised."""
    page = written(tmp_path / "a.html", "<html><body>" + "<p>Long.</p>\n" * 900)
    pdf = written(tmp_path / "a.pdf", pdf_of("One.", "Two."))
    limits = ReadLimits(total_bytes=500, document_bytes=500)
    for path in (f"{page}#1-2", f"{pdf}#2"):
        with pytest.raises(IngestError, match="is larger than 500 B: raise the limit"):
            read([path], limits=limits)


@table(
    "content, encoding, lossy, guessed",
    [
        ([b"plain\n"] * 20_000 + ["für Müller in Köln\n".encode("cp1252")] * 99, "cp1252", 0, 1),
        ([b"plain\n"] * 20_000 + [b"caf\xc3\xa9 \xff\n"], "utf-8", 1, 0),
        (["für Müller in Köln\n".encode("cp1252")] * 20_000 + [b"plain\n"], "cp1252", 0, 1),
    ],
)
def test_the_encoding_is_that_of_the_first_bytes_and_the_part(
    content: list[bytes], encoding: str, lossy: bool, guessed: bool, tmp_path: Path
) -> None:
    file = written(tmp_path / "log.txt", b"".join(content))
    (found,) = read([f"{file}#-1"], limits=LARGE).results
    (whole,) = read([f"{file}#-1"]).results
    assert found.texts[0].text == whole.texts[0].text
    facts = found.files[0]
    assert (facts.encoding, facts.lossy, facts.guessed) == (encoding, lossy, guessed)


def test_a_part_with_zero_bytes_is_binary(tmp_path: Path) -> None:
    file = written(tmp_path / "log.txt", b"plain\n" * 20_000 + b"\0\0\0\n" + b"plain\n")
    with pytest.raises(IngestError, match="is a binary file"):
        parts(file, "-2")
    assert parts(file, "-1") == [(20_002, "plain\n")]


def test_a_large_file_is_passed_over_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ingest.limits.PROGRESS_SECONDS", 0.0)
    file, seen = tmp_path / "huge.log", list[ReadProgress]()
    line = "2026-11-27 10:00:00 disk array: 12 of 12 drives answer, no fault was found today\n"
    with file.open("w") as log:
        for _ in range(90):
            log.write(line * 10_000)
    tracemalloc.start()
    for part, first in (("-2", 899_999), ("450000-450001", 450_000), ("899999-", 899_999)):
        (document,) = read([f"{file}#{part}"], progress=seen.append).documents
        assert (document.line, document.text) == (first, line * 2)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert any("% of 72.9 MB" in each.page_text for each in seen)


def test_the_lines_that_can_be_named(tmp_path: Path) -> None:
    file = written(tmp_path / "log.txt", "".join(LINES))
    small = ReadLimits(total_bytes=4_000, document_bytes=4_000)
    assert read_outline(str(file), small, lambda: False).units == "lines 1 to 1,000"


def test_a_part_of_a_growing_file_is_what_is_there_when_it_is_read(tmp_path: Path) -> None:
    file = written(tmp_path / "log.txt", "".join(LINES))

    def last() -> Document:
        return read([f"{file}#-2"], limits=LARGE).documents[0]

    before = last()
    with file.open("a") as log:
        log.write("new\n")
    assert (last().name, last().line, last().text) == (before.name, 1000, LINES[-1] + "new\n")

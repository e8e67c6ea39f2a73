"""Text files that are too large to be read whole are searched for the words of a question."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from app.ingest import line_ranges, search
from app.ingest.changes import find_changes
from app.ingest.limits import ReadLimits
from app.ingest.reader import read
from app.ingest.records import IngestError, ReadCancelled, ReadProgress, ReadResult, SkipReason
from app.ingest.search import terms_of
from app.util import formatting
from tests.ingest.helpers import written
from tests.tables import table

LARGE = ReadLimits(total_bytes=200_000)
PLAIN = "2026-11-{:02} 10:00:{:02} disk array: {} of 7700 drives answer, all is well\n"
ALARM = "2026-11-21 17:45:01 ledger: transfer 9917-XK of 1,830.55 was rejected by Müller\n"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FOUND", 16 * search.PAGE)
    monkeypatch.setattr(search, "SAMPLE", 8 * search.PAGE)
    monkeypatch.setattr(search, "ENDS", search.PAGE)


def log_lines(*alarms: int, count: int = 12_000) -> list[str]:
    """The lines of a log of some 700 KB; those with these numbers are alarms."""
    lines = [PLAIN.format(1 + n // 700, n % 60, n) for n in range(1, count + 1)]
    for number in alarms:
        lines[number - 1] = ALARM
    return lines


def found(path: Path, *questions: str, limits: ReadLimits = LARGE) -> ReadResult:
    (result,) = read([str(path)], limits=limits, questions=questions).results
    return result


def places(result: ReadResult, needle: str) -> list[int]:
    """The numbers of the lines that have a text."""
    return [
        document.line + number
        for document in result.texts
        for number, line in enumerate(document.text.splitlines())
        if needle in line
    ]


@table(
    "question",
    [
        "Why was the transfer rejected?",
        "who REJECTS transfers?",
        "What is 9917-xk?",
        "Which one is about 1830.55?",
        "How much is 1,830?",
        "What happened on 21 November 2026?",
        "What happened on November 21st?",
        "What happened on 21.11.2026 at the ledger?",
        "What happened on 2026/11/21?",
        "What happened at 17:45?",
        "What did Müller do?",
        "What did MÜLLER do?",
    ],
)
def test_lines_with_the_words_of_a_question_are_found(question: str, tmp_path: Path) -> None:
    lines = log_lines(7_001)
    file = written(tmp_path / "huge.log", "".join(lines))
    result = found(file, question)
    assert places(result, "9917-XK") == [7_001]
    assert sum(len(each.text) for each in result.texts) < 90_000
    for each in result.texts:
        assert each.name == "huge.log"
        text = each.text.splitlines(keepends=True)
        assert text == lines[each.line - 1 : each.line - 1 + len(text)]


@table("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "cp1252"])
def test_it_is_searched_in_its_encoding_and_in_pieces(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces are so short that words and characters lie across them."""
    monkeypatch.setattr(line_ranges, "PIECE", 256)
    monkeypatch.setattr(search, "PAGE", 512)
    monkeypatch.setattr(search, "ENDS", 512)
    lines = log_lines(701, 1_302, count=2_000)
    file = written(tmp_path / "huge.log", "".join(lines).encode(encoding))
    for question in ("Why was a transfer rejected?", "What did Müller do?"):
        result = found(file, question)
        assert places(result, "9917-XK") == [701, 1_302]
        for each in result.texts:
            text = each.text.splitlines(keepends=True)
            assert text == lines[each.line - 1 : each.line - 1 + len(text)]


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    file = written(tmp_path / "huge.log", "".join(log_lines(7_001)))
    result = found(file, "Why was transfer 9917-XK rejected?")
    (left,) = result.skipped
    count = sum(each.text.count("\n") for each in result.texts)
    assert (left.reason, left.pages) == (SkipReason.SEARCHED, 12_000 - count)
    assert left.sentence == (
        f"huge.log is too large to be read as a whole ({formatting.size(file.stat().st_size)}), so"
        f" {count:,} of its 12,000 lines were chosen: the first and last ones and those around the"
        " question's words (9917-XK, transfer, rejected): name others to read them, as in #100-200."
    )
    assert {each.origin and each.origin.is_searched for each in result.texts} == {True}
    assert "none has a word of the question" in found(file, "Zebras?").skipped[0].sentence
    first = found(file)
    assert "searched for the words of each question: name " in first.skipped[0].sentence
    assert [each.line for each in first.texts] == [1, first.texts[-1].line]


def test_rare_words_come_first_and_equal_pages_are_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FOUND", 10 * search.PAGE)
    file = written(tmp_path / "huge.log", "".join(log_lines(7_001)))
    assert places(found(file, "Do drives answer, was a transfer rejected?"), "9917-XK") == [7_001]
    texts = found(file, "Do all drives answer?").texts
    assert len({each.line * 10 // 12_000 for each in texts}) > 6, "from all over the file"
    assert found(file, "Zebras?").texts[1].line > 500


@table(
    "line, question, is_found",
    [
        ("the unsealed vaults\n", "Who opened the vault?", True),
        ("getVaultKey() failed\n", "Who opened the vault?", False),
        ("getResponseFor()\n", "Where is the response?", True),
        ("id 14711\n", "What is 4711?", False),
        ("id 4711,\n", "What is 4711?", True),
        ("dbx\n", "What is the db?", False),
        ("the db.\n", "What is the db?", True),
        ("Nov  7 03:00:00 host\n", "What was on 7 November?", True),
        ("07/Nov/2026:03:00:00 host\n", "What was on 2026-11-07?", True),
        ("17 Nov\n", "What was on 7 November?", False),
    ],
)
def test_words_are_whole_words_but_for_their_endings(
    line: str, question: str, is_found: bool, tmp_path: Path
) -> None:
    lines = ["all is well here\n"] * 12_000
    lines[7_000] = line
    file = written(tmp_path / "huge.log", "".join(lines))
    assert bool(found(file, question).skipped[0].sentence.count("none has a word")) is not is_found
    assert (places(found(file, question), line.strip()) == [7_001]) is is_found


def test_the_question_before_counts_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FOUND", 3 * search.PAGE)
    lines = log_lines(7_001)
    lines[3_000] = "zebra\n"
    file = written(tmp_path / "huge.log", "".join(lines))
    assert places(found(file, "And why?", "What about the zebra?"), "zebra") == [3_001]
    both = found(file, "Was a transfer rejected?", "What about the zebra?")
    assert (places(both, "9917-XK"), places(both, "zebra")) == ([7_001], [])


def test_lines_longer_than_a_page_are_cut_between_characters(tmp_path: Path) -> None:
    content = "é" * 200_001 + " vault " + "ü" * 200_001 + "\nshort\n"
    file = written(tmp_path / "one.json.txt", content)
    result = found(file, "Where is the vault?")
    assert places(result, "vault") == [1]
    assert "\\x" not in "".join(each.text for each in result.texts)
    assert not result.files[0].doubtful
    assert result.texts[-1].text.endswith("ü\nshort\n")
    assert " 2 of its 2 lines were chosen: " in result.skipped[0].sentence


def test_pages_with_zero_bytes_are_left_out(tmp_path: Path) -> None:
    content = b"all is well\n" * 20_000 + b"\0" * 5_000 + b"vault\n" + b"all is well\n" * 20_000
    result = found(written(tmp_path / "huge.log", content), "Where is the vault?")
    assert "\0" not in "".join(each.text for each in result.texts)


def test_memory_is_bounded_and_there_is_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ingest.limits.PROGRESS_SECONDS", 0.0)
    file, seen = tmp_path / "huge.log", list[ReadProgress]()
    with file.open("w") as log:
        for _ in range(100):
            log.writelines(log_lines(7_001))
    tracemalloc.start()
    read([str(file)], progress=seen.append, questions=["Why was it rejected?"])
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    assert any("% of " in each.page_text for each in seen)
    calls = iter(range(1_000))
    with pytest.raises(ReadCancelled):
        read([str(file)], cancelled=lambda: next(calls) > 20, questions=["Why?"])
    assert next(calls) < 25


def test_a_file_that_is_too_large_beside_others_is_searched(tmp_path: Path) -> None:
    small = written(tmp_path / "small.log", "all is well\n" * 9_000)
    file = written(tmp_path / "other.log", "all is well\n" * 9_000 + "vault\n" + "well\n" * 9_000)
    first, second = read([str(small), str(file)], limits=LARGE, questions=["A vault?"]).results
    assert not first.skipped
    assert second.skipped[0].reason is SkipReason.SEARCHED
    assert places(second, "vault") == [9_001]
    assert not found(file, "A vault?").skipped


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    page = written(tmp_path / "a.html", "<html><body>" + "<p>Long.</p>\n" * 19_000)
    with pytest.raises(IngestError, match="is larger than 200 KB: raise the limit"):
        found(page, "What is long?")
    binary = written(tmp_path / "a.bin", b"\0\1" * 190_000)
    with pytest.raises(IngestError, match="is a binary file"):
        found(binary, "What is long?")
    private = replace(LARGE, total_bytes=1 << 20)
    assert not found(page, "What is long?", limits=private).skipped


def test_a_searched_file_is_not_offered_to_be_read_again(tmp_path: Path) -> None:
    """Each question searches it as it is then."""
    file = written(tmp_path / "huge.log", "".join(log_lines()))
    documents = found(file, "All well?").documents
    written(file, "".join(log_lines(5)))
    assert find_changes(documents) == []


def test_a_date_is_looked_for_in_all_notations() -> None:
    (date, *_) = terms_of("What was on 7 November 2026?")
    expected = ["2026-11-07", "2026/11/07", "20261107", "07/nov/2026", "07.11.2026", "11/07/2026"]
    assert {*expected, "nov  7", "nov 07", "7 november", "november 7"} <= {*date.forms}


def test_a_word_is_found_in_both_spellings() -> None:
    (word,) = terms_of("organisations")
    assert word.forms == ("organization", "organisation")
    (word,) = terms_of("sequence")
    assert word.forms == ("sequens", "sequenc")

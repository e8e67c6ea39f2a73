"""Parts of documents, named after a `#`."""

from __future__ import annotations

import io
import os
from pathlib import Path

import openpyxl
import pytest

from app.ingest.changes import FileState, file_state
from app.ingest.documents import document_text
from app.ingest.excerpt import Outline, excerpt, outline_of, page_ranges, split_path
from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.reader import read, read_outline
from app.ingest.records import IngestError
from app.protocol.prompt import Document
from app.util.places import MARK, place_of
from tests.ingest.helpers import folder, intake, refusal, written
from tests.ingest.test_pdf import pdf_of
from tests.ingest.test_pdf_text import lines, pdf_file
from tests.tables import slow, table

LOG = "".join(f"request {number}\n" for number in range(1, 301))
NOTES = """# Plan
intro

## Next steps
Buy a boat.

```
# no heading
```
### Detail, large
red

## Later
Sell it.
"""
MANUAL = "[Page 1]\nCover\n\n[Page 2]\n# Term\nLong.\n\n[Page 3]\nStill.\n# Costs\nMany.\n\n"
BOOK = "".join(
    f"[Page {label} ({number} of 5)]\n# {title}\nText.\n\n"
    for number, (label, title) in enumerate(
        [("i", "Preface"), ("ii", "Contents"), ("1", "Aims"), ("2", "Costs"), ("A-1", "ii")], 1
    )
)
SLIDES = "[Slide 1]\n# Hello\n\n[Slide 2 (hidden)]\n# Costs\n- 3\n\n[Slide 3]\n# End\n"
SHEETS = "[Sheet Costs]\n| a |\n\n[Sheet 2024, May (hidden)]\n| b |\n\n[Sheet Income]\n| c |\n"


def workbook(**sheets: str) -> bytes:
    """A workbook of sheets with one cell each."""
    book = openpyxl.Workbook()
    del book[book.sheetnames[0]]
    for name, cell in sheets.items():
        book.create_sheet(name).append([cell])
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def outline(path: Path) -> Outline:
    return read_outline(str(path), ReadLimits(), lambda: False)


def pages(*numbers: int) -> str:
    return "".join(f"[Page {number}]\nThis is page {number}.\n\n" for number in numbers)


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    return written(
        tmp_path / "a.pdf", pdf_of(*(f"This is page {number}." for number in range(1, 13)))
    )


@table(
    "name, text, wanted, expected",
    [
        ("a.log", LOG, "100", {100: "request 100\n"}),
        ("a.log", LOG, "299-", {299: "request 299\nrequest 300\n"}),
        ("a.log", LOG, "7, 5-6,5", {5: "request 5\nrequest 6\nrequest 7\n"}),
        ("a.log", LOG, "9,1-2", {1: "request 1\nrequest 2\n", 9: "request 9\n"}),
        ("a.txt", "one\ntwo", "2", {2: "two"}),
        ("a.txt", "one\n\n\n", "1-3", {1: "one\n\n\n"}),
        ("a.md", NOTES, "next steps", {4: NOTES[NOTES.index("## N") : NOTES.index("## L")]}),
        ("a.md", NOTES, "Detail, large", {10: "### Detail, large\nred\n\n"}),
        ("a.md", NOTES, "det,later", {10: NOTES[NOTES.index("### D") :]}),
        ("a.md", NOTES, "Plan", {1: NOTES}),
        ("a.md", "# 1 Start\na\n# 1.2 Costs\nb\n", "costs", {3: "# 1.2 Costs\nb\n"}),
        ("a.pdf", MANUAL, "1,3", {1: MANUAL[: MANUAL.index("[Page 2]")] + MANUAL[-31:]}),
        ("a.pdf", MANUAL, "Term", {1: MANUAL[MANUAL.index("[Page 2]") :]}),
        ("a.pdf", BOOK, "ii", {1: BOOK[BOOK.index("[Page ii") : BOOK.index("[Page 1")]}),
        ("a.pdf", BOOK, "1", {1: BOOK[BOOK.index("[Page 1") : BOOK.index("[Page 2")]}),
        ("a.pdf", BOOK, "4", {1: BOOK[BOOK.index("[Page 2") : BOOK.index("[Page A")]}),
        ("a.pdf", BOOK, "A-1", {1: BOOK[BOOK.index("[Page A") :]}),
        (
            "a.pdf",
            BOOK,
            "I-ii,2-a-1",
            {1: BOOK.replace("[Page 1 (3 of 5)]\n# Aims\nText.\n\n", "")},
        ),
        ("a.pdf", BOOK, "costs", {1: BOOK[BOOK.index("[Page 2") : BOOK.index("[Page A")]}),
        ("a.pptx", SLIDES, "2", {1: SLIDES[SLIDES.index("[Slide 2") : SLIDES.index("[Slide 3")]}),
        ("a.pptx", SLIDES, "hello", {1: "[Slide 1]\n# Hello\n\n"}),
        ("a.xlsx", SHEETS, "costs", {1: "[Sheet Costs]\n| a |\n\n"}),
        ("a.xlsx", SHEETS, "2024, may", {1: "[Sheet 2024, May (hidden)]\n| b |\n\n"}),
        ("a.xlsx", SHEETS, "3", {1: "[Sheet Income]\n| c |\n"}),
        ("a.xlsx", SHEETS, "Costs,Income", {1: SHEETS[:21] + SHEETS[-21:]}),
        ("a.xlsx", SHEETS, "Costs,2024, May", {1: SHEETS[: SHEETS.index("[Sheet I")]}),
        ("a.md", NOTES, "Plan,Detail, large", {1: NOTES}),
        ("a.md", "# 1\none\n# 2024\ntwo\n", "2024", {3: "# 2024\ntwo\n"}),
        ("a.ini", "[Section 9]\none\ntwo\n", "2", {2: "one\n"}),
        ("a.xlsx", SHEETS, "2-", {1: SHEETS[SHEETS.index("[Sheet 2") :]}),
    ],
)
def test_a_part_of_a_document(name: str, text: str, wanted: str, expected: dict[int, str]) -> None:
    found = excerpt(Document(name, text), wanted)
    assert {each.line: each.text for each in found} == expected
    assert len({each.name for each in found}) == 1


@table(
    "text, wanted, name",
    [
        (LOG, "299-", "X#299-300"),
        (LOG, " 7, 5-6", "X#7,5-6"),
        (MANUAL, "costs", "X#Costs"),
        (BOOK, "II-1", "X#ii-1"),
        (BOOK, "5", "X#A-1"),
        (BOOK, "2-", "X#2-A-1"),
        (SHEETS, "2", "X#2024, May"),
        (SHEETS, "1-2", "X#1-2"),
        ("# In/Out\nb\n", "in/out", "X#In∕Out"),
    ],
)
def test_the_name_says_which_part_it_is(text: str, wanted: str, name: str) -> None:
    assert excerpt(Document("X", text), wanted)[0].name == name


def test_a_part_of_a_part_has_the_numbers_of_the_file() -> None:
    (lines,) = excerpt(Document("a.log", LOG), "100-200")
    (fewer,) = excerpt(lines, "150-160")
    assert (fewer.name, fewer.line) == ("a.log#150-160", 150)
    (some,) = excerpt(Document("a.pdf", MANUAL), "2-3")
    assert excerpt(some, "3") == excerpt(Document("a.pdf", MANUAL), "3")


def test_places_in_a_part_are_those_of_the_file(pdf: Path) -> None:
    (document,) = read([f"{pdf}#5-6,9"]).documents
    assert (document.name, document.text) == ("a.pdf#5-6,9", pages(5, 6, 9))
    place = place_of(document.text, document.text.index("page 9"), document.line, document.name)
    assert place.text == "page 9, line 1"
    lines = excerpt(Document("a.py", "# no heading\n" * 50), "40-")[0]
    assert place_of(lines.text, 30, lines.line, lines.name).short == "line 42"


def test_only_the_wanted_pages_of_a_pdf_are_read(
    pdf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, int]] = []
    budget = ReadBudget()
    monkeypatch.setattr(budget, "show_page", lambda *page: shown.append(page))
    found = document_text("a.pdf", pdf.read_bytes(), ReadLimits(), budget, "2,11-")
    assert found.text == pages(2, 11, 12)
    assert shown[-1] == (3, 3)


def test_a_line_that_looks_like_a_mark_is_none(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pdf", pdf_of("One.", "[Page 12]", "Three."))
    (document,) = read([f"{path}#2-3"]).documents
    assert document.text == "[Page 2]\n [Page 12]\n\n[Page 3]\nThree.\n\n"


def test_only_the_wanted_pages_are_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "scan.pdf", pdf_of("One.", "", "Three.", "", ""))
    taken = intake(Path(f"{path}#2-4"))
    (skipped,) = taken.skipped
    assert skipped.sentence.startswith("scan.pdf#2-4 has 2 of 3 pages (2, 4) without text:")
    assert taken.texts[0].text == "[Page 2]\n\n\n[Page 3]\nThree.\n\n[Page 4]\n\n\n"
    assert intake(Path(f"{path}#3")).skipped == ()
    assert "has pages with pictures but no text (4-5)" in refusal(f"{path}#4-")


def test_the_parts_of_a_file(tmp_path: Path, pdf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(ReadBudget, "show_page", lambda *page: shown.append(page))
    assert outline(pdf).units == "pages 1 to 12"
    assert not shown, "no page was read"
    sheets = written(tmp_path / "a.xlsx", workbook(Costs="12", Income="13"))
    assert [*outline(sheets).named()] == [("Costs", ""), ("Income", "")]
    notes = outline(written(tmp_path / "a.md", NOTES))
    assert [*notes.named()][1:3] == [("Next steps", "line 4"), ("Detail, large", "line 10")]
    assert [notes.can_find(each) for each in ("3,5-10", "plan,later", "plan", "99", "")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    with pytest.raises(IngestError, match="is damaged"):
        outline(written(tmp_path / "b.pdf", b"%PDF-1.7\nbroken"))


@table(
    "wanted, name, numbers",
    [
        ("1000", "1000", ((1000, 1000),)),
        ("1,000", "1000", ((1000, 1000),)),
        ("999-1,001", "999-1001", ((999, 1001),)),
        ("5,1,000", "5,1000", ((5, 5), (1000, 1000))),
        ("1,200", "1,200", ((1, 1), (200, 200))),
    ],
)
def test_pages_from_1000_on(wanted: str, name: str, numbers: tuple[tuple[int, int], ...]) -> None:
    outline = Outline("page", range(1, 1301))
    assert outline.find(wanted) == (name, [*numbers])
    assert page_ranges(wanted, 1300, ()) == numbers


def test_pages_with_labels() -> None:
    book = outline_of(Document("a.pdf", BOOK))
    assert book.units == "pages i to A-1"
    assert [*book.named()] == [
        ("Preface", "page i"),
        ("Contents", "page ii"),
        ("Aims", "page 1"),
        ("Costs", "page 2"),
    ]
    assert [book.can_find(each) for each in ("ii", "i-2", "2-", "5", "9", "x")] == [
        *[True] * 4,
        False,
        False,
    ]
    for wanted, missing in (("9", "page 9"), ("1-7", "page 7"), ("x", "heading 'x'")):
        assert book.missing(wanted).detail == f"has no {missing}"


LABELLED = {
    "1": ["[Page 1 (3 of 5)]"],
    "II-1": ["[Page ii (2 of 5)]", "[Page 1 (3 of 5)]"],
    "i,A-2": ["[Page i (1 of 5)]", "[Page A-2 (5 of 5)]"],
    "A-1-": ["[Page A-1 (4 of 5)]", "[Page A-2 (5 of 5)]"],
    "5": ["[Page A-2 (5 of 5)]"],
}


def test_pages_are_named_by_their_labels(tmp_path: Path) -> None:
    """Only the pages that are named are read. A number that is no label is that of a page in its
    file."""
    labels = "/PageLabels<</Nums[0<</S/r>>2<</S/D>>3<</S/D/P(A-)>>]>>"
    texts = [lines(f"Sentence {number}.") for number in range(5)]
    path = written(tmp_path / "book.pdf", pdf_file(*texts, catalog=labels))
    for wanted, marks in LABELLED.items():
        (document,) = intake(f"{path}#{wanted}").documents
        assert [each[0] for each in MARK.finditer(document.text)] == marks, wanted
    assert outline(path).labels == ("i", "ii", "1", "A-1", "A-2")
    assert refusal(f"{path}#9") == f"'{path}' has no page 9: it has pages i to A-2."
    scan = pdf_file(*texts[:3], "", "", catalog=labels)
    (missing,) = intake(written(tmp_path / "scan.pdf", scan)).skipped
    assert "has 2 of 5 pages (A-1 to A-2) without text" in missing.sentence


MISSING = [
    ("a.pdf#13", "has no page 13: it has pages 1 to 12."),
    ("a.pdf#11-40", "has no page 40: it has pages 1 to 12."),
    ("a.pdf#0", "has no page 0: it has pages 1 to 12."),
    ("a.pdf#5-3", "has no part '5-3': it has pages 1 to 12."),
    ("a.pdf#Intro", "has no part 'Intro': it has pages 1 to 12."),
    ("one.pdf#2", "has no page 2: it has only page 1."),
    ("a.xlsx#Rent", "has no sheet 'Rent': it has the sheets 'Costs' and 'Income'."),
    ("a.xlsx#Costs,Rent", "has no sheet 'Rent': it has the sheets 'Costs' and 'Income'."),
    ("a.log#301", "has no line 301: it has lines 1 to 300."),
    ("a.log#5-1000", "has no line 1,000: it has lines 1 to 300."),
    (
        "a.md#Rent",
        "has no heading 'Rent': it has lines 1 to 14, and the headings 'Plan', 'Next steps',"
        " 'Detail, large' and 'Later'.",
    ),
    ("blank.txt#2-3", "has only blank lines in this part: choose another one."),
]


@pytest.mark.parametrize("rows", [MISSING[::2], slow(MISSING)], ids=["half", "all"])
def test_a_part_that_does_not_exist(tmp_path: Path, pdf: Path, rows: list[tuple[str, str]]) -> None:
    written(tmp_path / "one.pdf", pdf_of("One."))
    written(tmp_path / "a.xlsx", workbook(Costs="12", Income="13"))
    folder(tmp_path, **{"a.log": LOG, "a.md": NOTES, "blank.txt": "a\n\n\nb\n"})
    for wanted, sentence in rows:
        file = tmp_path / wanted.partition("#")[0]
        assert refusal(tmp_path / wanted) == f"{str(file)!r} {sentence}"


def test_many_headings_are_counted() -> None:
    headings = "".join(f"# Part {letter}\ntext\n" for letter in "ABCDEFGHIJKLM")
    with pytest.raises(Exception, match="no part") as caught:
        excerpt(Document("a.md", headings), "Part Z")
    assert caught.value.advice.endswith("'Part G', 'Part H' and 5 more")  # type: ignore[attr-defined]


def test_a_name_with_a_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a#1.txt", "one\ntwo\n")
    written(tmp_path / "a", "three\nfour\n")
    written(tmp_path / "b.md", "# C# notes\nfive\n")
    written(tmp_path / "folder" / "c.txt", "six\n")
    monkeypatch.chdir(tmp_path)
    for path, expected in {
        "a#1.txt": ("a#1.txt", ""),
        "a#1.txt#2": ("a#1.txt", "2"),
        "a#2": ("a", "2"),
        "a#1.txt#": ("a#1.txt", ""),
        "b.md#C# notes": ("b.md", "C# notes"),
        "#2": ("#2", ""),
        "folder#2": ("folder#2", ""),
        "gone.txt#2": ("gone.txt#2", ""),
    }.items():
        assert split_path(path) == expected
    texts = [each.text for each in read(["a#1.txt", "a#1.txt#2", "a#2"]).documents]
    assert texts == ["one\ntwo\n", "two\n", "four\n"]
    assert "There is no file or folder 'folder#2'" in refusal("folder#2")
    assert os.listdir("folder") == ["c.txt"]


LARGE = ReadLimits(total_bytes=4_000)


@table(
    "part, names, firsts",
    [
        ("3", ["log.txt#3"], [3]),
        ("2-4,900-901", ["log.txt#2-4", "log.txt#900-901"], [2, 900]),
        ("990-", ["log.txt#990-1000"], [990]),
        ("1000", ["log.txt#1000"], [1000]),
        ("1-100,50-150", ["log.txt#1-150"], [1]),
        ("900-,7,5-6,999-1000,20", ["log.txt#5-7", "log.txt#20", "log.txt#900-1000"], [5, 20, 900]),
    ],
)
def test_lines_of_a_file_that_is_too_large_to_read_whole(
    part: str, names: list[str], firsts: list[int], tmp_path: Path
) -> None:
    file = tmp_path / "log.txt"
    content = [f"{number}: every gate {'é' * (number % 7)}\n" for number in range(1, 1001)]
    file.write_text("".join(content))
    found = read([f"{file}#{part}"], limits=LARGE).documents
    assert [each.name for each in found] == names
    assert [each.line for each in found] == firsts
    whole = read([f"{file}#{part}"]).documents
    assert [each.text for each in found] == [each.text for each in whole]
    assert [each.origin and each.origin.size for each in found] == [file.stat().st_size] * len(
        found
    )
    for each in found:
        assert each.origin is not None
        assert file_state(each.origin) is FileState.SAME


@table(
    "part, why",
    [
        ("1001", "has no line 1,001: it has lines 1 to 1,000"),
        ("995-,997-1001", "has no line 1,001: it has lines 1 to 1,000"),
        ("0-3", "has no line 0: it has lines 1 to 1,000"),
        ("1-900", "is larger than 4 KB"),
        ("Summary", "is larger than 4 KB"),
    ],
)
def test_lines_that_cannot_be_read_of_such_a_file(part: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    file.write_text("every gate is open\n" * 1000)
    with pytest.raises(IngestError, match=why):
        read([f"{file}#{part}"], limits=LARGE)


@table("limits", [LARGE, ReadLimits()])
def test_blank_lines_of_a_file_are_said_to_be_blank(limits: ReadLimits, tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    file.write_text("\n \n" * 2_000 + "open\n")
    for part in ("2-3", "2-3,7", "1-1000"):
        with pytest.raises(IngestError, match="has only blank lines in this part"):
            read([f"{file}#{part}"], limits=limits)
    found = read([f"{file}#2,4001"], limits=limits)
    assert [(each.text, each.line) for each in found.documents] == [(" \n", 2), ("open\n", 4001)]


def test_overlapping_parts_of_a_file_are_read_as_one(tmp_path: Path) -> None:
    file, other = tmp_path / "log.txt", tmp_path / "b.txt"
    file.write_text("".join(f"{number}\n" for number in range(1, 1001)))
    other.write_text("".join(f"{number}\n" for number in range(1, 1001)))
    parts = [f"{file}#1-3", f"{other}#2-5", f"{file}#7-9,20", f"{file}#50", f"{file}#3-8"]
    for limits in (ReadLimits(total_bytes=1_000), ReadLimits()):
        documents = read(parts, limits=limits).documents
        assert [each.line for each in documents] == [1, 20, 2, 50]
        assert [each.text.split() for each in documents] == [
            [*"123456789"],
            ["20"],
            [*"2345"],
            ["50"],
        ]
    assert [each.name for each in read([f"{file}#5", f"{file}#9"]).documents] == [
        "log.txt#5",
        "log.txt#9",
    ]


@table(
    "content, text",
    [
        (b"\xef\xbb\xbf" + "zwölf\r\n".encode() * 900, "zwölf\nzwölf\n"),
        (
            "zwölf\n".encode() * 400 + b"zw\xff\xfelf\n" * 2 + "zwölf\n".encode() * 400,
            "zw\\xff\\xfelf\n" * 2,
        ),
        ("Größe: zwölf Stück, für Müller in Köln\n".encode("cp1252") * 200, None),
    ],
)
def test_lines_are_decoded_as_their_file(content: bytes, text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    file.write_bytes(content)
    (part,) = read([f"{file}#401-402" if text else f"{file}#101-102"], limits=LARGE).documents
    (small,) = read([f"{file}#401-402" if text else f"{file}#101-102"]).documents
    assert part.text == small.text
    assert text is None or part.text.replace("\r", "") == text

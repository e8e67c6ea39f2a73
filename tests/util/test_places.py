"""Page, line and headings of a character."""

from __future__ import annotations

import time

from app.util.places import MAX_HEADING, gaps, headings, place_of
from tests.tables import table

PAGES = "[Page 1]\none\n\n[Page 12]\ntwo\nthree"
BOOK = "[Page iv (4 of 1200)]\nthree\n\n[Page 1 (5 of 1200)]\nfour"
SLIDES = "[Slide 1]\none\n\n[Slide 2 (hidden)]\ntwo\n"
SHEETS = "[Sheet Prices 2024]\n| a | b |\n"
MARKDOWN = """# Contract

## Term
one

```
# no heading
two
```
## Termination ##
three

# Annex
four
"""


@table(
    "text, word, first_line, expected",
    [
        ("a\nb\nc", "c", 1, "line 3"),
        ("a\nb\nc", "c", 120, "line 122"),
        ("x\n" * 1999 + "y", "y", 1, "line 2,000"),
        (PAGES, "one", 1, "page 1, line 1"),
        (PAGES, "three", 1, "page 12, line 2"),
        (PAGES, "three", 120, "page 12, line 2"),
        (PAGES, "[Page 1]", 1, "page 1, line 1"),
        (PAGES, "Page 12]", 1, "page 12, line 1"),
        (BOOK, "three", 1, "page iv, line 1"),
        (BOOK, "four", 1, "page 1, line 1"),
        ("[Page 1000]\nx", "x", 1, "page 1,000, line 1"),
        ("[Page 1,000]\nx", "x", 1, "page 1,000, line 1"),
        ("[Sheet 2024]\n| a | x |\n", "x", 1, "sheet 2024, row 1"),
        (SLIDES, "two", 1, "slide 2 (hidden), line 1"),
        (SHEETS, "b", 1, "sheet Prices 2024, row 1"),
        ("see [Page 3]\nx", "x", 1, "line 2"),  # no line of its own
    ],
)
def test_a_place_has_the_part_that_it_is_in(
    text: str, word: str, first_line: int, expected: str
) -> None:
    assert place_of(text, text.index(word), first_line).text == expected


@table(
    "name, place",
    [
        *((name, "page 99, line 1") for name in ("a.pdf", "book.epub#3", "")),
        *((name, "line 2") for name in ("README.md", "notes.txt", "contract.rtf", "a.py")),
        *((name, "line 2") for name in ("text 1", "text 12", "text 1 (2)", "text")),
    ],
)
def test_a_line_like_a_mark_in_a_text_is_a_line(name: str, place: str) -> None:
    assert place_of("[Page 99]\nx", 10, name=name).text == place


@table(
    "mark", ["[Page 1000]", "[Page 1,000]", "[Page iv (1000 of 1200)]", "[Page x (1,000 of 1,200)]"]
)
def test_pages_from_1000_on_have_their_number(mark: str) -> None:
    assert place_of(f"{mark}\nx", len(mark) + 1, name="a.pdf").page == 1000


def test_a_retrieved_part_has_the_page_line_and_headings_of_its_file() -> None:
    text = "[Page 1]\n# Term\none\n\n[Page 2]\ntwo\nthree\n"
    start = text.index("two")
    place = place_of("two\nthree\n", 4, 6, "a.pdf", (text, start))
    assert (place.text, place.headings) == ("page 2, line 2", ("Term",))
    part = "two\nthree\n"  # the file itself is a part that begins at line 10
    assert place_of(part, 4, 12, "a.md", (f"zero\none\n{part}", 9)).text == "line 13"


@table(
    "text, expected",
    [
        (PAGES, []),
        ("[Page 1]\n\n\n[Page 2]\nx\n\n[Page 3]\n\n\n", ["2 of 3 pages without text"]),
        ("[Slide 1]\n(This slide could not be read.)\n\n", ["1 of 1 slide without text"]),
        ("[Sheet A]\n\n\n", []),
        ("[Sheet A]\n[More rows or columns, not read]\n", ["more rows or columns not read"]),
        ("x\n[2 embedded files, not read]\n", ["2 embedded files not read"]),
        ("[Attachment a.zip, not read]\n\n[Attachment b, not read]\n", ["2 attachments not read"]),
        ("It was [sent, not read] twice.", []),
    ],
)
def test_what_could_not_be_read_is_known_from_the_text(text: str, expected: list[str]) -> None:
    assert [*gaps(text)] == expected


@table(
    "word, expected",
    [
        ("Contract", ("Contract",)),
        ("one", ("Contract", "Term")),
        ("two", ("Contract", "Term")),
        ("three", ("Contract", "Termination")),
        ("four", ("Annex",)),
    ],
)
def test_a_place_has_the_headings_above_it(word: str, expected: tuple[str, ...]) -> None:
    assert place_of(MARKDOWN, MARKDOWN.index(word), 1, "contract.md").headings == expected


ROWS = (
    "[Sheet Costs]\n| Item | Price |\n| --- | --- |\n| Pens | 5 |\n|  |  |\n"
    "| Ink | 7 |\n[Row 45]\n"
    "| Total | 12 |\n| --- | --- |\n| Tax | 2 |\n\n[Comment on B2]: Low.\n\n"
    "[Sheet Old]\n[Row 3]\n| x |\n"
)


@table(
    "word, place",
    [
        ("Item", "sheet Costs, row 1"),
        ("Pens", "sheet Costs, row 2"),
        ("Ink", "sheet Costs, row 4"),
        ("Total", "sheet Costs, row 45"),
        ("Tax", "sheet Costs, row 46"),
        ("Low", "sheet Costs, line 11"),
        ("| x", "sheet Old, row 3"),
    ],
)
def test_a_place_in_a_sheet_is_the_row_that_excel_shows(word: str, place: str) -> None:
    assert place_of(ROWS, ROWS.index(word), name="a.xlsx").text == place


CODE = {
    "```\n~~~\n# no\n```\n# yes": ["yes"],
    "````\n```\n# no\n````\n# yes": ["yes"],
    "```python\n# no\n```sh\n# no\n```  \n# yes": ["yes"],
    "```a`b```\n# yes": ["yes"],
    "  ~~~ x\n# no\n   ~~~~\n# yes": ["yes"],
    "```\n# no\n\n[Page 2]\n# yes": ["yes"],
}


@table("text", CODE)
def test_headings_of_code_are_none(text: str) -> None:
    assert [each.title for each in headings(text)] == CODE[text]


def test_a_line_like_a_heading_takes_linear_time() -> None:
    line = f"# a{' ' * 400_000}b"
    start = time.process_time()
    (heading,) = headings(line)
    assert time.process_time() - start < 1
    assert (heading.title[0], heading.title[-1]) == ("a", "b")
    assert [each.title for each in headings("# a ##\n# C#\n# b #  ")] == ["a", "C#", "b"]


@table(
    "name, found",
    [
        *((name, ()) for name in ("a b/a.py", "Makefile", ".gitignore", "zone1970.tab", "hosts")),
        *((name, ()) for name in ("a.ts", "x/Dockerfile#2", "nginx.conf", "run", "a.patch")),
        *((name, ("a",)) for name in ("", "README", "docs/NEWS", "standard input", "text 1")),
        *((name, ()) for name in ("a.rst", "a.org", "a.tex", "readme", "docs/notes")),
        *((name, ("a",)) for name in ("a.md", "A.MD#3-4", "a.docx", "a.txt", "a.eml", "a.ipynb")),
    ],
)
def test_comments_are_no_headings(name: str, found: tuple[str, ...]) -> None:
    assert place_of("# a\nx = 1\n", 5, 1, name).headings == found


RST = """\
=====
Title
=====

One
---
A line
with more
---------

::

    # no
    Code
    ----

Two & three
-----------

Sub
~~~

====  ====
no    no
====  ====

End
---
"""
ORG = "#+TITLE: x\n* One\n*bold*\n# no\n** Sub :a:\n- * no\n* Two\n"
ADOC = (
    "= Title\n:toc:\n\n== One\n----\n== no\n----\n```sh\n# no\n```\n=== Sub ===\n"
    "====\nexample\n====\n....\n= no\n----\n= no\n....\n== Two\n// = no\n"
)
TEX = (
    "\\documentclass{book}\n\\chapter{One {\\bf b}}\\label{x}\n%\\section{no}\nSee \\section{no}\n"
    "  \\section*{Sub}\n\\sectionmark{no}\n\\subsection[short]{Low}\n\\section{Two}\n"
)
FORMS = {
    "a.rst": (RST, [(1, "Title"), (2, "One"), (2, "Two & three"), (3, "Sub"), (2, "End")]),
    "b/a.REST#2": ("\nA\n!!!\n\nB\n===\n\nC\n!!!", [(1, "A"), (2, "B"), (1, "C")]),
    "a.org": (ORG, [(1, "One"), (2, "Sub :a:"), (1, "Two")]),
    "a.adoc": (ADOC, [(1, "Title"), (2, "One"), (3, "Sub"), (2, "Two")]),
    "a.tex": (TEX, [(2, "One {\\bf b}"), (3, "Sub"), (4, "Low"), (3, "Two")]),
}


@table("name", FORMS)
@table("end", ["\n", "\r\n"])
def test_headings_in_the_form_of_the_file(name: str, end: str) -> None:
    text, expected = FORMS[name]
    text = text.replace("\n", end)
    found = [*headings(text, name)]
    assert [(each.level, each.title) for each in found] == expected
    assert all(each.start == 0 or text[each.start - 1] == "\n" for each in found)


@table(
    "text, found",
    [
        (
            "# Plan\n\nText.\n\n## Next\n- milk\n\n```\n# no\nx = 1\n#y\n```\n# End",
            ["Plan", "Next", "End"],
        ),
        ("# Plan\r\n\r\nText.\r\n", ["Plan"]),
        ("# Plan\n## Next\n1. milk", ["Plan", "Next"]),
        ("[Page 1]\n# Term\none\n# Rent\ntwo", ["Term", "Rent"]),
        ("#!/bin/sh\n\n# Plan\n\nx", []),
        ("# Plan\n\n#x = 1\n", []),
        ("# Plan\n\n# Set x\nx = 1\n", []),
        ("# Copyright\n# by me\n\nx\n", []),
    ],
)
def test_names_without_an_ending_have_headings_if_no_line_is_a_comment(
    text: str, found: list[str]
) -> None:
    for name in ("readme", "docs/notes", "a/Contract#3"):
        assert [each.title for each in headings(text, name)] == found
    assert [*headings(text, "Makefile")] == []


def test_a_page_is_a_number_and_a_long_heading_is_cut() -> None:
    assert place_of(PAGES, PAGES.index("two")).page == 12
    assert place_of("[Page 1200]\nx", 12).page == 1200
    assert [place_of(BOOK, BOOK.index(word)).page for word in ("three", "four")] == [4, 5]
    assert place_of(SLIDES, SLIDES.index("one")).page is None
    text = f"# {'x' * 100}\ny"
    assert place_of(text, len(text) - 1).headings == ("x" * MAX_HEADING + "…",)
    assert place_of(PAGES, len(PAGES)).short == "page 12"
    assert place_of(MARKDOWN, MARKDOWN.index("one")).short == "line 4, Term"
    assert place_of(SHEETS, SHEETS.index("b")).short == "sheet Prices 2024, row 1"

"""What a page of a PDF file shows, and what its text is: raised, hidden, struck and turned letters,
columns, tables, headings and labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.ingest.line_ends import LineEnds
from app.ingest.parts import Part
from app.ingest.pdf import PdfPages
from app.ingest.reader import read
from app.util.places import place_of
from tests.ingest.helpers import intake, refusal, written
from tests.tables import table


def pdf_file(
    *contents: str, catalog: str = "", page: str = "", more: Sequence[str] = (), fonts: str = ""
) -> bytes:
    """A PDF file with a page for each content stream. Objects are: 1 the catalog, 2 the pages,
    3 and 4 the fonts /F1 and /F2 (Helvetica and Courier), then each page and its content, then
    `more`. `fonts`: more of them."""
    kids = " ".join(f"{5 + 2 * n} 0 R" for n in range(len(contents)))
    objects = [
        f"<</Type/Catalog/Pages 2 0 R{catalog}>>",
        f"<</Type/Pages/Count {len(contents)}/Kids[{kids}]>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Courier/Encoding/WinAnsiEncoding>>",
    ]
    for n, content in enumerate(contents):
        objects += [
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]{page}/StructParents {n}/Resources<<"
            f"/Font<</F1 3 0 R/F2 4 0 R{fonts}>>/Properties<</On {5 + 2 * len(contents)} 0 R"
            f"/Off {6 + 2 * len(contents)} 0 R>>>>/Contents {6 + 2 * n} 0 R>>",
            stream(content),
        ]
    out, places = b"%PDF-1.7\n", []
    for number, each in enumerate([*objects, *more], 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{each}\nendobj\n".encode("latin-1")
    rows = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(places) + 1
    end = f"trailer\n<</Size {size}/Root 1 0 R>>\nstartxref\n{len(out)}\n%%EOF\n"
    return out + f"xref\n0 {size}\n0000000000 65535 f \n{rows}{end}".encode()


def stream(content: str, entries: str = "") -> str:
    return f"<</Length {len(content)}{entries}>>\nstream\n{content}\nendstream"


def text(operators: str) -> str:
    return f"BT /F1 12 Tf 14 TL 72 700 Td {operators} ET\n"


def lines(*shown: str) -> str:
    return text(" ".join(f"({line}) Tj T*" for line in shown))


def at(x: float, y: float, shown: str, font: str = "/F1 12 Tf") -> str:
    return f"BT {font} {x} {y} Td ({shown}) Tj ET\n"


def pages_of(data: bytes) -> list[Part]:
    pages = PdfPages(data)
    return [pages.read(number) for number in range(len(pages))]


def shown(*contents: str, **more: object) -> str:
    """The text of the first page of a file."""
    return pages_of(pdf_file(*contents, **more))[0].text  # type: ignore[arg-type]


SMALL, LARGE, LOW = "/F1 7 Tf 4.3 Ts", "/F1 12 Tf 0 Ts", "/F1 8 Tf -3 Ts"


@table(
    "operators, expected",
    [
        (f"(At most 10) Tj {SMALL} (6) Tj {LARGE} ( units.) Tj", "At most 10^6 units."),
        (f"(5 m) Tj {SMALL} (2) Tj {LARGE} ( in all) Tj", "5 m^2 in all"),
        (f"(10) Tj {SMALL} (n+1) Tj {LARGE} ( times) Tj", "10^(n+1) times"),
        (f"(On the 1) Tj {SMALL} (st) Tj {LARGE} ( of May) Tj", "On the 1st of May"),
        (f"(3) Tj {SMALL} (1) Tj {LARGE} (/2 hours) Tj", "3 1/2 hours"),
        (f"(33) Tj {SMALL} (\\260) Tj {LARGE} ( or more) Tj", "33° or more"),
        (
            f"(H) Tj {LOW} (2) Tj {LARGE} (O, CO) Tj {LOW} (2) Tj {LARGE} ( rose) Tj",
            "H2O, CO2 rose",
        ),
        (f"(x) Tj {LOW} (1) Tj {LARGE} (+x) Tj {LOW} (i) Tj (,2) Tj {LARGE} (=5) Tj", "x1+xi,2=5"),
        (f"(is low,) Tj {LOW} ( ) Tj 20 -3 Td (too) Tj", "is low,\ntoo"),
        ("(L) Tj /F1 8 Tf 2.5 Ts 3.1 0 Td (A) Tj /F1 12 Tf 0 Ts (TEX) Tj", "LATEX"),
        (
            f"(It rose.) Tj {SMALL} (1) Tj {LARGE} ( Then it fell.) Tj"
            " /F1 5 Tf 0 -200 Td 3 Ts (1) Tj /F1 8 Tf 0 Ts (In May.) Tj",
            "It rose.[^1] Then it fell.\n[^1]: In May.",
        ),
        (
            f"(At 450) Tj {SMALL} (1) Tj {LARGE} ( for 20 m) Tj {SMALL} (1) Tj {LARGE} ( or 10) Tj"
            f" {SMALL} (1) Tj {LARGE} ( days.) Tj /F1 8 Tf 0 -200 Td (1 Before tax.) Tj",
            "At 450[^1] for 20 m^1 or 10^1 days.\n[^1]: Before tax.",
        ),
        (
            f"(Ada) Tj {SMALL} (1,2) Tj {LARGE} ( and Bea) Tj /F1 5 Tf 0 -99 Td 3 Ts (1) Tj"
            " /F1 8 Tf 0 Ts (Here) Tj /F1 5 Tf 0 -20 Td 3 Ts (2) Tj /F1 8 Tf 0 Ts (There) Tj",
            "Ada[^1][^2] and Bea\n[^1]: Here\n[^2]: There",
        ),
    ],
)
def test_raised_letters(operators: str, expected: str) -> None:
    assert shown(text(operators)) == expected


UNSEEN = "(The fee is 500.) Tj 0 -20 Td "
PICTURE = "q 400 0 0 400 50 400 cm BI /W 1 /H 1 /CS /G /BPC 8 ID x EI Q "


@table(
    "before, operators, page, expected",
    [
        ("", "3 Tr (It was 300.) Tj", "", "(hidden: It was 300.)"),
        (PICTURE, "3 Tr (It was 300.) Tj", "", "It was 300."),
        ("", "1 1 1 rg (It was 300.) Tj", "", "(hidden: It was 300.)"),
        ("0 0 0 rg 0 600 600 190 re f ", "1 1 1 rg (It was 300.) Tj", "", "It was 300."),
        (
            "0 0 0 rg 0 0 600 790 re f 1 1 1 rg 0 600 600 190 re f ",
            "1 1 1 rg (It was 300.) Tj",
            "",
            "(hidden: It was 300.)",
        ),
        ("20 w 50 684 m 500 684 l S ", "1 1 1 rg (It was 300.) Tj", "", "It was 300."),
        ("20 w 50 669 m 500 669 l S ", "1 1 1 rg (It was 300.) Tj", "", "(hidden: It was 300.)"),
        ("1 1 1 RG 20 w 50 684 m 500 684 l S ", "1 1 1 rg (No.) Tj", "", "(hidden: No.)"),
        ("2 w 50 650 m 500 720 l S ", "1 1 1 rg (It was 300.) Tj", "", "(hidden: It was 300.)"),
        ("20 w 50 600 500 200 re S ", "1 1 1 rg (It was 300.) Tj", "", "(hidden: It was 300.)"),
        ("", "0 -500 Td (It was 300.) Tj", "/CropBox[0 400 612 792]", "(hidden: It was 300.)"),
        ("", "700 0 Td (It was 300.) Tj", "", "(hidden: It was 300.)"),
        ("", "(It was ) Tj 3 Tr (300) Tj 0 Tr (.) Tj", "", "It was (hidden: 300)."),
        ("", "/OC /On BDC (It was 300.) Tj EMC", "", "It was 300."),
        ("", "/OC /Off BDC (It was 300.) Tj EMC", "", "(hidden: It was 300.)"),
    ],
)
def test_text_that_nobody_sees(before: str, operators: str, page: str, expected: str) -> None:
    layers = "/OCProperties<</OCGs[7 0 R 8 0 R]/D<</OFF[8 0 R]>>>>"
    more = ["<</Type/OCG/Name(Seen)>>", "<</Type/OCG/Name(Unseen)>>"]
    content = before + "0 g " + text(UNSEEN + operators)
    assert shown(content, page=page, catalog=layers, more=more).split("\n") == [
        "The fee is 500.",
        expected,
    ]


def test_the_recognised_text_of_a_page_is_no_hidden_text() -> None:
    assert shown("0 0 600 700 re f " + text("3 Tr (All of the page.) Tj")) == "All of the page."


TURNED = {
    90: "0 1 -1 0 100 20 Tm (One) Tj 0 -20 Td (Two) Tj 0 -20 Td (Three) Tj",
    180: "-1 0 0 -1 500 100 Tm (One) Tj 0 -20 Td (Two) Tj 0 -20 Td (Three) Tj",
    270: "0 -1 1 0 100 700 Tm (One) Tj 0 -20 Td (Two) Tj 0 -20 Td (Three) Tj",
}


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_turned_pages_and_turned_letters(rotation: int) -> None:
    page = f"/Rotate {rotation}"
    assert shown(lines("One", "Two", "Three"), page=page) == "One\nTwo\nThree"
    for operators in TURNED.values():
        assert shown(text(operators), page=page) == "One\nTwo\nThree"
    raised = TURNED[90].replace("(Two) Tj", f"(10) Tj {SMALL} (6) Tj {LARGE} ( m) Tj")
    assert shown(text(raised), page=page) == "One\n10^6 m\nThree"


@table(
    "content, expected",
    [
        (
            at(90, 700, "one") + at(90, 680, "two") + at(80, 700, "-") + at(80, 680, "-"),
            "- one\n- two",
        ),
        (
            at(90, 700, "one") + at(90, 680, "two") + at(70, 700, "1.") + at(70, 680, "2."),
            "1. one\n2. two",
        ),
        (
            at(72, 700, "Text begins") + at(72, 640, "and ends.") + at(72, 780, "A header"),
            "A header\nText begins\nand ends.",
        ),
        (
            at(72, 660, "In a box") + at(72, 700, "Before it") + at(72, 620, "After it"),
            "Before it\nIn a box\nAfter it",
        ),
        (
            at(72, 700, "left one")
            + at(72, 640, "left two")
            + at(300, 700, "right one")
            + at(300, 640, "right two"),
            "left one\nleft two\nright one\nright two",
        ),
    ],
)
def test_lines_that_are_drawn_out_of_order(content: str, expected: str) -> None:
    assert shown(content) == expected


CODE = "/F2 12 Tf"


@table(
    "content, expected",
    [
        (
            text(f"{CODE} (if x:) Tj T* (    return 1) Tj T* (done) Tj"),
            "if x:\n    return 1\ndone",
        ),
        (
            text(f"{CODE} (if x:) Tj 28.8 -14 Td (return 1) Tj -28.8 -14 Td (done) Tj"),
            "if x:\n    return 1\ndone",
        ),
        (text(f"{CODE} (fee    500) Tj T* (rent 1,200) Tj"), "fee    500\nrent 1,200"),
        (text(f"{CODE} (# load the data) Tj T* (  y = 1) Tj"), " # load the data\n  y = 1"),
        (
            text("/F2 6 Tf (12) Tj /F2 12 Tf 28.8 0 Td (def f:) Tj 0 -14 Td (  # y) Tj"),
            "12  def f:\n      # y",
        ),
        (
            text("/F2 12 Tf 2 Tc (if x:) Tj 18.4 -14 Td (y = 1) Tj"),
            "if x:\n  y = 1",
        ),
        (text(f"(Run ) Tj {CODE} (make) Tj /F1 12 Tf ( twice.) Tj"), "Run make twice."),
    ],
)
def test_columns_of_fonts_with_one_width(content: str, expected: str) -> None:
    assert shown(content) == expected


def cells(*rows: Sequence[str]) -> str:
    return "".join(
        at(72 + 100 * column, 700 - 20 * row, cell)
        for row, texts in enumerate(rows)
        for column, cell in enumerate(texts)
        if cell
    )


@table(
    "rows, expected",
    [
        (
            [["Item", "2024", "2025"], ["Fee", "", "30"], ["Rent", "1", "2"]],
            "| Item | 2024 | 2025 |\n| --- | --- | --- |\n| Fee |  | 30 |\n| Rent | 1 | 2 |",
        ),
        (
            [["A", "B", "C"], ["1", "", "2"], [], [], ["D", "E", "F"], ["", "3", "4"]],
            "| A | B | C |\n| --- | --- | --- |\n| 1 |  | 2 |\n\n"
            "| D | E | F |\n| --- | --- | --- |\n|  | 3 | 4 |",
        ),
        (
            [["", "2023", "2024", "2025"], ["Fee", "1", "", "3"], ["Rent", "", "5", ""]],
            "|  | 2023 | 2024 | 2025 |\n| --- | --- | --- | --- |\n| Fee | 1 |  | 3 |\n"
            "| Rent |  | 5 |  |",
        ),
        ([["", "One", "Two", "Three"], ["Costs"]], "One Two Three\nCosts"),
        ([["Item", "2024", "2025"], ["Fee", "1", "30"]], "Item 2024 2025\nFee 1 30"),
        ([["Item", "2024", "2025"], ["Fee", "1", ""]], "Item 2024 2025\nFee 1"),
        ([["Aims", ". . . . .", "5"], ["Costs", "", "7"]], "Aims . . . . . 5\nCosts 7"),
    ],
)
def test_tables_with_empty_cells(rows: list[list[str]], expected: str) -> None:
    assert shown(cells(*rows)) == expected


HEADER = cells(["Pos", "Item", "Fee", "Sum"])
WRAPPED = at(72, 670, "One") + at(172, 670, "A long") + at(172, 656, "name")
LAST = at(72, 630, "Two") + at(372, 630, "7")


@table(
    "content, expected",
    [
        (
            HEADER + WRAPPED + at(272, 670, "5") + at(372, 670, "6") + LAST,
            "| Pos | Item | Fee | Sum |\n| --- | --- | --- | --- |\n| One | A long name | 5 | 6 |\n"
            "| Two |  |  | 7 |",
        ),
        (
            HEADER + WRAPPED + at(272, 670, "5") + at(272, 656, "EUR") + at(372, 670, "6") + LAST,
            "| Pos | Item | Fee | Sum |\n| --- | --- | --- | --- |\n"
            "| One | A long name | 5 EUR | 6 |\n| Two |  |  | 7 |",
        ),
        (
            "".join(at(x, y, f"{x} {y}") for x in (72, 172, 272) for y in (700, 686, 672)),
            "72 700\n72 686\n72 672\n172 700\n172 686\n172 672\n272 700\n272 686\n272 672",
        ),
    ],
)
def test_tables_with_cells_of_several_lines(content: str, expected: str) -> None:
    assert shown(content) == expected


def test_struck_words() -> None:
    line = "72 704 m 132 704 l S "
    assert shown(text("(The old fee) Tj ( is gone.) Tj") + line) == "~~The old fee~~ is gone."
    assert shown(text("(It stays.) Tj") + "72 697 m 132 697 l S ") == "It stays."
    assert shown(text("(A frame) Tj") + "50 704 m 500 704 l S ") == "A frame"
    annotation = (
        "<</Type/Annot/Subtype/StrikeOut/Rect[0 0 9 9]/QuadPoints[90 712 116 712 90 698 116 698]>>"
    )
    struck = shown(text("(The old fee) Tj"), page="/Annots[7 0 R]", more=[annotation])
    assert struck == "The ~~old~~ fee"


def outline(*titles: str) -> tuple[str, list[str]]:
    """The catalog's entry and the objects of bookmarks. `titles`: each with its destination."""
    first = 8
    items = [
        f"<<{title}/Parent 7 0 R"
        + (f"/Next {first + n + 1} 0 R" if n + 1 < len(titles) else "")
        + (f"/Prev {first + n - 1} 0 R" if n else "")
        + ">>"
        for n, title in enumerate(titles)
    ]
    last = first + len(titles) - 1
    return "/Outlines 7 0 R", [f"<</Type/Outlines/First {first} 0 R/Last {last} 0 R>>", *items]


TOP = "/Dest[5 0 R/XYZ 72 {} 0]"


@table(
    "content, title, place, expected",
    [
        (lines("2.1 Fees", "Ten."), "(Fees)", TOP.format(715), "# 2.1 Fees\nTen."),
        (
            lines("Liability of the supplier", "and of others", "It is capped."),
            "(1 Liability of the supplier and of others)",
            TOP.format(715),
            "# Liability of the supplier and of others\nIt is capped.",
        ),
        (
            lines("1 Liability of the supplier", "and of others", "It is capped."),
            "(Liability of the supplier and of others)",
            TOP.format(715),
            "# 1 Liability of the supplier and of others\nIt is capped.",
        ),
        (
            lines("Caf\\351s", "Two."),
            "<FEFF00430061006600650301 0073>",
            TOP.format(715),
            "# Cafés\nTwo.",
        ),
        (
            lines("Definitions. A fee is money.", "More."),
            "(Definitions)",
            TOP.format(715),
            "# Definitions.\nA fee is money.\nMore.",
        ),
        (
            lines("Fees of a kind", "Text.", "Fees", "Ten."),
            "(Fees)",
            TOP.format(690),
            "Fees of a kind\nText.\n# Fees\nTen.",
        ),
        (
            lines("Fees", "Text.", "More.", "Fees", "Ten."),
            "(Fees)",
            TOP.format(670),
            "Fees\nText.\nMore.\n# Fees\nTen.",
        ),
        (
            lines("Chapter IV. Fees", "Text.", "Parts of fees", "Ten."),
            "(Fees)",
            TOP.format(690),
            "# Chapter IV. Fees\nText.\nParts of fees\nTen.",
        ),
        (
            lines("One.", "Two.", "Three."),
            "(Costs)",
            TOP.format(690),
            "One.\n# Costs\nTwo.\nThree.",
        ),
        (lines("One.", "Two."), "(Costs)", "/Dest[5 0 R/Fit]", "# Costs\nOne.\nTwo."),
        (
            lines("One.", "Fees"),
            "(Fees)",
            "/A<</S/GoToR/F(other.pdf)/D[0/Fit]>>",
            "One.\nFees",
        ),
        (
            text(f"(Take 10) Tj {SMALL} (3) Tj {LARGE} ( of them) Tj T* (Ten.) Tj"),
            "(Take 103 of them)",
            TOP.format(715),
            "# Take 10^3 of them\nTen.",
        ),
    ],
)
def test_titles_of_bookmarks(content: str, title: str, place: str, expected: str) -> None:
    catalog, more = outline(f"/Title{title}{place}")
    assert shown(content, catalog=catalog, more=more) == expected


def test_a_title_that_no_line_repeats_stands_before_one_that_a_line_does() -> None:
    places = (
        "/Title(Introduction)/Dest[5 0 R/XYZ 72 715 0]",
        "/Title(Aims)/Dest[5 0 R/XYZ 72 715 0]",
    )
    catalog, more = outline(*places)
    assert (
        shown(lines("Aims", "One."), catalog=catalog, more=more) == "# Introduction\n# Aims\nOne."
    )


def test_the_title_of_a_bookmark_may_be_on_the_next_page() -> None:
    _, more = outline("/Title(Fees)/Dest[5 0 R/XYZ 72 80 0]")
    more = [each.replace(" 7 0 R", " 9 0 R").replace(" 8 0 R", " 10 0 R") for each in more]
    data = pdf_file(lines("One."), lines("Fees", "Ten."), catalog="/Outlines 9 0 R", more=more)
    assert [each.text for each in pages_of(data)] == ["One.", "# Fees\nTen."]


def test_headings_of_tags() -> None:
    content = (
        "/H1 <</MCID 0>> BDC " + at(72, 700, "Fees of") + at(72, 686, "all kinds") + "EMC "
        "/P <</MCID 1>> BDC " + at(72, 660, "Ten.") + "EMC "
        "/H2 <</MCID 2>> BDC " + at(72, 640, "Rent") + "EMC " + at(72, 620, "More.")
    )
    catalog = "/MarkInfo<</Marked true>>/StructTreeRoot 7 0 R"
    kinds = ("H1", "P", "H2")
    elements = [
        f"<</Type/StructElem/S/{kind}/P 8 0 R/Pg 5 0 R/K {n}>>" for n, kind in enumerate(kinds)
    ]
    more = [
        "<</Type/StructTreeRoot/K 8 0 R/ParentTree<</Nums[0[9 0 R 10 0 R 11 0 R]]>>>>",
        "<</Type/StructElem/S/Document/P 7 0 R/K[9 0 R 10 0 R 11 0 R]>>",
        *elements,
    ]
    assert shown(content, catalog=catalog, more=more) == (
        "# Fees of all kinds\nTen.\n## Rent\nMore."
    )
    bookmarks, titles = outline("/Title(Rent)/Dest[5 0 R/XYZ 72 650 0]")
    titles = [each.replace("7 0 R", "12 0 R").replace("8 0 R", "13 0 R") for each in titles]
    both = catalog + bookmarks.replace("7 0 R", "12 0 R")
    assert "\n# Rent" in shown(content, catalog=both, more=[*more, *titles])


LABELS = "/PageLabels<</Nums[0<</S/r>>2<</S/D/St 1>>]>>"


def test_labels_of_pages(tmp_path: Path) -> None:
    texts = ("Preface", "Contents", "# The notice period is 30 days.")
    data = pdf_file(*map(lines, texts), catalog=LABELS)
    marks = ["[Page i (1 of 3)]", "[Page ii (2 of 3)]", "[Page 1 (3 of 3)]"]
    assert [each.mark for each in pages_of(data)] == marks
    assert PdfPages(data).labels() == ["i", "ii", "1"]
    (document,) = read([str(written(tmp_path / "book.pdf", data))]).documents
    place = place_of(document.text, document.text.index("notice"), name=document.name)
    assert (place.text, place.page) == ("page 1, line 1", 3)
    same = pdf_file(*map(lines, texts), catalog="/PageLabels<</Nums[0<</S/D>>]>>")
    assert [each.mark for each in pages_of(same)] == ["[Page 1]", "[Page 2]", "[Page 3]"]
    odd = pdf_file(lines("a"), catalog="/PageLabels<</Nums[0<</P(a]b)>>]>>")
    assert pages_of(odd)[0].mark == "[Page 1]"


IDENTITY = (
    "<</Type/Font/Subtype/Type0/BaseFont/Own/Encoding/Identity-H/DescendantFonts[8 0 R]>>",
    "<</Type/Font/Subtype/CIDFontType2/BaseFont/Own/CIDSystemInfo<</Registry(Adobe)"
    "/Ordering(Identity)/Supplement 0>>/FontDescriptor 9 0 R>>",
    "<</Type/FontDescriptor/FontName/Own/Flags 4/FontBBox[0 0 9 9]/ItalicAngle 0/Ascent 9"
    "/Descent 0/CapHeight 9/StemV 1>>",
)
CONTRACT = "<0026003200310037003500240026003700030032002900030030002400350026002B>"


def test_letters_that_are_not_known(tmp_path: Path) -> None:
    content = f"BT /F3 12 Tf 72 700 Td {CONTRACT} Tj ET"
    file = pdf_file(content, more=IDENTITY, fonts="/F3 7 0 R")
    assert "is a PDF file with pictures but no text" in refusal(written(tmp_path / "a.pdf", file))
    page = pages_of(file)[0]
    assert (page.text, page.blank) == ("", False)

    class Recogniser:
        def text(self, page: object) -> str:
            return "Contract"

    page = PdfPages(file, Recogniser()).read(0)
    assert (page.text, page.recognised) == ("Contract", True)


def test_some_letters_that_are_not_known() -> None:
    content = lines("The fee is 500 euros, and it is due in May.") + (
        f"BT /F3 12 Tf 72 600 Td {CONTRACT} Tj ET"
    )
    page = pages_of(pdf_file(content, more=IDENTITY, fonts="/F3 7 0 R"))[0]
    assert page.text == "The fee is 500 euros, and it is due in May.\n\ufffd"
    ((detail, advice),) = page.said
    assert (detail, "(OCR)" in advice) == (
        "has letters that are not known (\ufffd), first on page 1",
        True,
    )


def test_letters_of_old_bitmap_fonts_have_the_numbers_of_ascii() -> None:
    letters = range(33, 123)
    font = (
        "<</Type/Font/Subtype/Type3/FontBBox[0 0 9 9]/FontMatrix[.1 0 0 .1 0 0]/FirstChar 32"
        f"/LastChar 122/Widths[{'6 ' * 91}]/Encoding<</Type/Encoding/Differences[33 "
        f"{' '.join(f'/a{each}' for each in letters)}]>>/CharProcs<<"
        f"{' '.join(f'/a{each} 8 0 R' for each in letters)}>>>>"
    )
    content = "BT /F3 12 Tf 72 700 Td (Contract of May) Tj ET"
    more = [font, stream("6 0 0 0 6 6 d1 0 0 5 5 re f")]
    assert shown(content, more=more, fonts="/F3 7 0 R") == "Contract of May"


def test_characters_without_a_meaning() -> None:
    assert shown(lines("\\001Aukasz\\tone")) == "\ufffdAukasz\tone"
    assert shown(lines("Kun\\255di\\255gung")) == "Kun-di-gung"  # these are drawn


@table(
    "drawn, expected",
    [
        ("B A", "لا ح"),
        ("BA C", "د لاح"),
        ("BDE C", "د الح"),  # two glyphs
        ("\\)B\\( A", "لا (ح)"),
        ("\\(B\\) A", "لا (ح)"),
        ("\\)B A", "لا ح("),
    ],
)
@pytest.mark.parametrize("after", ["", f"0 -90 Td /F1 12 Tf (m) Tj {SMALL} (2) Tj"])
def test_letters_that_are_written_to_the_left(drawn: str, expected: str, after: str) -> None:
    letters = "<41> <06440627>\n<42> <062D>\n<43> <062F>\n<44> <0644>\n<45> <0627>"
    unicode = (
        "begincmap\n1 begincodespacerange\n<00> <ff>\nendcodespacerange\n"
        f"5 beginbfchar\n{letters}\nendbfchar\nendcmap"
    )
    font = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 8 0 R>>"
    content = f"BT /F3 12 Tf 72 700 Td ({drawn}) Tj {after} ET"
    assert (
        shown(content, more=[font, stream(unicode)], fonts="/F3 7 0 R").split("\n")[0] == expected
    )


FORM = (
    "<xdp:xdp xmlns:xdp='http://ns.adobe.com/xdp/'><x:datasets"
    " xmlns:x='http://www.xfa.org/schema/xfa-data/1.0/'><x:data><form><rent>4500</rent>"
    "<tenant><name>Anna</name></tenant><empty/></form></x:data></x:datasets></xdp:xdp>"
)


def test_forms_of_the_kind_xfa(tmp_path: Path) -> None:
    catalog = "/AcroForm<</Fields[]/XFA 7 0 R>>"
    data = pdf_file(lines("One moment."), catalog=catalog, more=[stream(FORM)])
    (page,) = pages_of(data)
    assert page.text == "One moment.\n\nForm field rent: 4500\nForm field tenant.name: Anna"
    taken = intake(written(tmp_path / "a.pdf", data))
    assert [each.sentence for each in taken.skipped] == [
        "a.pdf is an XFA form, of which only the values are read: to read the rest, print it to a"
        " PDF file."
    ]
    for damaged in ("<x", "<!DOCTYPE a><a/>"):
        (page,) = pages_of(pdf_file(lines("Wait."), catalog=catalog, more=[stream(damaged)]))
        assert (page.text, page.said[0][0]) == ("Wait.", "is an XFA form that cannot be read")
    field = "<</Type/Annot/Subtype/Widget/FT/Tx/T(rent)/V(4500)/Rect[0 0 9 9]>>"
    static = "/AcroForm<</Fields[8 0 R]/XFA 7 0 R>>"
    more = [stream(FORM), field]
    assert shown(lines("Rent"), catalog=static, page="/Annots[8 0 R]", more=more) == (
        "Rent\n\nForm field rent: 4500"
    )


def test_files_that_are_attached_to_a_page() -> None:
    annotation = "<</Type/Annot/Subtype/FileAttachment/Rect[0 0 9 9]/Contents(terms.txt)/FS 8 0 R>>"
    file = "<</Type/Filespec/F(terms.txt)/UF(terms.txt)/EF<</F 9 0 R>>>>"
    more = [annotation, file, stream("x", "/Type/EmbeddedFile")]
    (page,) = pages_of(pdf_file(lines("See the terms."), page="/Annots[7 0 R]", more=more))
    assert page.text == "See the terms.\n\n[Attachment terms.txt, not read]"
    assert page.said == (
        (
            "has 1 attachment on page 1 that cannot be read (terms.txt)",
            "save what you need, and add that by name",
        ),
    )


@table(
    "page, expected",
    [
        ("infor\ufffemation", "information"),
        ("a long\ufffeterm lease", "a long-term lease"),
        ("part ABC\ufffe4711", "part ABC-4711"),
        ("COVID\ufffe19 rules", "COVID-19 rules"),
        ("the AGREE\ufffeMENT", "the AGREEMENT"),
        ("Anglo\ufffeAmerican law", "Anglo-American law"),
        ("state-of-the\ufffeart", "state-of-the-art"),
        ("an e\ufffemail", "an e-mail"),
        ("at https://a.b/one\ufffetwo", "at https://a.b/one-two"),
        ("a short\ufffeage", "a shortage"),
        ("context\ufffedependent", "context-dependent"),
        ("the re\ufffelease of the re-lease", "the re-lease of the re-lease"),
        ("non\ufffesense is nonsense", "nonsense is nonsense"),
        ("the end of a divid\ufffe12", "the end of a divid-\n12"),
        ("a prob\ufffe8 lem", "a prob-\n8 lem"),
        ("condi\u2010\ntion and cross\ufffereference", "condition and cross-reference"),
        ("well\u2010known and condi\u2010\ntion", "well\u2010known and condition"),
        ("alone \ufffe\nnext", "alone -\nnext"),
    ],
)
def test_words_that_the_ends_of_lines_divide(page: str, expected: str) -> None:
    assert LineEnds().joined(page) == expected


def test_earlier_pages_tell_how_a_word_is_written() -> None:
    ends = LineEnds()
    assert ends.joined("a co\ufffeauthor") == "a coauthor"
    assert ends.joined("Her co-author said so.") == "Her co-author said so."
    assert ends.joined("a co\ufffeauthor") == "a co-author"

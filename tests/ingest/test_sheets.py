"""Excel workbooks: values as Excel shows them, and what stands beside the cells."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from app.ingest.archive import Archive
from app.ingest.flat import open_flat
from app.ingest.number_formats import shown_number
from app.ingest.parts import Part
from app.ingest.sheet_text import column_name
from app.ingest.sheets import Workbook
from tests.ingest.documents import DRAWING, links, zipped
from tests.ingest.helpers import intake, written
from tests.tables import table

MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
NAMES = f"{MAIN} {DRAWING}"

NUMBERS = [
    (1, "0%", "100%"),
    (-2, "0%", "-200%"),
    (0.175, "0.0%", "17.5%"),
    (1.5, "[h]:mm", "36:00"),
    (-0.5, "[h]:mm", "-12:00"),
    (1.5, "[mm]:ss", "2160:00"),
    (0.5, "[hh]:mm:ss", "12:00:00"),
    (0.1 + 0.2, "General", "0.3"),
    (1234.5, "#,##0.00", "1234.5"),
    (1234.5, '#,##0.00 "€"', "1234.5 €"),
    (5, "[$€-407] #,##0", "€ 5"),
    (5, "$#,##0_);($#,##0)", "$5"),
    (-5, "$#,##0_);($#,##0)", "$-5"),
    (3, '0" kg"', "3 kg"),
    (45292, "mmm-yy", "Jan-24"),
    (45292, "d. mmmm yyyy", "1. January 2024"),
    (45292, "dd/mm/yy", "2024-01-01"),
    (45292.75, "yyyy-mm-dd h:mm", "2024-01-01 18:00"),
    (0.75, "h:mm AM/PM", "18:00"),
    (0, "dd/mm/yyyy", ""),
    (59, "yyyy-mm-dd", "1900-02-28"),
    (61, "yyyy-mm-dd", "1900-03-01"),
    (-1, "yyyy-mm-dd", "-1"),
    (1e300, "yyyy-mm-dd", "1e+300"),
    (7, '"#"0', "#7"),
    (7, '0;-0;"-"', "7"),
    (2, "", "2"),
    (3, "@", "3"),
    (94, "00000", "00094"),
    (12.5, "000", "12.5"),
    (1234567, '0.0,,"M"', "1.234567M"),
    (1500, "#,##0,", "1.5"),
    (0, '"Yes";"Yes";"No"', "No"),
    (1, '"Yes";"Yes";"No"', "Yes"),
    (5, '[<1]"low";"high: "0', "high: 5"),
    (0.5, '[<1]"low";"high: "0', "low"),
    (-3, '#,##0 "€";[Red]-#,##0 "€"', "-3 €"),
    (45292.5, "[$-409]m/d/yy h:mm AM/PM;@", "2024-01-01 12:00"),
    (45292, "[$-F800]dddd, mmmm dd, yyyy", "Monday, January 01, 2024"),
    (0, '_-* "-"??_-', "0"),
    (2.5, "# ?/8", "2.5"),
    (0.75, "# ??/??", "0.75"),
    (2.5, '#\\ ??/16"in"', "2.5in"),
    (3, "0.00E+00", "3"),
    (12345678, "000-00-0000", "012-34-5678"),
    (7, "(000) 000-0000", "(000) 000-0007"),
    (5551234567, r"[<=9999999]###\-####;\(###\)\ ###\-####", "(555) 123-4567"),
    (5551234, r"[<=9999999]###\-####;\(###\)\ ###\-####", "555-1234"),
    (123456, "00-00", "1234-56"),
    (-7, "000-00", "-7"),
    (1234567.5, r"#\ ##0.00\ \€", "1234567.5 €"),
    (1234567, "#'##0", "1234567"),
]


@table("value, code, text", NUMBERS)
def test_a_number_as_its_format_shows_it(value: float, code: str, text: str) -> None:
    assert shown_number(value, code) == text


def test_dates_since_1904() -> None:
    assert shown_number(0, "yyyy-mm-dd", since_1904=True) == "1904-01-01"


@table("column, name", [(0, "A"), (25, "Z"), (26, "AA"), (701, "ZZ"), (702, "AAA")])
def test_names_of_columns(column: int, name: str) -> None:
    assert column_name(column) == name


def book(rows: str, before: str = "", calculation: str = "", **parts: str) -> bytes:
    """A workbook of one sheet. `parts` are members that the sheet links to, by their kind."""
    linked = {f"r{n}": f"{kind} ../{kind}{n}.xml" for n, kind in enumerate(parts, 1)}
    members: dict[str, str | bytes] = {
        "xl/workbook.xml": f'<workbook {NAMES}><sheets><sheet name="Costs" r:id="r1"/></sheets>'
        f"{calculation}</workbook>",
        "xl/_rels/workbook.xml.rels": links(
            r1="worksheet worksheets/sheet1.xml",
            r2="styles styles.xml",
            r3="sharedStrings sharedStrings.xml",
        ),
        "xl/styles.xml": f'<styleSheet {MAIN}><numFmts><numFmt numFmtId="164" formatCode="[h]:mm"/>'
        '</numFmts><cellXfs><xf numFmtId="0"/><xf numFmtId="9"/><xf numFmtId="164"/></cellXfs>'
        "</styleSheet>",
        "xl/sharedStrings.xml": f"<sst {MAIN}><si><t>Rent</t></si><si><r><t>Wa</t></r><r><t>ges</t>"
        "</r></si><si><t>東京</t><rPh><t>トウキョウ</t></rPh></si></sst>",
        "xl/worksheets/sheet1.xml": f"<worksheet {NAMES}>{before}<sheetData>{rows}</sheetData>"
        "</worksheet>",
        "xl/worksheets/_rels/sheet1.xml.rels": links(**linked),
    }
    members |= {f"xl/{kind}{n}.xml": each for n, (kind, each) in enumerate(parts.items(), 1)}
    return zipped(members)


def read(rows: str, *more: str, **parts: str) -> Part:
    return Workbook(Archive(book(rows, *more, **parts))).read(0)


def row(number: int, *cells: str, more: str = "") -> str:
    listed = "".join(
        each.replace("<c", f'<c r="{column_name(n)}{number}"', 1) for n, each in enumerate(cells)
    )
    return f'<row r="{number}"{more}>{listed}</row>'


def c(value: object, kind: str = "n", style: int = 0, formula: str = "") -> str:
    formula = f"<f>{formula}</f>" if formula else ""
    shown = "" if value is None else f"<v>{value}</v>"
    return f'<c t="{kind}" s="{style}">{formula}{shown}</c>'


def text(value: str) -> str:
    return f'<c t="inlineStr"><is><t>{value}</t></is></c>'


RAISED = '<rPr><vertAlign val="superscript"/></rPr>'
ROWS = {
    "kinds of values": (
        row(1, c(0, "s"), c(1, "s"), c(2, "s"), c(1, "b"), c("#DIV/0!", "e"), c("ab", "str"))
        + row(2, c(1, style=1), c(1.5, style=2), c("2024-05-01T00:00:00", "d"), c(None), c(7)),
        "| Rent | Wages | 東京 | TRUE | #DIV/0! | ab |\n| --- | --- | --- | --- | --- | --- |\n"
        "| 100% | 36:00 | 2024-05-01 |  | 7 |  |",
    ),
    "escapes in strings": (
        row(1, text("a_x000D_\nb"), text("_x005F_x000D_")),
        "| a b | _x000D_ |\n| --- | --- |",
    ),
    "a short gap": (
        row(1, text("A")) + row(3, text("B")),
        "| A |\n| --- |\n|  |\n| B |",
    ),
    "a longer gap, and a later begin": (
        row(2, text("A")) + row(45, text("B")) + row(46, text("C")),
        "[Row 2]\n| A |\n| --- |\n[Row 45]\n| B |\n| --- |\n| C |",
    ),
    "hidden rows": (
        row(1, text("A")) + row(2, c(None), text("B"), more=' hidden="1"'),
        "| A |  |\n| --- | --- |\n|  | (hidden) B |",
    ),
    "raised runs": (
        row(1, text("").replace("<t></t>", f"<r><t>10</t></r><r>{RAISED}<t>6</t></r>")),
        "| 10^6 |\n| --- |",
    ),
    "struck runs": (
        row(1, text("").replace("<t></t>", "<r><rPr><strike/></rPr><t>5</t></r><r><t> 6</t></r>")),
        "| ~~5~~ 6 |\n| --- |",
    ),
    "formulas of one or more cells": (
        row(
            1,
            '<c><f t="shared" ref="A1:A2" si="0">B1*2</f><v>4</v></c>',
            '<c t="str"><f>""</f><v></v></c>',
            '<c><f t="array" ref="C1:C2">SUM(A1:A2)</f><v>1</v></c>',
        )
        + row(2, '<c><f t="shared" si="0"/><v>6</v></c>', '<c t="b"><f>A1</f><v>0</v></c>'),
        "| 4 |  | 1 |\n| --- | --- | --- |\n| 6 | FALSE |  |",
    ),
    "numbers that name nothing": (
        row(1, c(99, "s"), c("x", "s"), '<c s="x"><v>3</v></c>', '<c s="99"><v>4</v></c>'),
        "| 3 | 4 |\n| --- | --- |",
    ),
    "cells without places": (
        "<row><c><v>1</v></c><c><v>2</v></c></row><row><c><v>3</v></c></row>",
        "| 1 | 2 |\n| --- | --- |\n| 3 |  |",
    ),
}


@table("name", ROWS)
def test_what_excel_shows(name: str) -> None:
    rows, expected = ROWS[name]
    assert read(rows).text == expected


def test_hidden_columns_are_marked_in_their_first_row() -> None:
    columns = '<cols><col min="2" max="2" hidden="1"/></cols>'
    found = read(row(1, text("A"), text("B")) + row(2, c(1), c(2)), columns)
    assert found.text == "| A | (hidden) B |\n| --- | --- |\n| 1 | 2 |"


def test_formulas_without_a_value_are_shown_and_said(tmp_path: Path) -> None:
    rows = row(1, text("total"), c(None, formula="SUM(B2:B9)"), c(5, formula="A1"))
    rows += row(2, text("zero"), c(0, formula="B2-B3"))
    assert read(rows).text.splitlines()[0] == "| total | =SUM(B2:B9) (not calculated) | 5 |"
    assert "| zero | 0 |" in read(rows).text
    to_do = '<calcPr fullCalcOnLoad="1"/>'
    result = intake(written(tmp_path / "a.xlsx", book(rows, "", to_do)))
    assert "| zero | =B2-B3 (not calculated) |" in result.documents[0].text
    assert [each.sentence for each in result.skipped] == [
        "a.xlsx has 2 formulas without a value (Sheet Costs): open it in a spreadsheet program and"
        " save it."
    ]


def test_comments_and_drawings_follow_the_rows() -> None:
    comments = (
        f"<comments {MAIN}><authors><author>Anna</author></authors><commentList><comment"
        ' ref="B2" authorId="0"><text><r><t>Anna:</t></r><r><t> Too high.</t></r></text></comment>'
        "</commentList></comments>"
    )
    drawing = (
        f"<wsDr {DRAWING}><a:sp><a:txBody><a:p><a:r><a:t>Draft!</a:t></a:r></a:p></a:txBody></a:sp>"
        '<p:pic><p:nvPicPr><p:cNvPr descr="A plan"/></p:nvPicPr></p:pic></wsDr>'
    )
    found = read(row(1, text("A")), comments=comments, drawing=drawing)
    assert found.text == (
        "| A |\n| --- |\n\nDraft!\n\n[A plan]\n\n[Comment on B2]: Anna: Too high."
    )


def test_cells_have_the_addresses_that_they_link_to() -> None:
    rows = row(1, text("terms"), text("https://example.org/a")) + row(3, text("home"))
    listed = "".join(f'<hyperlink ref="{place}" r:id="h1"/>' for place in ("A1", "B1", "A2", "C3"))
    archive = Archive(book(rows))
    members: dict[str, str | bytes] = {name: archive.read(name) for name in archive.names}
    sheet = f"<worksheet {NAMES}><sheetData>{rows}</sheetData><hyperlinks>{listed}"
    members["xl/worksheets/sheet1.xml"] = (
        f'{sheet}<hyperlink ref="A3" location="A1"/></hyperlinks></worksheet>'
    )
    members["xl/worksheets/_rels/sheet1.xml.rels"] = links(
        h1="hyperlink https://example.org/a"
    ).replace("Target=", 'TargetMode="External" Target=')
    assert Workbook(Archive(zipped(members))).read(0).text == (
        "| terms (https://example.org/a) | https://example.org/a |\n| --- | --- |\n|  |  |\n"
        "| home |  |"
    )


def test_shapes_over_a_sheet_are_read_once() -> None:
    def box(*paragraphs: str) -> str:
        shown = "".join(f"<a:p><a:r><a:t>{each}</a:t></a:r></a:p>" for each in paragraphs)
        shown = shown.replace("|", "</a:t></a:r><a:br/><a:r><a:t>")
        return f"<x:sp><x:txBody>{shown}</x:txBody></x:sp>"

    both = f"<m:Choice>{box('Once')}</m:Choice><m:Fallback>{box('Once')}</m:Fallback>"
    drawing = (
        f'<x:wsDr {DRAWING} xmlns:x="x" xmlns:m="m"><x:twoCellAnchor><x:grpSp>{box("One|two")}'
        f"</x:grpSp></x:twoCellAnchor><x:oneCellAnchor><m:AlternateContent>{both}"
        "</m:AlternateContent></x:oneCellAnchor></x:wsDr>"
    )
    found = read(row(1, text("A")), drawing=drawing)
    assert found.text == "| A |\n| --- |\n\nOne\ntwo\n\nOnce"


def test_threads_replace_the_comments_of_older_programs() -> None:
    thread = '<x><threadedComment ref="A1"><text>Why?</text></threadedComment></x>'
    old = (
        f'<comments {MAIN}><commentList><comment ref="A1"><text><t>[Threaded comment]</t></text>'
        "</comment></commentList></comments>"
    )
    found = read(row(1, text("A")), comments=old, threadedComment=thread)
    assert found.text == "| A |\n| --- |\n\n[Comment on A1]: Why?"


@pytest.mark.parametrize("rows", [60_000])
def test_a_long_sheet_is_cut_and_says_so(rows: int, tmp_path: Path) -> None:
    out = io.StringIO()
    for number in range(1, rows + 1):
        out.write(f'<row r="{number}"><c><v>{number}</v></c></row>')
    found = read(out.getvalue())
    assert found.note == "only the first 50,000 rows and 1,000 columns"
    assert found.text.endswith("| 50000 |")


def test_a_wide_row_does_not_fill_memory() -> None:
    found = read('<row r="1"><c r="A1"><v>1</v></c><c r="XFD1"><v>2</v></c></row>')
    assert found.text == "| 1 |\n| --- |"
    assert found.note


def test_a_workbook_in_one_xml_file() -> None:
    name = "urn:schemas-microsoft-com:office:spreadsheet"
    string, number = '<Data s:Type="String">', '<Data s:Type="Number">'
    source = (
        f'<Workbook xmlns="{name}" xmlns:s="{name}"><Styles><Style s:ID="p">'
        '<NumberFormat s:Format="Percent"/></Style></Styles><Worksheet s:Name="T"><Table>'
        f'<Row><Cell s:MergeAcross="1">{string}Wide</Data></Cell><Cell s:HRef="https://example.org">'
        f'{string}terms</Data></Cell></Row><Row s:Index="3"><Cell s:Index="2" s:StyleID="p">'
        f"{number}0.5</Data></Cell><Cell>{string}10<Sup>6</Sup> units</Data>"
        '<Comment s:Author="Anna"><Data>Anna:\nWhy?</Data></Comment></Cell></Row>'
        '<Row s:Hidden="1"><Cell s:Formula="=A1"/></Row></Table></Worksheet></Workbook>'
    )
    assert open_flat("workbook", source.encode()).read(0).text == (
        "| Wide |  | terms (https://example.org) |\n| --- | --- | --- |\n|  |  |  |\n"
        "|  | 50% | 10^6 units |\n| (hidden) =A1 (not calculated) |  |  |\n\n"
        "[Comment on C3]: Anna: Why?"
    )


FONTS = (
    '<fonts><font/><font><color rgb="FFFFFFFF"/></font><font><sz val="1"/></font>'
    '<font><color theme="0"/></font></fonts><fills><fill><patternFill patternType="none"/></fill>'
    '<fill><patternFill patternType="solid"/></fill></fills>'
)


@table(
    "style, more, shown",
    [
        ('fontId="1"', "", "(hidden: Pay 80)"),
        ('fontId="2"', "", "(hidden: Pay 80)"),
        ('fontId="3"', "", "(hidden: Pay 80)"),
        ('numFmtId="170"', "", "(hidden: Pay 80)"),
        ('fontId="0"', "", "Pay 80"),
        ('fontId="1" fillId="1"', "", "Pay 80"),
        ('fontId="1"', "<dxfs><dxf><fill/></dxf></dxfs>", "Pay 80"),
    ],
)
def test_a_cell_that_nobody_sees_is_marked(style: str, more: str, shown: str) -> None:
    styles = (
        f'<styleSheet {MAIN}><numFmts><numFmt numFmtId="170" formatCode=";;;"/></numFmts>{FONTS}'
        f"<cellXfs><xf/><xf {style}/></cellXfs>{more}</styleSheet>"
    )
    rows = row(1, '<c s="1" t="inlineStr"><is><t>Pay 80</t></is></c>')
    with zipfile.ZipFile(io.BytesIO(book(rows))) as file:
        members = {name: file.read(name) for name in file.namelist()}
    workbook = Workbook(Archive(zipped({**members, "xl/styles.xml": styles})))
    assert workbook.read(0).text.startswith(f"| {shown} |")

"""Word, Excel, PowerPoint, OpenDocument and EPUB files: their text with its structure, and one
sentence about what cannot be read."""

from __future__ import annotations

import functools
import io
import struct
import tempfile
import time
import zipfile
from pathlib import Path

import openpyxl
import pytest

from app.ingest.limits import ReadLimits
from tests.ingest.documents import DRAWING, LINKS, OPEN_DOCUMENT, TYPE, WORD, links, zipped
from tests.ingest.helpers import check_sentence, folder, intake, names, refusal, written
from tests.tables import slow, table

NOTICE = "The notice period is 30 days."


def docx(body: str, **more: str | bytes) -> bytes:
    """A Word document; `more`: further members, with `__` for `/`."""
    extra = {name.replace("__", "/") + ".xml": content for name, content in more.items()}
    return zipped(
        {
            "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/'
            '2006/content-types"><Default Extension="xml" ContentType="application/xml"/></Types>',
            "_rels/.rels": links(r1="officeDocument word/document.xml"),
            "word/document.xml": f"<w:document {WORD}><w:body>{body}</w:body></w:document>",
            "word/_rels/document.xml.rels": links(
                r1="styles styles.xml", r2="footnotes footnotes.xml", r3="numbering numbering.xml"
            ),
            **extra,
        }
    )


def paragraph(text: str, style: str = "", properties: str = "") -> str:
    style = f'<w:pStyle w:val="{style}"/>' if style else ""
    return f"<w:p><w:pPr>{style}{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def slide(*shapes: str) -> str:
    return f"<p:sld {DRAWING}><p:cSld><p:spTree>{''.join(shapes)}</p:spTree></p:cSld></p:sld>"


def shape(role: str, *paragraphs: str) -> str:
    placeholder = f'<p:ph type="{role}"/>' if role else ""
    shown = "".join(f"<a:p>{each}</a:p>" for each in paragraphs)
    return (
        f"<p:sp><p:nvSpPr><p:cNvPr/><p:cNvSpPr/><p:nvPr>{placeholder}</p:nvPr></p:nvSpPr>"
        f"<p:txBody>{shown}</p:txBody></p:sp>"
    )


def pptx(*slides: str, **more: str | bytes) -> bytes:
    numbers = range(1, len(slides) + 1)
    listed = "".join(f'<p:sldId id="{255 + n}" r:id="r{n}"/>' for n in numbers)
    members: dict[str, str | bytes] = {
        "ppt/presentation.xml": f"<p:presentation {DRAWING}><p:sldIdLst>{listed}</p:sldIdLst>"
        "</p:presentation>",
        "ppt/_rels/presentation.xml.rels": links(
            **{f"r{n}": f"slide slides/slide{n}.xml" for n in numbers}
        ),
    }
    members |= {f"ppt/slides/slide{n}.xml": each for n, each in enumerate(slides, 1)}
    return zipped(members | {name.replace("__", "/"): each for name, each in more.items()})


def opendocument(kind: str, body: str, styles: str = "") -> bytes:
    content = (
        f"<office:document-content {OPEN_DOCUMENT}><office:automatic-styles>{styles}"
        f"</office:automatic-styles><office:body><office:{kind}>{body}</office:{kind}>"
        "</office:body></office:document-content>"
    )
    return zipped(
        {
            "mimetype": f"application/vnd.oasis.opendocument.{kind}",
            "META-INF/manifest.xml": "<manifest/>",
            "content.xml": content,
        }
    )


def epub(**sections: str) -> bytes:
    items = "".join(f'<item id="{name}" href="{name}.xhtml"/>' for name in reversed(sections))
    order = "".join(f'<itemref idref="{name}"/>' for name in sections)
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container><rootfiles><rootfile full-path="in/a.opf"/>'
            "</rootfiles></container>",
            "in/a.opf": f"<package><manifest>{items}</manifest><spine>{order}</spine></package>",
            **{f"in/{name}.xhtml": text for name, text in sections.items()},
        }
    )


def workbook(**sheets: list[list[object]]) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def text_of(path: Path) -> str:
    return intake(path).documents[0].text


# ---------------------------------------------------------------------------- what is read


def test_a_word_document(tmp_path: Path) -> None:
    styles = "".join(
        f'<w:style w:type="paragraph" w:styleId="H{n}"><w:name w:val="heading {n}"/></w:style>'
        for n in (1, 2)
    )
    numbering = (
        '<w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:numFmt w:val="decimal"/></w:lvl>'
        '<w:lvl w:ilvl="1"><w:numFmt w:val="bullet"/></w:lvl></w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
    )
    footnotes = (
        f'<w:footnotes {WORD}><w:footnote w:id="2">{paragraph("Section 573c.")}</w:footnote>'
        "</w:footnotes>"
    )

    def item(text: str, level: int = 0) -> str:
        return paragraph(
            text, "", f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="1"/></w:numPr>'
        )

    def row(*cells: str) -> str:
        return f"<w:tr>{''.join(f'<w:tc>{paragraph(each)}</w:tc>' for each in cells)}</w:tr>"

    body = (
        paragraph("Lease", "H1"),
        paragraph("Notice", "H2"),
        f'<w:p><w:r><w:t>{NOTICE}</w:t></w:r><w:r><w:footnoteReference w:id="2"/></w:r>'
        "<w:del><w:r><w:delText>Deleted.</w:delText></w:r></w:del></w:p>",
        item("One"),
        item("Inner", 1),
        item("Two"),
        f"<w:tbl>{row('Rent', 'Due')}{row('900', 'monthly')}</w:tbl>",
    )
    data = docx(
        "".join(body),
        word__styles=f"<w:styles {WORD}>{styles}</w:styles>",
        word__numbering=f"<w:numbering {WORD}>{numbering}</w:numbering>",
        word__footnotes=footnotes,
    )
    text = (
        f"# Lease\n\n## Notice\n\n{NOTICE}[^1]\n\n1. One\n  - Inner\n2. Two\n\n"
        "| Rent | Due |\n| --- | --- |\n| 900 | monthly |\n\n[^1]: Section 573c.\n"
    )
    assert text_of(written(tmp_path / "a.docx", data)) == text
    # Also by its content, as it comes through a pipe, and in a folder.
    assert text_of(written(tmp_path / "b", data)) == text
    assert names(intake(tmp_path)) == ["a.docx", "b"]


def test_the_sheets_of_a_workbook(tmp_path: Path) -> None:
    data = workbook(
        Costs=[["Year", "Rent"], [2025, 900.5], [], [None, "a|b\nc"]], Empty=[], Notes=[[NOTICE]]
    )
    assert text_of(written(tmp_path / "a.xlsx", data)) == (
        "[Sheet Costs]\n| Year | Rent |\n| --- | --- |\n| 2025 | 900.5 |\n|  |  |\n"
        "|  | a\\|b c |\n\n"
        f"[Sheet Empty]\n\n\n[Sheet Notes]\n| {NOTICE} |\n| --- |\n\n"
    )


def test_values_of_cells(tmp_path: Path) -> None:
    from datetime import date, datetime

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append([date(2026, 5, 1), datetime(2026, 5, 1, 14, 30), True, 0.1 + 0.2, 0.175])
    sheet["E1"].number_format = "0.0%"
    book.create_sheet("Old").append(["x"])
    book["Old"].sheet_state = "hidden"
    book.save(tmp_path / "a.xlsx")
    assert text_of(tmp_path / "a.xlsx") == (
        "[Sheet Sheet]\n| 2026-05-01 | 2026-05-01 14:30:00 | TRUE | 0.3 | 17.5% |\n"
        "| --- | --- | --- | --- | --- |\n\n[Sheet Old (hidden)]\n| x |\n| --- |\n\n"
    )


def test_the_slides_of_a_presentation(tmp_path: Path) -> None:
    chart = (
        f"<c:chartSpace {DRAWING}><c:ser><c:tx><c:v>Rent</c:v></c:tx><c:cat><c:v>2025</c:v></c:cat>"
        "<c:val><c:v>900</c:v></c:val></c:ser></c:chartSpace>"
    )
    first = slide(
        shape("title", "<a:r><a:t>Lease</a:t></a:r>"),
        shape(
            "body",
            "<a:r><a:t>The notice </a:t></a:r><a:r><a:t>period</a:t></a:r>",
            '<a:pPr lvl="1"><a:buAutoNum/></a:pPr><a:r><a:t>One</a:t></a:r>',
            '<a:pPr lvl="1"><a:buAutoNum/></a:pPr><a:r><a:t>Two</a:t></a:r>',
        ),
        shape("sldNum", "<a:r><a:t>1</a:t></a:r>"),
        shape("", "<a:r><a:t>A box</a:t></a:r>"),
        '<p:graphicFrame><a:graphic><a:graphicData><c:chart r:id="c1"/></a:graphicData>'
        "</a:graphic></p:graphicFrame>",
        '<p:pic><p:nvPicPr><p:cNvPr descr="A plan of the flat"/></p:nvPicPr></p:pic>',
    )
    table = (
        "<p:graphicFrame><a:graphic><a:graphicData><a:tbl><a:tr>"
        + "".join(f"<a:tc><a:p><a:r><a:t>{each}</a:t></a:r></a:p></a:tc>" for each in "AB")
        + "</a:tr></a:tbl></a:graphicData></a:graphic></p:graphicFrame>"
    )
    data = pptx(
        first,
        slide(table),
        **{
            "ppt__slides___rels__slide1.xml.rels": links(
                c1="chart ../charts/chart1.xml", n="notesSlide ../notesSlides/n1.xml"
            ),
            "ppt__charts__chart1.xml": chart,
            "ppt__notesSlides__n1.xml": slide(shape("body", "<a:r><a:t>Say hello</a:t></a:r>")),
        },
    )
    assert text_of(written(tmp_path / "a.pptx", data)) == (
        "[Slide 1]\n# Lease\n\n- The notice period\n  1. One\n  2. Two\n\nA box\n\n"
        "|  | Rent |\n| --- | --- |\n| 2025 | 900 |\n\n[A plan of the flat]\n\n"
        "Speaker notes:\nSay hello\n\n[Slide 2]\n| A | B |\n| --- | --- |\n\n"
    )


def test_an_opendocument_text(tmp_path: Path) -> None:
    styles = (
        '<text:list-style xmlns:style="s" style:name="L1">'
        '<text:list-level-style-number text:level="1" style:num-format="1"/></text:list-style>'
    )
    body = (
        '<text:h text:outline-level="2">Notice</text:h>'
        "<text:tracked-changes><text:p>Deleted.</text:p></text:tracked-changes>"
        "<text:p>The notice <text:span>period </text:span>is<text:s/>30\n days.<text:note>"
        "<text:note-citation>1</text:note-citation><text:note-body>"
        "<text:p>Section 573c.</text:p></text:note-body></text:note> More.</text:p>"
        '<text:list text:style-name="L1"><text:list-item><text:p>One</text:p><text:list>'
        "<text:list-item><text:p>Inner</text:p></text:list-item></text:list></text:list-item>"
        "<text:list-item><text:p>Two</text:p></text:list-item></text:list>"
        '<table:table><table:table-row><table:table-cell table:number-columns-repeated="2">'
        "<text:p>A</text:p></table:table-cell></table:table-row></table:table>"
    )
    data = opendocument("text", body, styles)
    assert text_of(written(tmp_path / "a.odt", data)) == (
        f"## Notice\n\n{NOTICE}[^1] More.\n\n1. One\n  - Inner\n2. Two\n\n"
        "| A | A |\n| --- | --- |\n\n[^1]: Section 573c.\n"
    )


def test_opendocument_sheets_and_slides(tmp_path: Path) -> None:
    cell = "<table:table-cell><text:p>A</text:p></table:table-cell>"
    empty = '<table:table-cell table:number-columns-repeated="16384"/>'
    row = f"<table:table-row>{cell}{empty}</table:table-row>"
    sheet = f'<table:table table:name="Costs">{row}</table:table>'
    assert text_of(written(tmp_path / "a.ods", opendocument("spreadsheet", sheet))) == (
        "[Sheet Costs]\n| A |\n| --- |\n\n"
    )
    box = "<draw:frame><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>"
    page = f"<draw:page>{box}</draw:page>"
    slides = page.format(NOTICE) + page.format("Two")
    assert text_of(written(tmp_path / "a.odp", opendocument("presentation", slides))) == (
        f"[Slide 1]\n{NOTICE}\n\n[Slide 2]\nTwo\n\n"
    )


def test_the_sections_of_a_book(tmp_path: Path) -> None:
    data = epub(
        cover="<html><img src='c.png'/></html>",
        one=f"<html><h1>One</h1><p>{NOTICE}</p><script>no</script></html>",
        two="<html><p>{{ as it stands }}</p></html>",
    )
    assert text_of(written(tmp_path / "a.epub", data)) == (
        f"[Section 1]\n\n\n[Section 2]\n# One\n\n{NOTICE}\n\n"
        "[Section 3]\n{{ as it stands }}\n\n"
    )
    assert intake(tmp_path / "a.epub").skipped == ()


# ---------------------------------------------------------------------------- what is not


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    title = slide(shape("title", "<a:r><a:t>Lease</a:t></a:r>"))
    picture = slide("<p:pic/>")
    slides = pptx(title, picture, picture, **{"ppt__embeddings__a.docx": b"x"})
    path = written(tmp_path / "a.pptx", slides)
    assert [each.sentence for each in intake(path).skipped] == [
        "a.pptx has 2 of 3 slides (2-3) without text: run text recognition (OCR) on it first.",
        "a.pptx has 1 embedded file that cannot be read: save what you need, and add that by name.",
    ]
    assert intake(path).documents[0].text.startswith("[1 embedded file, not read]\n[Slide 1]\n")
    for part, told in {"1-2": ["1 of 2 slides (2) without text"], "1": []}.items():
        *slides_told, _embedded = intake(Path(f"{path}#{part}")).skipped
        assert [each.detail.removeprefix("has ") for each in slides_told] == told
    rows = '<table:table-row table:number-rows-repeated="60000">{}</table:table-row>'
    cell = "<table:table-cell><text:p>A</text:p></table:table-cell>"
    sheet = f'<table:table table:name="Costs">{rows.format(cell)}</table:table>'
    path = written(tmp_path / "a.ods", opendocument("spreadsheet", sheet))
    assert [each.sentence for each in intake(path).skipped] == [
        "a.ods is not read completely (Sheet Costs: only the first 50,000 rows and 1,000 columns):"
        " save the rest in a file of its own."
    ]
    assert intake(path).documents[0].text.endswith("\n\n[More rows or columns, not read]\n\n")
    path = written(tmp_path / "a.xlsx", workbook(Costs=[["A"], [1] * 1001, ["B"]]))
    assert [each.detail for each in intake(path).skipped] == [
        "is not read completely (Sheet Costs: only the first 3 rows and 1,000 columns)"
    ]


def test_a_damaged_slide_costs_only_that_slide(tmp_path: Path) -> None:
    good = slide(shape("title", "<a:r><a:t>Lease</a:t></a:r>"))
    result = intake(written(tmp_path / "a.pptx", pptx(good, "<p:sld", good)))
    assert result.documents[0].text == (
        "[Slide 1]\n# Lease\n\n[Slide 2]\n(This slide could not be read.)\n\n[Slide 3]\n# Lease\n\n"
    )
    assert [each.sentence for each in result.skipped] == [
        "a.pptx has 1 of 3 slides (2) that cannot be read: save it again, or convert it to text."
    ]


BOMB = b"a" * 60_000_000
ENTITIES = (
    "<!DOCTYPE d [<!ENTITY a 'aaaaaaaaaa'>"
    + "".join(
        f"<!ENTITY {b} '{f'&{a};' * 10}'>" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + f"]><w:document {WORD}><w:body><w:p><w:r><w:t>&i;</w:t></w:r></w:p></w:body></w:document>"
)
OUTSIDE = (
    f"<!DOCTYPE d [<!ENTITY a SYSTEM 'file:///etc/hostname'>]><w:document {WORD}><w:body>"
    "<w:p><w:r><w:t>&a;</w:t></w:r></w:p></w:body></w:document>"
)
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500)
HOSTILE = (
    *(
        "cut.docx",
        "noise.xlsx",
        "bomb.docx",
        "many.epub",
        "entities.docx",
        "entities.pptx",
        "outside.pptx",
        "empty.docx",
    ),
    *(
        "loop.pptx",
        "deep.odt",
        "archive.docx",
        "macro.docm",
        "secret.docx",
        "old.doc",
        "no-sheets.xlsx",
        "nothing.epub",
    ),
)


def zipped_often(member: str | bytes, number: int) -> bytes:
    """A file that lists its only member this often."""
    data = zipped({"word/0.xml": member})
    start, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    listed = data[start:end] * number
    counts = struct.pack("<4H2LH", 0, 0, number, number, len(listed), start, 0)
    return data[:start] + listed + b"PK\5\6" + counts


@functools.cache
def hostile() -> dict[str, tuple[bytes, str]]:
    """Documents by their names, and a word of the refusal."""
    return {
        "cut.docx": (docx(paragraph(NOTICE))[:-80], "damaged"),
        "noise.xlsx": (b"PK\x03\x04" + bytes(range(256)) * 50, "damaged"),
        "bomb.docx": (
            zipped_often(BOMB, 5),
            "too large once it is unpacked",
        ),
        "many.epub": (zipped_often("", 20_001), "too large"),
        "entities.docx": (zipped({"word/document.xml": ENTITIES}), "damaged"),
        "entities.pptx": (pptx(ENTITIES), "damaged"),
        "outside.pptx": (pptx(OUTSIDE), "damaged"),
        "empty.docx": (docx(""), "no text"),
        "loop.pptx": (
            pptx(slide(), **{"ppt__slides___rels__slide1.xml.rels": links(r1="slide slide1.xml")}),
            "no text",
        ),
        "deep.odt": (
            opendocument("text", "<text:span>" * 50_000 + "</text:span>" * 50_000),
            "damaged",
        ),
        "archive.docx": (zipped({"a.txt": NOTICE}), "binary"),
        "macro.docm": (docx("", word__vbaProject="Sub AutoOpen()"), "no text"),
        "secret.docx": (OLE + "EncryptedPackage".encode("utf-16-le"), "with a password"),
        "old.doc": (OLE, "old Office format"),
        "no-sheets.xlsx": (zipped({"xl/workbook.xml": "<workbook/>"}), "damaged"),
        "nothing.epub": (zipped({"META-INF/container.xml": "<container/>"}), "damaged"),
    }


def test_every_hostile_document_is_tried() -> None:
    assert {*hostile()} == {*HOSTILE}


@table("name", HOSTILE)
def test_a_hostile_document(tmp_path: Path, name: str) -> None:
    tmp_path = Path(tempfile.mkdtemp(dir=tmp_path))
    data, words = hostile()[name]
    path = written(tmp_path / name, data)
    start = time.monotonic()
    assert words in refusal(path, limits=ReadLimits(document_seconds=5))
    assert time.monotonic() - start < 15


@pytest.mark.parametrize("some", [["cut.docx", "many.epub", "old.doc"], slow([*HOSTILE])])
def test_hostile_documents_leave_the_rest_of_a_folder_readable(
    tmp_path: Path, some: list[str]
) -> None:
    for name in some:
        written(tmp_path / name, hostile()[name][0])
    taken = intake(folder(tmp_path, b="b"))
    assert names(taken) == ["b"]
    assert len(taken.skipped) == len(some)
    for each in taken.skipped:
        check_sentence(each.sentence)


def test_an_encrypted_opendocument_and_a_protected_book(tmp_path: Path) -> None:
    members = {
        "content.xml": b"x",
        "META-INF/manifest.xml": "<manifest><encryption-data/></manifest>",
    }
    assert "with a password" in refusal(written(tmp_path / "a.odt", zipped(members)))
    protected = zipfile.ZipFile(io.BytesIO(epub(one="<p>x</p>")))
    members = {name: protected.read(name) for name in protected.namelist()} | {
        "META-INF/encryption.xml": "<e><CipherReference URI='in/one.xhtml'/></e>"
    }
    assert "with a password" in refusal(written(tmp_path / "a.epub", zipped(members)))


def test_links_to_other_files_are_not_followed(tmp_path: Path) -> None:
    secret = written(tmp_path / "secret.png", b"SECRET")
    picture = (
        '<w:p><w:r><w:drawing><a:blip xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/'
        'main" r:link="x" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/'
        'relationships"/></w:drawing></w:r></w:p>'
    )
    data = docx(paragraph(NOTICE) + picture)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members["word/_rels/document.xml.rels"] = (
        f'<Relationships xmlns="{LINKS}"><Relationship Id="x" Type="{TYPE}image"'
        f' Target="file://{secret}" TargetMode="External"/></Relationships>'
    ).encode()
    assert text_of(written(tmp_path / "a.docx", zipped(members))) == f"{NOTICE}\n"

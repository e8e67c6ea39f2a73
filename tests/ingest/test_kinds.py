"""A file is read as what it is, whatever its name says, or refused with a way out."""

from __future__ import annotations

import io
import plistlib
import zipfile
from pathlib import Path

import pytest

from app.ingest.kinds import Kind, kind_of
from app.ingest.limits import ReadLimits
from app.ingest.reader import read
from app.ingest.records import SkipReason
from tests.ingest.documents import OPEN_DOCUMENT, WORD, zipped
from tests.ingest.helpers import folder, intake, names, refusal, written
from tests.tables import table

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
PAGE = "<html><body><p>The rent is 500.</p></body></html>"
MHTML = (
    "From: <Saved by a browser>\r\nMIME-Version: 1.0\r\nContent-Type: multipart/related;\r\n"
    '\tboundary="b"\r\n\r\n--b\r\nContent-Type: text/html; charset=utf-8\r\n'
    "Content-Transfer-Encoding: quoted-printable\r\n\r\n<p>Die K=C3=BCndigung.</p>\r\n--b--\r\n"
)
RTF = r"{\rtf1\ansi The rent is 500.\par}"

DOCX = zipped(
    {
        "docProps/app.xml": "<Properties/>",
        "word/document.xml": f"<w:document {WORD}><w:body><w:p><w:r>"
        "<w:t>The rent is 500.</w:t></w:r></w:p></w:body></w:document>",
    }
)


def flat(kind: str, body: str, styles: str = "") -> str:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<office:document {OPEN_DOCUMENT}'
        ' office:version="1.3"'
        f' office:mimetype="application/vnd.oasis.opendocument.{kind}">{styles}'
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document>"
    )


def workbook(rows: str, options: str = "") -> str:
    return (
        '<?xml version="1.0"?>\n<?mso-application progid="Excel.Sheet"?>\n'
        '<Workbook xmlns="urn:schemas-microsoft-com:office:spreadsheet"'
        ' xmlns:ss="urn:schemas-microsoft-com:office:spreadsheet">'
        '<Styles><Style ss:ID="p"><NumberFormat ss:Format="0%"/></Style></Styles>'
        f'<Worksheet ss:Name="Costs"><Table>{rows}</Table>{options}</Worksheet></Workbook>'
    )


def text_of(path: Path) -> str:
    return intake(path).documents[0].text


# ------------------------------------------------------------------------ names that mislead


@table(
    "name, content, text",
    [
        ("a.xls", "<table><tr><td>Rent<td>500</table>", "| Rent | 500 |\n| --- | --- |\n"),
        (
            "a.xls",
            f"\ufeff<!-- made by a shop -->\n<meta charset=utf-8>{PAGE}",
            "The rent is 500.\n",
        ),
        ("a.xls", "Rent;500\n", "Rent;500\n"),
        ("a.xls", "Rent\t500\n".encode("utf-16"), "Rent\t500\n"),
        ("a.xlsx", PAGE, "The rent is 500.\n"),
        ("a.csv", PAGE, "The rent is 500.\n"),
        ("a.doc", PAGE, "The rent is 500.\n"),
        ("a.doc", MHTML, "From: <Saved by a browser>\n\nDie Kündigung.\n"),
        ("a.docx", MHTML.replace("\r\n", "\n"), "From: <Saved by a browser>\n\nDie Kündigung.\n"),
        ("a.doc", RTF, "The rent is 500.\n"),
        ("a.docx", RTF, "The rent is 500.\n"),
        ("a.doc", DOCX, "The rent is 500.\n"),
        ("a.pdf", PAGE, "The rent is 500.\n"),
        ("a.rtf", DOCX, "The rent is 500.\n"),
        ("a.odt", DOCX, "The rent is 500.\n"),
        ("a.pptx", DOCX, "The rent is 500.\n"),
        ("a.html", MHTML, "From: <Saved by a browser>\n\nDie Kündigung.\n"),
        ("a.mht", PAGE, "The rent is 500.\n"),
        ("a.doc", "The rent is 500.\n", "The rent is 500.\n"),
        ("a.txt", PAGE, PAGE),
        ("a.txt", MHTML, MHTML),
    ],
)
def test_the_content_tells(tmp_path: Path, name: str, content: str | bytes, text: str) -> None:
    assert text_of(written(tmp_path / name, content)).rstrip("\n") == text.rstrip("\n")


@table("name", ["a.fodt", "a.odt", "a.xml", "a.doc", "a"])
def test_a_flat_text(tmp_path: Path, name: str) -> None:
    body = (
        '<text:h text:outline-level="1">Terms</text:h><text:p>Flat text.</text:p>'
        "<text:p>Sum <draw:frame><draw:object><math><mfrac><mi>a</mi><mn>2</mn></mfrac></math>"
        "</draw:object></draw:frame></text:p>"
    )
    found = text_of(written(tmp_path / name, flat("text", body)))
    assert found == "# Terms\n\nFlat text.\n\nSum a/2\n"


def test_a_flat_sheet_and_what_is_inside_one(tmp_path: Path) -> None:
    cells = "<table:table-cell><text:p>Rent</text:p></table:table-cell>"
    cells += "<table:table-cell><text:p>500</text:p></table:table-cell>"
    table_ = (
        f'<table:table table:name="Costs"><table:table-row>{cells}</table:table-row></table:table>'
    )
    path = written(tmp_path / "a.fods", flat("spreadsheet", table_))
    assert text_of(path) == "[Sheet Costs]\n| Rent | 500 |\n| --- | --- |\n\n"
    inner = flat("text", "<text:p>inside</text:p>").partition("\n")[2]
    body = f"<text:p>A<draw:frame><draw:object>{inner}</draw:object></draw:frame></text:p>"
    taken = intake(written(tmp_path / "a.fodt", flat("text", body)))
    assert taken.texts[0].text == "[1 embedded file, not read]\nA\n"
    assert [each.reason for each in taken.skipped] == [SkipReason.ATTACHED]


def test_flat_files_with_entities_or_damage_are_refused(tmp_path: Path) -> None:
    whole = flat("text", "<text:p>&a;</text:p>")
    bomb = whole.replace("<office:document ", '<!DOCTYPE x [<!ENTITY a "b">]><office:document ', 1)
    assert "damaged" in refusal(written(tmp_path / "a.fodt", whole[:-20]))
    assert "damaged" in refusal(written(tmp_path / "b.fodt", bomb))


@table("name", ["a.xls", "a.xml", "a"])
def test_a_workbook_in_xml(tmp_path: Path, name: str) -> None:
    rows = (
        '<Row><Cell ss:MergeAcross="1"><Data ss:Type="String">Fees</Data></Cell>'
        '<Cell><Data ss:Type="String">Share</Data></Cell></Row>'
        '<Row ss:Index="3" ss:Hidden="1"><Cell><Data ss:Type="Number">500</Data>'
        "<Comment><Data>From May</Data></Comment></Cell>"
        '<Cell ss:Index="3" ss:StyleID="p"><Data ss:Type="Number">0.25</Data></Cell></Row>'
        '<Row><Cell><Data ss:Type="DateTime">2024-05-01T00:00:00.000</Data></Cell>'
        '<Cell ss:Index="3"><Data ss:Type="Boolean">1</Data></Cell></Row>'
    )
    found = text_of(written(tmp_path / name, workbook(rows)))
    assert found == (
        "[Sheet Costs]\n| Fees | Share |\n| --- | --- |\n|  |  |\n| (hidden) 500 | 25% |\n"
        "| 2024-05-01 | TRUE |\n\n[Comment on A3]: From May\n\n"
    )


def test_a_workbook_in_xml_with_formulas_and_hidden_sheets(tmp_path: Path) -> None:
    rows = '<Row><Cell><Data ss:Type="String">Sum</Data></Cell><Cell ss:Formula="=1+1"/></Row>'
    options = "<WorksheetOptions><Visible>SheetHidden</Visible></WorksheetOptions>"
    taken = intake(written(tmp_path / "a.xls", workbook(rows, options)))
    assert taken.texts[0].text.startswith("[Sheet Costs (hidden)]\n| Sum | =1+1 (not calculated) |")
    assert "1 formula without a value" in taken.skipped[0].sentence


# ------------------------------------------------------------------------ refusals with a way out


@table(
    "name, content, sentence",
    [
        ("a.xlsb", zipped({"xl/workbook.bin": "x"}), "a binary Excel workbook: save it as XLSX."),
        ("a.pages", zipped({"Index/Document.iwa": "x"}), "export it as PDF or Word."),
        ("a.numbers", zipped({"Index.zip": "x"}), "export it as PDF or Excel."),
        ("a.key", zipped({"Index/Presentation.iwa": "x"}), "export it as PDF or PowerPoint."),
        ("a", zipped({"index.apxl": "x"}), "export it as PDF or for Office."),
        ("a.oxps", zipped({"FixedDocSeq.fdseq": "x"}), "an XPS file: save it as PDF."),
        ("a.vsdx", zipped({"visio/document.xml": "x"}), "a Visio drawing: save it as PDF."),
        ("a.zip", zipped({"x": "x"}), "a binary file: only text, PDF and office documents"),
        ("a.doc", OLE + "WordDocument\0".encode("utf-16-le"), "not supported: save it as DOCX."),
        ("a", OLE + "Workbook\0".encode("utf-16-le"), "not supported: save it as XLSX."),
        ("a.xls", b"\x09\x08\x10\0\0\x06\x05\0", "not supported: save it as XLSX."),
        ("a.msg", OLE + "__substg1.0_".encode("utf-16-le"), "an Outlook message: save it as HTML"),
        ("a.db", OLE, "a binary file"),
        ("a.docx", OLE + "EncryptedPackage".encode("utf-16-le"), "with a password"),
        ("a.mobi", b"\0" * 60 + b"BOOKMOBI", "a Kindle book: convert it to EPUB."),
        ("a.djvu", b"AT&TFORM\0\0", "a DjVu file: convert it to PDF."),
        ("a.wpd", b"\xffWPC\x10\0", "a WordPerfect file: save it as DOCX."),
        ("a.webarchive", b"bplist00\0\0", "a web archive that is damaged: save the page as HTML."),
        (
            "a.doc",
            '<?xml version="1.0"?><w:wordDocument'
            ' xmlns:w="http://schemas.microsoft.com/office/word/2003/wordml"/>',
            "a Word document that was saved as XML: save it as DOCX.",
        ),
    ],
)
def test_refusals_have_a_way_out(
    tmp_path: Path, name: str, content: str | bytes, sentence: str
) -> None:
    assert sentence in refusal(written(tmp_path / name, content))


def test_a_page_that_safari_saved_is_read(tmp_path: Path) -> None:
    main = {
        "WebResourceData": "<p>Die Kündigung.</p>".encode("latin-1"),
        "WebResourceMIMEType": "text/html",
        "WebResourceTextEncodingName": "iso-8859-1",
    }
    data = plistlib.dumps({"WebMainResource": main}, fmt=plistlib.FMT_BINARY)
    assert text_of(written(tmp_path / "a.webarchive", data)) == "Die Kündigung.\n"


def test_documents_of_apples_programs_that_are_folders(tmp_path: Path) -> None:
    docs = folder(tmp_path / "docs", **{"a": "a", "b.pages/Index.zip": "x", "b.pages/x.txt": "x"})
    taken = intake(docs)
    assert names(taken) == ["a"]
    assert [each.sentence for each in taken.skipped] == [
        "docs/b.pages is a document of Pages, Numbers or Keynote: export it as PDF or Word."
    ]
    assert "export it as PDF or Word" in refusal(docs / "b.pages")


def test_a_presentation_is_no_key(tmp_path: Path) -> None:
    talk = zipped({"Index/Presentation.iwa": "x"})
    docs = folder(tmp_path / "docs", **{"a": "a", "talk.key": talk, "server.key": "AAAA"})
    found = {each.path: each.reason for each in intake(docs).skipped}
    assert found == {
        "docs/talk.key": SkipReason.DOCUMENT,
        "docs/server.key": SkipReason.PRIVATE,
    }
    with_keys = intake(docs, ReadLimits(include_private=True))
    assert names(with_keys) == ["a", "server.key"]


# ----------------------------------------------------------------------------- without a name


@pytest.mark.parametrize("first", ["docProps/app.xml", "word/_rels/document.xml.rels", "word/"])
def test_documents_on_standard_input_may_begin_with_any_member(first: str) -> None:
    with zipfile.ZipFile(io.BytesIO(DOCX)) as file:
        members = {first: "<x/>" if first[-1] != "/" else ""}
        members |= {name: file.read(name).decode() for name in file.namelist() if name != first}
    (document,) = read(["-"], io.BytesIO(zipped(members))).documents
    assert document.text == "The rent is 500.\n"


def test_mail_on_standard_input() -> None:
    (document,) = read(["-"], io.BytesIO(MHTML.encode())).documents
    assert document.text.endswith("Die Kündigung.\n")


# ----------------------------------------------------------------------------------- pointers


LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'6f' * 32}\nsize 90405214\n"


@table(
    "content, advice",
    [
        (LFS, "is a Git LFS pointer, not the file itself: run `git lfs pull`, then add it again."),
        ("/annex/objects/MD5E-s9--ab.pdf\n", "a git-annex pointer, not the file itself"),
    ],
)
def test_pointers_are_named(tmp_path: Path, content: str, advice: str) -> None:
    docs = folder(tmp_path / "docs", **{"README.md": LFS * 9, "a.csv": content, "b.pdf": content})
    taken = intake(docs)
    assert names(taken) == ["README.md"]
    assert {each.reason for each in taken.skipped} == {SkipReason.POINTER}
    assert advice in taken.skipped[0].sentence
    assert "a.csv (skipped: only a pointer)" in taken.documents[0].text
    assert advice in refusal(docs / "b.pdf")


def test_kinds_take_time_in_proportion_to_the_file() -> None:
    for begins in ("<!--" * 20_000, "<?xml ?>" * 10_000, "a: b\n" * 15_000, "<x " * 20_000):
        assert kind_of("a.doc", begins.encode()) is Kind.TEXT

"""Texts of documents that nobody sees are marked as hidden, and tables do not multiply texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from xml.etree import ElementTree

from app.ingest.charts import chart_lines
from app.ingest.notebook import notebook_text
from app.ingest.office import open_document
from app.ingest.rtf import rtf_text
from app.ingest.web_page import mail_text, markup_text, page_text
from tests.ingest.documents import DRAWING, WORD
from tests.ingest.test_office import docx, opendocument, paragraph, pptx, slide
from tests.ingest.test_opendocument import p
from tests.ingest.test_slides import graphic, sp, tc
from tests.tables import table


def text_of(data: bytes) -> str:
    document = open_document(data)
    return "".join(document.read(number).text for number in range(len(document)))


def word(properties: str, before: str = "", after: str = "") -> str:
    run = f"<w:r><w:rPr>{properties}</w:rPr><w:t>Pay 80.</w:t></w:r>"
    return text_of(docx(f"{before}<w:p>{run}</w:p>{after}"))


def word_style(properties: str) -> str:
    styles = (
        f"<w:styles {WORD}><w:style w:type='paragraph' w:styleId='A'><w:name w:val='A'/><w:rPr>"
        f"{properties}</w:rPr></w:style></w:styles>"
    )
    return text_of(docx(paragraph("Pay 80.", "A"), word__styles=styles))


def open_text(properties: str, paragraph: str = "") -> str:
    named = (
        f"<style:style style:name='T' style:family='text' {FO}>"
        f"<style:text-properties {properties}/>"
        f"</style:style><style:style style:name='G' style:family='paragraph' {FO}>"
        f"<style:paragraph-properties {paragraph}/></style:style>"
    )
    body = "<text:p><text:span text:style-name='T'>Pay 80.</text:span></text:p>"
    return text_of(opendocument("text", body, named))


def slides(properties: str, inside: str = "") -> str:
    shown = f"<a:r><a:rPr {properties}>{inside}</a:rPr><a:t>Pay 80.</a:t></a:r>"
    return text_of(pptx(slide(sp(f"<a:p>{shown}</a:p>"))))


def rich(words: str, head: str = "") -> str:
    colours = r"{\colortbl;\red0\green0\blue0;\red255\green255\blue255;}"
    return rtf_text(f"{{\\rtf1{colours}{head}{{{words} Pay 80.}}}}".encode())


FO = "xmlns:fo='urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0'"
GROUND = "<w:p><w:pPr><w:shd w:fill='000000'/></w:pPr></w:p>"
DARK = "fo:background-color='#000000'"
HIDDEN = {
    "Word, tiny": lambda: word("<w:sz w:val='2'/>"),
    "Word, white": lambda: word("<w:color w:val='FFFFFF'/>"),
    "Word, nearly white": lambda: word("<w:color w:val='FEFEFE'/>"),
    "Word, a tiny style": lambda: word_style("<w:sz w:val='1'/>"),
    "Word, a hidden style": lambda: word_style("<w:vanish/>"),
    "Writer, tiny": lambda: open_text("fo:font-size='1pt'"),
    "Writer, white": lambda: open_text("fo:color='#ffffff'"),
    "a slide, tiny": lambda: slides("sz='100'"),
    "a slide, clear": lambda: slides(
        "", "<a:solidFill><a:srgbClr val='000000'><a:alpha val='0'/></a:srgbClr></a:solidFill>"
    ),
    "a slide, no letters": lambda: slides("", "<a:noFill/>"),
    "Rich Text, tiny": lambda: rich(r"\fs2"),
    "Rich Text, white": lambda: rich(r"\cf2"),
}
SEEN = {
    "Word, small": lambda: word("<w:sz w:val='8'/>"),
    "Word, white on black": lambda: word("<w:color w:val='FFFFFF'/>", GROUND),
    "Word, black": lambda: word("<w:color w:val='auto'/>"),
    "Writer, small": lambda: open_text("fo:font-size='4pt'"),
    "Writer, white on black": lambda: open_text("fo:color='#ffffff'", DARK),
    "a slide, white": lambda: slides("", "<a:solidFill><a:srgbClr val='FFFFFF'/></a:solidFill>"),
    "a slide, outlines": lambda: slides("", "<a:ln/><a:noFill/>"),
    "Rich Text, small": lambda: rich(r"\fs8"),
    "Rich Text, black": lambda: rich(r"\cf1"),
    "Rich Text, white on black": lambda: rich(r"\cf2", r"\cb1 "),
}


@table("case", HIDDEN)
def test_a_text_that_nobody_sees_is_marked(case: str) -> None:
    assert "(hidden: Pay 80.)" in HIDDEN[case]()


@table("case", SEEN)
def test_a_text_that_is_seen_has_no_mark(case: str) -> None:
    text = SEEN[case]()
    assert "Pay 80." in text
    assert "hidden" not in text


# ------------------------------------------------------------------------------------- tables


def cells(of: Callable[[str], str], row: Callable[[str], str], n: int) -> str:
    return row(of("x") * n) + row(of("y")) * n


def word_table(n: int) -> str:
    def cell(text: str) -> str:
        return f"<w:tc><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>"

    rows = cells(cell, lambda inside: f"<w:tr>{inside}</w:tr>", n)
    return text_of(docx(f"<w:tbl>{rows}</w:tbl>"))


def open_table(n: int, kind: str) -> str:
    def cell(text: str) -> str:
        return f"<table:table-cell>{p(text)}</table:table-cell>"

    rows = cells(cell, lambda inside: f"<table:table-row>{inside}</table:table-row>", n)
    return text_of(opendocument(kind, f"<table:table table:name='A'>{rows}</table:table>"))


def repeated_cells(n: int) -> str:
    cell = f"<table:table-cell table:number-columns-repeated='{n}'>{p('x')}</table:table-cell>"
    row = f"<table:table-row table:number-rows-repeated='{n}'>{cell}</table:table-row>"
    return text_of(opendocument("text", f"<table:table table:name='A'>{row}</table:table>"))


def slide_table(n: int) -> str:
    rows = cells(tc, lambda inside: f"<a:tr>{inside}</a:tr>", n)
    return text_of(pptx(slide(graphic(f"<a:tbl>{rows}</a:tbl>"))))


def rich_table(n: int) -> str:
    places = "".join(f"\\cellx{100 * number}" for number in range(1, n + 1))
    rows = "\\trowd" + places + " x\\cell" * n + "\\row" + "\\trowd\\cellx100 y\\cell\\row" * n
    return rtf_text(f"{{\\rtf1 {rows}}}".encode())


def series(n: int) -> str:
    """Values of charts, each at a place of its own."""
    found = "".join(
        f"<c:ser><c:val><c:pt idx='{number}'><c:v>1</c:v></c:pt></c:val></c:ser>"
        for number in range(n)
    )
    return "\n".join(chart_lines(ElementTree.fromstring(f"<c:chart {DRAWING}>{found}</c:chart>")))


def levels(n: int) -> str:
    points = "".join(f"<c:pt idx='{number}'><c:v>a</c:v></c:pt>" for number in range(n))
    many = f"<c:lvl>{points}</c:lvl>" * 2
    source = f"<c:ser><c:cat>{many}</c:cat><c:val>{points}</c:val></c:ser>"
    return "\n".join(chart_lines(ElementTree.fromstring(f"<c:chart {DRAWING}>{source}</c:chart>")))


def page(n: int) -> str:
    return f"<table>{'<tr>' + '<td>x' * n + '<tr><td>y' * n}</table>"


def wide(n: int) -> str:
    return f"<table>{'<tr>' + '<td colspan=100>x' * (n // 25) + '<tr><td>y' * n}</table>"


def tall(n: int) -> str:
    return f"<table>{'<tr><td rowspan=100 colspan=100>x<td>y' * n}</table>"


def notebook(source: str) -> str:
    output = {"output_type": "display_data", "data": {"text/html": source}}
    cell = {"cell_type": "code", "source": "a", "outputs": [output]}
    return notebook_text(json.dumps({"cells": [cell]})) or ""


TABLES: dict[str, Callable[[int], str]] = {
    "Word": word_table,
    "Writer": lambda n: open_table(n, "text"),
    "Calc": lambda n: open_table(n, "spreadsheet"),
    "repeated cells": repeated_cells,
    "a slide": slide_table,
    "Rich Text": rich_table,
    "a chart": series,
    "a chart of several levels": levels,
    **{
        f"{name}, {shape.__name__}": lambda n, read=read, shape=shape: read(shape(n))
        for name, read in (
            ("a page", lambda source: page_text(f"<html>{source}")),
            ("a mail", mail_text),
            ("a book", markup_text),
            ("a notebook", notebook),
        )
        for shape in (page, wide, tall)
    },
}


@table("name", TABLES)
def test_a_table_is_not_filled_up_by_the_square(name: str) -> None:
    sizes = [len(TABLES[name](n)) for n in (200, 800, 1600)]
    assert sizes[2] < max(2.5 * sizes[1], 100_000), sizes

"""Writes the planted text with many programs, each in the forms that it has.

    python write.py FOLDER

Runs in an environment of its own (`requirements.txt`), without specchat. Programs of the system
(LibreOffice, groff) are used if they are installed. `planted.json` in the folder lists what was
planted in each file: a feature, texts of which one is right, and a word that shows that it was
read at all.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import UTC
from email.message import EmailMessage
from importlib.metadata import version
from pathlib import Path
from typing import Any

Planted = tuple[str, tuple[str, ...], str]
"""A feature; texts, one of which is right; a word of it."""
PRODUCERS: dict[str, Callable[[Path], dict[str, list[Planted]]]] = {}

# ------------------------------------------------------------------------------ the text

TITLE, PARAGRAPH = "Supply contract", "Either party may terminate with ninety days notice."
HEADING, SECOND = "Scope of delivery", "Termination"
WORD = "Kündigungsfrist"
SOFT = "Kün\u00addi\u00adgungs\u00adfrist"
ROWS = [["Item", "Price"], ["Pens", "17"], ["", "23"], ["Rulers", ""]]
TEXT: list[Planted] = [
    ("paragraph", (PARAGRAPH,), "terminate"),
    ("heading", (f"# {HEADING}",), "delivery"),
]
RAISED: Planted = ("raised", ("10^6 units",), "units")
SOFTLY: Planted = ("soft hyphens", (WORD,), "gungs")
TABLE: list[Planted] = [
    ("table", ("| Pens | 17 |",), "Pens"),
    ("empty cells", ("|  | 23 |",), "23"),
]
AFTER: Planted = ("after a table", ("\n\nSigned in Lisbon.",), "Lisbon")
ITEMS: list[Planted] = [
    ("numbers", ("1. Warranty", "1) Warranty"), "Warranty"),
    ("numbers", ("2. Liability", "2) Liability"), "Liability"),
]
BULLETS: Planted = ("bullets", ("- Insurance",), "Insurance")
CODE: Planted = ("code", ("\n    return 4711",), "4711")
FOOTNOTE: list[Planted] = [
    ("notes", ("contract[^1]", "contract[1]"), "contract"),
    (
        "notes",
        ("[^1]: Signed twice", "[1]: Signed twice", "1. Signed twice", "[1] Signed twice"),
        "twice",
    ),
]
MARKDOWN = f"""# {HEADING}

{PARAGRAPH}

At most 10^6^ units. Die {SOFT} endet. This is our contract[^1].

1. Warranty
2. Liability

Text between.

3. Renewal

- Insurance

| Item   | Price |
|--------|-------|
| Pens   | 17    |
|        | 23    |
| Rulers |       |

Signed in Lisbon.

## {SECOND}

``` python
def f():
    return 4711
```

Half is $\\frac{{a+b}}{{2}}$.

[terms](https://example.org/terms)

[^1]: Signed twice.
"""
PLAIN_MARKDOWN = (
    MARKDOWN.replace("10^6^", "10<sup>6</sup>").replace("[^1].", ".").split("Half is")[0]
)
CONTINUED: Planted = ("continued numbers", ("3. Renewal", "3) Renewal"), "Renewal")
FORMULA: Planted = ("formulas", ("(a+b)/2",), "Half")
MARKED = [*TEXT, SOFTLY, *ITEMS, CONTINUED, BULLETS, *TABLE, AFTER, CODE]
HTML = f"""<!DOCTYPE html><html lang="de"><head><meta charset="utf-8"><title>{TITLE}</title></head>
<body><h1>{HEADING}</h1><p>{PARAGRAPH}</p><p>At most 10<sup>6</sup> units. Die {SOFT} endet.</p>
<ol><li>Warranty</li><li>Liability</li></ol><p>Text between.</p><ol start="3"><li>Renewal</li></ol>
<ul><li>Insurance</li></ul><table border="1"><tr><th>Item</th><th>Price</th></tr>
<tr><td>Pens</td><td>17</td></tr>
<tr><td></td><td>23</td></tr><tr><td>Rulers</td><td></td></tr></table><p>Signed in Lisbon.</p>
<h2>{SECOND}</h2><pre>def f():
    return 4711</pre></body></html>"""
PDF = [
    ("paragraph", (PARAGRAPH,), "terminate"),
    ("page marks", ("[Page 1]",), "terminate"),
    ("soft hyphens", (WORD, "Kündigungs-\nfrist"), "frist"),
    RAISED,
]


def producer(function: Callable[[Path], dict[str, list[Planted]]]) -> Any:
    PRODUCERS[function.__name__] = function
    return function


def run(*command: object, folder: Path | None = None) -> None:
    subprocess.run(
        [str(each) for each in command], cwd=folder, check=True, capture_output=True, timeout=300
    )


# --------------------------------------------------------------------------- Office texts


@producer
def python_docx(folder: Path) -> dict[str, list[Planted]]:
    import docx

    document = docx.Document()
    document.add_heading(HEADING, 1)
    document.add_paragraph(PARAGRAPH)
    line = document.add_paragraph("At most 10")
    line.add_run("6").font.superscript = True
    line.add_run(f" units. Die {SOFT} endet. ")
    line.add_run("Go down to 80.").font.hidden = True
    for text in ("Warranty", "Liability"):
        document.add_paragraph(text, style="List Number")
    document.add_paragraph("Text between.")
    document.add_paragraph("Renewal", style="List Number")
    document.add_paragraph("Insurance", style="List Bullet")
    table = document.add_table(rows=0, cols=2)
    for row in ROWS:
        for cell, text in zip(table.add_row().cells, row, strict=True):
            cell.text = text
    document.add_paragraph("Signed in Lisbon.")
    document.add_comment(document.paragraphs[1].runs, text="Is ninety enough?", author="Anna")
    document.sections[0].header.paragraphs[0].text = "Contract K-4712"
    document.save(folder / "python_docx.docx")
    return {
        "python_docx.docx": [
            *TEXT, SOFTLY, RAISED, *ITEMS, CONTINUED, BULLETS, *TABLE, AFTER,
            ("hidden", ("(hidden: Go down to 80.)",), "down"),
            ("comments", ("Is ninety enough?",), "enough"),
            ("headers", ("Contract K-4712",), "4712"),
        ]
    }  # fmt: skip


@producer
def docxtpl(folder: Path) -> dict[str, list[Planted]]:
    import docx
    from docxtpl import DocxTemplate

    document = docx.Document()
    document.add_heading("{{ heading }}", 1)
    document.add_paragraph("{{ text }}")
    document.save(folder / "template.docx")
    template = DocxTemplate(folder / "template.docx")
    template.render({"heading": HEADING, "text": PARAGRAPH})
    template.save(folder / "docxtpl.docx")
    (folder / "template.docx").unlink()
    return {"docxtpl.docx": TEXT}


@producer
def htmldocx(folder: Path) -> dict[str, list[Planted]]:
    from htmldocx import HtmlToDocx

    document = HtmlToDocx().parse_html_string(HTML)
    document.save(folder / "htmldocx.docx")
    return {"htmldocx.docx": [*TEXT, SOFTLY, BULLETS, *TABLE, AFTER]}


@producer
def pandoc(folder: Path) -> dict[str, list[Planted]]:
    import pypandoc

    files = {}
    full = [*MARKED, RAISED, *FOOTNOTE]
    for kind, planted in {
        "docx": [*full, FORMULA],
        "odt": [*full, FORMULA],
        "rtf": full,
        "epub": [*full, FORMULA],
        "html": [*full, FORMULA],
        "pptx": [TEXT[0], RAISED, *ITEMS, CONTINUED, BULLETS, *TABLE, FORMULA],
        "ipynb": [TEXT[0], TEXT[1]],
    }.items():
        extra = ["-s", "--metadata", f"title={TITLE}"]
        extra += ["--mathml"] if kind in ("html", "epub") else []
        name = f"pandoc.{kind}"
        pypandoc.convert_text(
            MARKDOWN, kind, "markdown", outputfile=str(folder / name), extra_args=extra
        )
        files[name] = planted
    return files


@producer
def libreoffice(folder: Path) -> dict[str, list[Planted]]:
    """What pandoc and others wrote, saved by LibreOffice."""
    import pypandoc

    office = shutil.which("soffice") or shutil.which("libreoffice")
    if office is None:
        return {}
    source = folder / "libreoffice.odt"
    pypandoc.convert_text(MARKDOWN, "odt", "markdown", outputfile=str(source))
    full = [*MARKED, RAISED, *FOOTNOTE]
    files = {}
    (folder / "page.html").write_text(HTML, "utf-8")
    for kind, planted in {
        "docx": [*full, FORMULA],
        "fodt": [*full, FORMULA],
        "rtf": full,
        "html": [*TEXT, SOFTLY, RAISED, *ITEMS, BULLETS, *TABLE, AFTER],
        "pdf": PDF,
    }.items():
        run(office, "--headless", "--convert-to", kind, "--outdir", folder, source)
        files[f"libreoffice.{kind}"] = planted
    source.rename(folder / "libreoffice_source.odt")
    run(
        office, "--headless", "--convert-to", "odt", "--outdir", folder, folder / "libreoffice.docx"
    )
    (folder / "libreoffice_source.odt").unlink()
    files["libreoffice.odt"] = [*full, FORMULA]
    run(
        office,
        "--headless",
        "--convert-to",
        "odt:writer8",
        "--outdir",
        folder,
        folder / "page.html",
    )
    (folder / "page.odt").rename(folder / "libreoffice_page.odt")
    (folder / "page.html").unlink()
    files["libreoffice_page.odt"] = [
        *TEXT,
        SOFTLY,
        RAISED,
        *ITEMS,
        CONTINUED,
        BULLETS,
        *TABLE,
        AFTER,
    ]
    return files


@producer
def odfpy(folder: Path) -> dict[str, list[Planted]]:
    from odf import opendocument, style, table, text

    document = opendocument.OpenDocumentText()
    raised = style.Style(name="Raised", family="text")
    raised.addElement(style.TextProperties(textposition="super 58%"))
    document.automaticstyles.addElement(raised)
    document.text.addElement(text.H(outlinelevel=1, text=HEADING))
    document.text.addElement(text.P(text=PARAGRAPH))
    line = text.P(text="At most 10")
    line.addElement(text.Span(stylename=raised, text="6"))
    line.addText(f" units. Die {SOFT} endet.")
    document.text.addElement(line)
    grid = table.Table()
    for row in ROWS:
        shown = table.TableRow()
        for cell in row:
            inside = table.TableCell()
            inside.addElement(text.P(text=cell))
            shown.addElement(inside)
        grid.addElement(shown)
    document.text.addElement(grid)
    document.text.addElement(text.P(text="Signed in Lisbon."))
    document.save(str(folder / "odfpy.odt"))
    sheet = opendocument.OpenDocumentSpreadsheet()
    grid = table.Table(name="Costs")
    shown = table.TableRow()
    shown.addElement(table.TableCell(valuetype="float", value="4.5"))
    shown.addElement(table.TableCell(formula="of:=SUM(A1:A1)"))
    grid.addElement(shown)
    sheet.spreadsheet.addElement(grid)
    sheet.save(str(folder / "odfpy.ods"))
    return {
        "odfpy.odt": [*TEXT, RAISED, SOFTLY, *TABLE, AFTER],
        "odfpy.ods": [
            ("values", ("| 4.5 |",), "4.5"),
            ("formulas of sheets", ("=SUM(A1:A1) (not calculated)",), "SUM"),
        ],
    }


@producer
def ezodf(folder: Path) -> dict[str, list[Planted]]:
    import ezodf

    document = ezodf.newdoc(doctype="odt", filename=str(folder / "ezodf.odt"))
    document.body += ezodf.Heading(HEADING)
    document.body += ezodf.Paragraph(PARAGRAPH)
    document.save()
    return {"ezodf.odt": TEXT}


@producer
def pyrtf(folder: Path) -> dict[str, list[Planted]]:
    from PyRTF.document.paragraph import Cell, Paragraph, Table
    from PyRTF.Elements import Document
    from PyRTF.Renderer import Renderer, Section

    document = Document()
    section = Section()
    document.Sections.append(section)
    section.append(Paragraph(document.StyleSheet.ParagraphStyles.Heading1, HEADING))
    normal = document.StyleSheet.ParagraphStyles.Normal
    section.append(Paragraph(normal, PARAGRAPH))
    grid = Table(2000, 2000)
    for row in ROWS:
        grid.AddRow(*(Cell(Paragraph(each)) for each in row))
    section.append(grid)
    section.append(Paragraph(normal, "Signed in Lisbon."))
    with open(folder / "pyrtf.rtf", "w") as file:
        Renderer().Write(document, file)
    return {"pyrtf.rtf": [*TEXT, *TABLE, AFTER]}


@producer
def docutils(folder: Path) -> dict[str, list[Planted]]:
    from docutils.core import publish_file, publish_string

    source = (
        f"{TITLE}\n{'=' * 20}\n\n{HEADING}\n{'-' * 20}\n\n{PARAGRAPH}\n\n"
        f"At most 10\\ :sup:`6` units. Die {SOFT} endet.\n\n1. Warranty\n2. Liability\n\n"
        "Text between.\n\n3. Renewal\n\n- Insurance\n\n"
        "====== =====\nItem   Price\n====== =====\nPens   17\n\\      23\n====== =====\n\n"
        "Signed in Lisbon."
        f"\n\n{SECOND}\n{'-' * 20}\n\n.. code::\n\n   def f():\n       return 4711\n"
    )
    quiet = {"report_level": 5, "input_encoding": "unicode"}
    for writer, kind in (("html5", "html"), ("odt", "odt")):
        out = publish_string(source, writer_name=writer, settings_overrides=quiet)
        (folder / f"docutils.{kind}").write_bytes(out)
    assert publish_file
    planted = [
        TEXT[0], ("heading", (f"# {HEADING}",), "delivery"), SOFTLY, RAISED, *ITEMS, CONTINUED,
        BULLETS, *TABLE, AFTER, CODE,
    ]  # fmt: skip
    # Its ODT begins the second list at 1 again.
    return {"docutils.html": planted, "docutils.odt": [e for e in planted if e is not CONTINUED]}


# ------------------------------------------------------------------------------- sheets

SHEET: list[Planted] = [
    ("values", ("| Pens | 17 |",), "Pens"),
    ("empty cells", ("|  | 23 |",), "23"),
]


@producer
def xlsxwriter(folder: Path) -> dict[str, list[Planted]]:
    import xlsxwriter

    book = xlsxwriter.Workbook(folder / "xlsxwriter.xlsx")
    sheet = book.add_worksheet("Costs")
    for number, row in enumerate(ROWS):
        sheet.write_row(number, 0, [int(each) if each.isdigit() else each or None for each in row])
    sheet.write_formula("B5", "=SUM(B2:B3)")
    sheet.write_number("C2", 0.25, book.add_format({"num_format": "0%"}))
    sheet.write_number("C3", 1.5, book.add_format({"num_format": "[h]:mm"}))
    sheet.write_number("C4", 45292, book.add_format({"num_format": "dd/mm/yyyy"}))
    sheet.write_comment("B2", "Too cheap?")
    sheet.write("A6", "secret")
    sheet.set_row(5, None, None, {"hidden": True})
    sheet.insert_textbox("E2", "Draft four")
    chart = book.add_chart({"type": "column"})
    chart.add_series(
        {"categories": "=Costs!$A$2:$A$3", "values": "=Costs!$B$2:$B$3", "name": "Sold"}
    )
    chart.set_title({"name": "Sales of pens"})
    sheet.insert_chart("G2", chart)
    book.add_worksheet("Old").hide()
    book.close()
    return {
        "xlsxwriter.xlsx": [
            ("values", ("| Pens | 17 | 25% |",), "Pens"),
            ("empty cells", ("|  | 23 | 36:00 |",), "23"),
            ("dates", ("2024-01-01",), "2024"),
            ("formulas of sheets", ("=SUM(B2:B3) (not calculated)",), "SUM"),
            ("comments", ("Too cheap?",), "cheap"),
            ("hidden", ("(hidden) secret",), "secret"),
            ("hidden", ("[Sheet Old (hidden)]",), "Old"),
            ("boxes", ("Draft four",), "Draft"),
            ("charts", ("Sales of pens",), "Sales"),
        ]
    }


@producer
def openpyxl(folder: Path) -> dict[str, list[Planted]]:
    from openpyxl import Workbook
    from openpyxl.chart import BarChart, Reference
    from openpyxl.comments import Comment

    book = Workbook()
    sheet = book.active
    sheet.title = "Costs"
    for row in ROWS:
        sheet.append([int(each) if each.isdigit() else each or None for each in row])
    sheet["B5"] = "=SUM(B2:B3)"
    sheet["C2"] = 0.25
    sheet["C2"].number_format = "0%"
    sheet["B2"].comment = Comment("Too cheap?", "Anna")
    sheet.row_dimensions[6].hidden = True
    sheet["A6"] = "secret"
    chart = BarChart()
    chart.title = "Sales of pens"
    chart.add_data(Reference(sheet, min_col=2, min_row=1, max_row=3), titles_from_data=True)
    sheet.add_chart(chart, "G2")
    book.save(folder / "openpyxl.xlsx")
    return {
        "openpyxl.xlsx": [
            ("values", ("| Pens | 17 | 25% |",), "Pens"),
            ("empty cells", ("|  | 23 |",), "23"),
            ("formulas of sheets", ("=SUM(B2:B3) (not calculated)",), "SUM"),
            ("comments", ("Too cheap?",), "cheap"),
            ("hidden", ("(hidden) secret",), "secret"),
            ("charts", ("Sales of pens",), "Sales"),
        ]
    }


@producer
def pandas(folder: Path) -> dict[str, list[Planted]]:
    import pandas

    frame = pandas.DataFrame(ROWS[1:], columns=ROWS[0])
    frame.to_excel(folder / "pandas.xlsx", index=False)
    frame.to_html(folder / "pandas.html", index=False)
    frame.to_excel(folder / "pandas.ods", index=False)
    return {f"pandas.{kind}": SHEET for kind in ("xlsx", "html", "ods")}


@producer
def pyexcelerate(folder: Path) -> dict[str, list[Planted]]:
    from pyexcelerate import Workbook

    book = Workbook()
    book.new_sheet("Costs", data=ROWS)
    book.save(str(folder / "pyexcelerate.xlsx"))
    return {"pyexcelerate.xlsx": SHEET}


@producer
def pylightxl(folder: Path) -> dict[str, list[Planted]]:
    import pylightxl

    book = pylightxl.Database()
    book.add_ws("Costs")
    for y, row in enumerate(ROWS, 1):
        for x, text in enumerate(row, 1):
            book.ws("Costs").update_index(row=y, col=x, val=int(text) if text.isdigit() else text)
    pylightxl.writexl(book, str(folder / "pylightxl.xlsx"))
    return {"pylightxl.xlsx": SHEET}


@producer
def tablib(folder: Path) -> dict[str, list[Planted]]:
    import tablib

    data = tablib.Dataset(*ROWS[1:], headers=ROWS[0], title="Costs")
    for kind in ("xlsx", "ods"):
        (folder / f"tablib.{kind}").write_bytes(data.export(kind))
    (folder / "tablib.html").write_text(f"<html><body>{data.export('html')}</body></html>")
    return {f"tablib.{kind}": SHEET for kind in ("xlsx", "ods", "html")}


@producer
def odswriter(folder: Path) -> dict[str, list[Planted]]:
    import odswriter

    with odswriter.writer(open(folder / "odswriter.ods", "wb")) as book:
        for row in ROWS:
            book.writerow([int(each) if each.isdigit() else each for each in row])
    return {"odswriter.ods": SHEET}


# ------------------------------------------------------------------------------- slides


@producer
def python_pptx(folder: Path) -> dict[str, list[Planted]]:
    from pptx import Presentation
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE
    from pptx.util import Cm

    talk = Presentation()
    slide = talk.slides.add_slide(talk.slide_layouts[1])
    slide.shapes.title.text = HEADING
    slide.placeholders[1].text = "Insurance"
    slide.notes_slide.notes_text_frame.text = "Say hello."
    table = slide.shapes.add_table(4, 2, Cm(1), Cm(5), Cm(9), Cm(4)).table
    for y, row in enumerate(ROWS):
        for x, text in enumerate(row):
            table.cell(y, x).text = text
    data = CategoryChartData()
    data.categories = ["Q1", "Q2", "Q3"]
    data.add_series("Sold", (10, None, 30))
    slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, Cm(1), Cm(9), Cm(9), Cm(5), data)
    talk.save(folder / "python_pptx.pptx")
    return {
        "python_pptx.pptx": [
            ("heading", (f"# {HEADING}",), "delivery"),
            ("bullets", ("- Insurance",), "Insurance"),
            ("speaker notes", ("Speaker notes:\nSay hello.",), "hello"),
            *TABLE,
            ("charts", ("| Q3 | 30",), "30"),
            ("slide marks", ("[Slide 1]",), "delivery"),
        ]
    }


# ------------------------------------------------------------------- books, pages, notebooks


@producer
def ebooklib(folder: Path) -> dict[str, list[Planted]]:
    from ebooklib import epub

    book = epub.EpubBook()
    book.set_title(TITLE)
    section = epub.EpubHtml(title=HEADING, file_name="one.xhtml")
    section.content = HTML
    book.add_item(section)
    book.toc = (section,)
    book.add_item(epub.EpubNcx())
    book.add_item(epub.EpubNav())
    book.spine = ["nav", section]
    epub.write_epub(str(folder / "ebooklib.epub"), book)
    return {"ebooklib.epub": [*MARKED, RAISED]}


@producer
def markdown(folder: Path) -> dict[str, list[Planted]]:
    import markdown

    body = markdown.markdown(PLAIN_MARKDOWN, extensions=["tables", "fenced_code", "sane_lists"])
    (folder / "markdown.html").write_text(
        f"<!DOCTYPE html><html><body>{body}</body></html>", "utf-8"
    )
    return {"markdown.html": [*MARKED, RAISED]}


@producer
def mistune(folder: Path) -> dict[str, list[Planted]]:
    import mistune

    body = mistune.create_markdown(escape=False, plugins=["table"])(PLAIN_MARKDOWN)
    (folder / "mistune.html").write_text(
        f"<!DOCTYPE html><html><body>{body}</body></html>", "utf-8"
    )
    return {"mistune.html": [*MARKED, RAISED]}


@producer
def markdown_it(folder: Path) -> dict[str, list[Planted]]:
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark").enable("table").render(PLAIN_MARKDOWN)
    (folder / "markdown_it.html").write_text(
        f"<!DOCTYPE html><html><body>{body}</body></html>", "utf-8"
    )
    return {"markdown_it.html": [*MARKED, RAISED]}


@producer
def mistletoe(folder: Path) -> dict[str, list[Planted]]:
    import mistletoe

    body = mistletoe.markdown(PLAIN_MARKDOWN)
    (folder / "mistletoe.html").write_text(
        f"<!DOCTYPE html><html><body>{body}</body></html>", "utf-8"
    )
    return {"mistletoe.html": [*MARKED]}


@producer
def sphinx(folder: Path) -> dict[str, list[Planted]]:
    source = folder / "sphinx"
    source.mkdir()
    (source / "conf.py").write_text(f"project = {TITLE!r}\n")
    (source / "index.rst").write_text(
        f"{HEADING}\n{'=' * 20}\n\n{PARAGRAPH}\n\n"
        "At most 10\\ :sup:`6` units. Half is :math:`1/2`.\n\n1. Warranty\n2. Liability\n\n"
        "- Insurance\n\n.. code::\n\n   def f():\n       return 4711\n",
        "utf-8",
    )
    build = [sys.executable, "-m", "sphinx", "-q"]
    run(*build, "-b", "singlehtml", source, source / "html")
    run(*build, "-b", "epub", source, source / "epub")
    shutil.copy(source / "html" / "index.html", folder / "sphinx.html")
    shutil.copy(next((source / "epub").glob("*.epub")), folder / "sphinx.epub")
    shutil.rmtree(source)
    planted = [TEXT[0], ("heading", (f"# {HEADING}\n",), "delivery"), RAISED, *ITEMS, BULLETS, CODE]
    return {"sphinx.html": planted, "sphinx.epub": planted}


@producer
def mkdocs(folder: Path) -> dict[str, list[Planted]]:
    source = folder / "mkdocs"
    (source / "docs").mkdir(parents=True)
    (source / "mkdocs.yml").write_text(
        f"site_name: {TITLE}\nmarkdown_extensions:\n  - toc:\n      permalink: true\n"
    )
    (source / "docs" / "index.md").write_text(PLAIN_MARKDOWN, "utf-8")
    run(sys.executable, "-m", "mkdocs", "-q", "build", folder=source)
    shutil.copy(source / "site" / "index.html", folder / "mkdocs.html")
    shutil.rmtree(source)
    return {
        "mkdocs.html": [
            TEXT[0],
            ("heading", (f"# {HEADING}\n",), "delivery"),
            RAISED,
            SOFTLY,
            *ITEMS,
            *TABLE,
        ]
    }


@producer
def jupyter(folder: Path) -> dict[str, list[Planted]]:
    import nbformat
    from nbconvert import HTMLExporter
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

    output = new_output("stream", name="stdout", text="\rstep 1\rstep 9\n")
    cells = [
        new_markdown_cell(f"# {HEADING}\n\n{PARAGRAPH}"),
        new_code_cell("# load data\ndef f():\n    return 4711", outputs=[output]),
    ]
    notebook = new_notebook(cells=cells)
    nbformat.write(notebook, folder / "jupyter.ipynb")
    body, _ = HTMLExporter().from_notebook_node(notebook)
    (folder / "jupyter.html").write_text(body, "utf-8")
    return {
        "jupyter.ipynb": [*TEXT, CODE, ("progress bars", ("step 9",), "step")],
        "jupyter.html": [TEXT[0], CODE],
    }


# -------------------------------------------------------------------------------- mail


@producer
def python_mail(folder: Path) -> dict[str, list[Planted]]:
    from icalendar import Calendar, Event

    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "a@example.org", "b@example.org", TITLE
    mail.set_content("Open this mail in a program that shows HTML.")
    mail.add_alternative(HTML, subtype="html")
    (folder / "python_mail.eml").write_bytes(bytes(mail))
    event = Event()
    event.add("summary", "Budget meeting")
    event.add("location", "Room 42")
    from datetime import datetime

    event.add("dtstart", datetime(2026, 5, 4, 9, 30, tzinfo=UTC))
    calendar = Calendar()
    calendar.add("method", "REQUEST")
    calendar.add_component(event)
    invitation = EmailMessage()
    invitation["From"], invitation["Subject"] = "a@example.org", "Invitation"
    invitation.set_content("Please come.")
    invitation.add_alternative(calendar.to_ical().decode(), subtype="calendar")
    (folder / "icalendar.eml").write_bytes(bytes(invitation))
    return {
        "python_mail.eml": [TEXT[0], *ITEMS, BULLETS, *TABLE],
        "icalendar.eml": [
            ("invitations", ("Room 42",), "Room"),
            ("invitations", ("2026-05-04", "4 May 2026"), "2026"),
        ],
    }


@producer
def emails(folder: Path) -> dict[str, list[Planted]]:
    import emails

    message = emails.html(
        html=HTML, subject=TITLE, mail_from="a@example.org", mail_to="b@example.org"
    )
    (folder / "emails.eml").write_text(message.as_string())
    return {"emails.eml": [TEXT[0], *ITEMS, BULLETS, *TABLE]}


# --------------------------------------------------------------------------------- PDF


@producer
def reportlab(folder: Path) -> dict[str, list[Planted]]:
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Table

    styles = getSampleStyleSheet()
    SimpleDocTemplate(str(folder / "reportlab.pdf")).build(
        [
            Paragraph(HEADING, styles["Heading1"]),
            Paragraph(PARAGRAPH, styles["Normal"]),
            Paragraph("At most 10<super>6</super> units.", styles["Normal"]),
            Table(ROWS),
        ]
    )
    return {"reportlab.pdf": [PDF[0], PDF[1], RAISED]}


@producer
def fpdf2(folder: Path) -> dict[str, list[Planted]]:
    from fpdf import FPDF

    pdf = FPDF()
    pdf.add_page()
    pdf.set_font("helvetica", size=12)
    pdf.start_section(HEADING)
    pdf.cell(text=HEADING, new_x="LMARGIN", new_y="NEXT")
    pdf.multi_cell(0, text=PARAGRAPH, new_x="LMARGIN", new_y="NEXT")
    pdf.write(text="At most 10")
    pdf.char_vpos = "SUP"
    pdf.write(text="6")
    pdf.char_vpos = "LINE"
    pdf.write(text=" units.")
    pdf.output(str(folder / "fpdf2.pdf"))
    return {"fpdf2.pdf": [PDF[0], PDF[1], RAISED, ("heading", (f"# {HEADING}",), "delivery")]}


@producer
def weasyprint(folder: Path) -> dict[str, list[Planted]]:
    import weasyprint

    weasyprint.HTML(string=HTML).write_pdf(folder / "weasyprint.pdf")
    return {"weasyprint.pdf": [*PDF, ("heading", (f"# {HEADING}",), "delivery")]}


@producer
def typst(folder: Path) -> dict[str, list[Planted]]:
    import typst

    source = folder / "typst.typ"
    source.write_text(
        f"= {HEADING}\n\n{PARAGRAPH}\n\nAt most 10#super[6] units.\n\n+ Warranty\n+ Liability\n",
        "utf-8",
    )
    typst.compile(str(source), output=str(folder / "typst.pdf"))
    source.unlink()
    return {
        "typst.pdf": [PDF[0], PDF[1], RAISED, *ITEMS, ("heading", (f"# {HEADING}",), "delivery")]
    }


@producer
def xhtml2pdf(folder: Path) -> dict[str, list[Planted]]:
    from xhtml2pdf import pisa

    with open(folder / "xhtml2pdf.pdf", "wb") as file:
        pisa.CreatePDF(HTML.replace(SOFT, WORD), dest=file)
    return {"xhtml2pdf.pdf": [PDF[0], PDF[1], RAISED]}


@producer
def matplotlib(folder: Path) -> dict[str, list[Planted]]:
    import matplotlib

    matplotlib.use("pdf")
    from matplotlib import pyplot

    figure = pyplot.figure()
    figure.text(0.1, 0.8, PARAGRAPH)
    figure.savefig(folder / "matplotlib.pdf")
    return {"matplotlib.pdf": [PDF[0], PDF[1]]}


@producer
def rst2pdf(folder: Path) -> dict[str, list[Planted]]:
    source = folder / "rst2pdf.rst"
    source.write_text(f"{HEADING}\n{'=' * 20}\n\n{PARAGRAPH}\n", "utf-8")
    run(Path(sys.executable).parent / "rst2pdf", source, "-o", folder / "rst2pdf.pdf")
    source.unlink()
    return {"rst2pdf.pdf": [PDF[0], PDF[1]]}


@producer
def groff(folder: Path) -> dict[str, list[Planted]]:
    if shutil.which("groff") is None:
        return {}
    source = folder / "groff.ms"
    source.write_text(f".NH 1\n{HEADING}\n.LP\n{PARAGRAPH}\n.LP\nAt most 10\\*{{6\\*}} units.\n")
    with open(folder / "groff.pdf", "wb") as file:
        subprocess.run(["groff", "-ms", "-Tpdf", source], stdout=file, check=False)
    source.unlink()
    if not (folder / "groff.pdf").stat().st_size:
        (folder / "groff.pdf").unlink()
        return {}
    return {"groff.pdf": [PDF[0], PDF[1], RAISED]}


NODE: dict[str, list[Planted]] = {
    "paragraph": TEXT[:1],
    "heading": TEXT[1:],
    "raised": [RAISED],
    "soft hyphens": [SOFTLY],
    "numbers": ITEMS,
    "continued numbers": [CONTINUED],
    "bullets": [BULLETS],
    "table": TABLE,
    "after a table": [AFTER],
    "hidden": [("hidden", ("(hidden: Go down to 80.)",), "down")],
    "headers": [("headers", ("Contract K-4712",), "4712")],
    "ticks": [("ticks", ("[x] insured",), "insured")],
    "formulas": [FORMULA],
    "notes": FOOTNOTE,
    "speaker notes": [("speaker notes", ("Speaker notes:\nSay hello.",), "hello")],
    "charts": [("charts", ("| Q3 | 30 |",), "30")],
    "values": [("values", ("| Pens | 17 |",), "Pens")],
    "empty cells": [("empty cells", ("|  | 23 |",), "23")],
    "percent": [("values", ("150%",), "150")],
    "formulas of sheets": [("formulas of sheets", ("=SUM(B2:B3) (not calculated)",), "SUM")],
    "comments": [("comments", ("Too cheap?",), "cheap")],
    "hidden rows": [("hidden", ("(hidden) secret",), "secret")],
}
"""What `write.mjs` names by its features."""


def write_node(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """What programs of npm write; nothing if they are not installed."""
    home = Path(sys.prefix).parent
    if not (home / "node_modules").is_dir():
        return {}, {}
    text = {"heading": HEADING, "paragraph": PARAGRAPH, "soft": SOFT, "rows": ROWS, "html": HTML}
    (folder / "text.json").write_text(json.dumps(text), "utf-8")
    script = home / "write.mjs"
    shutil.copy(Path(__file__).with_name("write.mjs"), script)
    run("node", script, folder, folder / "text.json")
    (folder / "text.json").unlink()
    listed = json.loads((folder / "planted_node.json").read_text("utf-8"))
    (folder / "planted_node.json").unlink()
    files = {
        file: [name, [row for each in features for row in NODE[each]]]
        for file, (name, features) in listed["files"].items()
    }
    return files, listed["failed"]


def main() -> None:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    planted, failed = {}, {}
    for name, write in PRODUCERS.items():
        try:
            planted |= {file: [name, rows] for file, rows in write(folder).items()}
        except Exception:
            failed[name] = traceback.format_exc(limit=-1)
            print(name, failed[name], file=sys.stderr)
    files, lost = write_node(folder)
    planted, failed = planted | files, failed | lost
    for name, error in lost.items():
        print(name, error, file=sys.stderr)
    packages = [
        line.partition("==")[0]
        for line in Path(__file__).with_name("requirements.txt").read_text().split()
    ]
    versions = {each.partition("[")[0]: version(each.partition("[")[0]) for each in packages}
    listed = {"files": planted, "failed": failed, "versions": versions}
    (folder / "planted.json").write_text(json.dumps(listed, ensure_ascii=False, indent=1), "utf-8")
    print(f"{len(planted)} files of {len({each[0] for each in planted.values()})} producers")


if __name__ == "__main__":
    main()

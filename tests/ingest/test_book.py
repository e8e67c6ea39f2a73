"""E-books: their sections as a reading program shows them, and what is missing."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from app.ingest.archive import Archive
from app.ingest.book import Book
from app.ingest.web_page import markup_text
from tests.ingest.helpers import intake, refusal, written
from tests.tables import table

CONTAINER = '<container><rootfiles><rootfile full-path="in/a.opf"/></rootfiles></container>'


def book(package: str, **sections: str) -> bytes:
    """A book with these members in the folder of its package."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("mimetype", "application/epub+zip")
        file.writestr("META-INF/container.xml", CONTAINER)
        file.writestr("in/a.opf", package)
        for name, content in sections.items():
            file.writestr(f"in/{name}.xhtml", content)
    return out.getvalue()


def package(*order: str, **items: str) -> str:
    """A package of these items, by id, which are read in this order."""
    listed = "".join(f'<item id="{id}" href="{address}"/>' for id, address in items.items())
    spine = "".join(f'<itemref idref="{id}"/>' for id in order)
    return f"<package><manifest>{listed}</manifest><spine>{spine}</spine></package>"


PARTS = {
    "<head><title>ch001.xhtml</title></head><body><h1>Aims</h1></body>": "# Aims",
    "<head><title>Cover</title><body><img alt='A tree'/></body>": "[A tree]",
    "<nav hidden=''><ol><li>1</li></ol></nav><p>A</p>": "A",
    "<nav><ol><li><a href='a'>1 Aims</a><ol><li>1.1 Scope</li></ol></li></ol></nav>": (
        "1 Aims\n  1.1 Scope"
    ),
    "<p>if <![CDATA[a < b && <c>]]> then</p><p><![CDATA[d": "if a < b && <c> then\n\nd</html>",
    "<p>{{ as it stands }}</p>": "{{ as it stands }}",
    "<p>A<a id='x'/>B</p><td/>": "AB",
    "<p>Half is <m:math><m:mfrac><m:mn>1</m:mn><m:mn>2</m:mn></m:mfrac></m:math>.</p>": (
        "Half is 1/2."
    ),
    "<p>A<a href='#n' epub:type='noteref'>1</a></p><aside id='n' hidden=''><p>Note</p></aside>": (
        "A[1]\n\n[1] Note"
    ),
    "<p>A<a href='#n' role='doc-noteref'>1</a></p><aside id='n'><p>(1) B</p></aside>": (
        "A[1]\n\n(1) B"
    ),
    "<div epub:type='footnote' style='display:none'>Note</div>": "Note",
    "<svg><title>no</title><text>A <tspan>B</tspan></text><text>C</text></svg>": "A B\nC",
    "<svg><text><tspan x='0' dy='1'>A</tspan><tspan x='0' dy='1'>B</tspan></text></svg>": "A\nB",
    f"<table><tr><td>A</td><td>{'x ' * 600}</td></tr></table>": (
        f"| A | {'x ' * 599}x |\n| --- | --- |"
    ),
    "<table><tr><td>A</td><td><table><tr><td>1</td><td>2</td></tr><tr><td>3</td><td>4</td></tr>"
    "</table></td></tr></table>": "| A | 1, 2; 3, 4 |\n| --- | --- |",
    "<table><tr><td><h2>A</h2><table><tr><td>1</td><td>2</td></tr></table></td></tr></table>": (
        "## A\n\n| 1 | 2 |\n| --- | --- |"
    ),
}  # fmt: skip


@table("source", PARTS)
def test_the_text_of_a_section(source: str) -> None:
    assert markup_text(f"<html>{source}</html>") == PARTS[source] + "\n"


def test_sections_without_text() -> None:
    assert markup_text("<html><svg><image href='c.png'/></svg></html>") == ""


def test_missing_sections_keep_their_numbers(tmp_path: Path) -> None:
    listed = package("a", "gone", "nowhere", "b", a="a.xhtml#top", b="b.xhtml", gone="c.xhtml")
    result = intake(written(tmp_path / "a.epub", book(listed, a="<p>A</p>", b="<p>B</p>")))
    unread = "(This section could not be read.)"
    assert result.documents[0].text == (
        f"[Section 1]\nA\n\n[Section 2]\n{unread}\n\n[Section 3]\n{unread}\n\n[Section 4]\nB\n\n"
    )
    assert [each.detail for each in result.skipped] == [
        "has 2 of 4 sections (2-3) that cannot be read"
    ]


@pytest.mark.parametrize("name", ["chapter 1", "chapter%201"])
def test_names_with_signs(name: str) -> None:
    listed = package("a", a="../in/chapter%201.xhtml")
    assert Book(Archive(book(listed, **{name: "<p>A</p>"}))).read(0).text == "A\n"


def test_style_sheets_that_a_section_links_to() -> None:
    links = "".join(f"<link rel='stylesheet' href='{each}'/>" for each in ("x.xhtml", "no.css"))
    section = f"<html><head>{links}</head><body><p>a<i class='s'>2</i></p></body></html>"
    data = book(
        package("a", "b", a="a.xhtml", b="b.xhtml"),
        a=section,
        b="<p>B<i class='s'>2</i>",
        x=".s{vertical-align:super}",
    )
    read = Book(Archive(data)).read
    assert [read(0).text, read(1).text] == ["a^2\n", "B2\n"]


def test_entities_in_a_package_are_refused(tmp_path: Path) -> None:
    entity = "<!DOCTYPE package [<!ENTITY a 'A'>]>"
    data = book(entity + package("a", a="a.xhtml"), a="<!DOCTYPE html><p>A</p>")
    assert "damaged" in refusal(written(tmp_path / "a.epub", data))

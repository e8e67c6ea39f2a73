"""Reads PowerPoint presentations: their slides with tables, charts, comments and notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from app.ingest import markdown
from app.ingest.charts import chart_lines, diagram_lines
from app.ingest.elements import attribute, child, every, name_of
from app.ingest.formulas import linear
from app.ingest.list_numbers import formatted
from app.ingest.markdown import Line, Writer
from app.ingest.parts import Part

if TYPE_CHECKING:
    from app.ingest.archive import Archive

_NO_CONTENT = ("sldNum", "dt", "ftr", "hdr", "sldImg")
_TITLES = ("title", "ctrTitle")
_NUMBERS = {
    "arabic": "decimal", "alphaLc": "lowerLetter", "alphaUc": "upperLetter",
    "romanLc": "lowerRoman", "romanUc": "upperRoman",
}  # fmt: skip
_SIGNS = (("ParenBoth", "({})"), ("ParenR", "{})"), ("Period", "{}."), ("Plain", "{}"))


class Slides:
    """The slides of a PowerPoint presentation, with tables, charts and speaker notes."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        main = archive.main("officeDocument", "ppt/presentation.xml")
        links = archive.links(main)
        ids = (
            next((value for key, value in each.items() if key.endswith("}id")), "")
            for each in every(archive.xml(main), "sldId")
        )
        self._slides = [links[each] for each in ids if each in links]
        self._authors = self._read_authors(main)
        self.embedded = archive.embedded()

    def __len__(self) -> int:
        return len(self._slides)

    def read(self, number: int) -> Part:
        name = self._slides[number]
        slide, relations = self._archive.xml(name), self._archive.relations(name)
        reader = _Reader(self._archive, name)
        reader.shapes(child(slide, "cSld", "spTree"))
        for kind, target, external in relations.values():
            if kind == "notesSlide" and not external:
                notes = _Reader(self._archive, target, is_notes=True)
                notes.shapes(child(self._archive.xml(target), "cSld", "spTree"))
                if text := notes.writer.text():
                    reader.writer.block(f"Speaker notes:\n{text}")
            elif kind == "comments" and not external:
                self._comments(self._archive.xml(target), reader.writer)
        hidden = " (hidden)" if slide.get("show") == "0" else ""
        return Part(f"[Slide {number + 1}{hidden}]", reader.writer.text())

    def _read_authors(self, main: str) -> dict[str, str]:
        found = {}
        for kind, name, external in self._archive.relations(main).values():
            if kind in ("commentAuthors", "authors") and not external:
                for each in self._archive.xml(name):
                    found[each.get("id", "")] = each.get("name", "")
        return found

    def _comments(self, root: Element, writer: Writer) -> None:
        for number, each in enumerate(every(root, "cm"), 1):
            author = self._authors.get(each.get("authorId", ""), "")
            texts = [inner.text or "" for inner in each.iter() if name_of(inner) in ("text", "t")]
            text = " ".join(filter(None, texts))
            writer.note(f"[Comment {number}]", f"{author}: {text}" if author else text)


class _Reader:
    """Reads the shapes of a slide, or of its notes."""

    def __init__(self, archive: Archive, name: str, is_notes: bool = False) -> None:
        self._archive, self._links = archive, archive.links(name)
        self._is_notes = is_notes
        self.writer = Writer()

    def shapes(self, tree: Element | None) -> None:
        for shape in tree if tree is not None else ():
            kind = name_of(shape)
            properties = next((each for each in shape if name_of(each).startswith("nv")), None)
            drawn = child(properties, "cNvPr")
            hidden = drawn is not None and drawn.get("hidden") in ("1", "true")
            if kind == "grpSp":
                self.shapes(shape)
            elif kind == "AlternateContent":
                chosen = child(shape, "Choice")
                self.shapes(chosen if chosen is not None else child(shape, "Fallback"))
            elif kind == "sp":
                self._shape(shape, hidden)
            elif kind == "graphicFrame":
                self._graphic(shape)
            elif kind == "pic" and drawn is not None and (text := drawn.get("descr", "").strip()):
                self.writer.paragraph(f"[{' '.join(text.split())}]")

    def _shape(self, shape: Element, hidden: bool) -> None:
        placeholder = child(shape, "nvSpPr", "nvPr", "ph")
        role = "" if placeholder is None else placeholder.get("type", "body")
        body = child(shape, "txBody")
        if body is None or role in _NO_CONTENT:
            return
        paragraphs = [(each, _text(each)) for each in body.findall("{*}p")]
        if hidden:
            text = "\n".join(text for _, text in paragraphs if text.strip())
            self.writer.paragraph(markdown.hidden(text))
            return
        if role in _TITLES and not self._is_notes:
            self.writer.heading(1, " ".join(text for _, text in paragraphs if text))
            return
        numbers: dict[int, int] = {}
        for paragraph, text in paragraphs:
            if not text.strip():
                continue
            properties = child(paragraph, "pPr")
            level = 0 if properties is None else int(properties.get("lvl", "0"))
            marks = {} if properties is None else {name_of(each): each for each in properties}
            mark = ""
            if (automatic := marks.get("buAutoNum")) is not None:
                begin = int(automatic.get("startAt", "1"))
                numbers[level] = numbers[level] + 1 if level in numbers else begin
                mark = _number(numbers[level], automatic.get("type", "arabicPeriod"))
            elif "buChar" in marks or (role == "body" and "buNone" not in marks):
                mark = "" if self._is_notes and "buChar" not in marks else "-"
            for deeper in [each for each in numbers if each > level]:
                del numbers[deeper]
            if mark:
                self.writer.item(level, mark, text)
            else:
                self.writer.paragraph(text)
        self.writer.end_list()

    def _graphic(self, frame: Element) -> None:
        """Read a table, a chart or a diagram."""
        data = next(every(frame, "graphicData"), None)
        for each in data if data is not None else ():
            kind = name_of(each)
            if kind == "tbl":
                self.writer.table([*_rows(each)])
            elif kind == "chart" and (part := self._links.get(attribute(each, "id"))):
                for block in chart_lines(self._archive.xml(part)):
                    self.writer.block(block)
            elif kind == "relIds" and (part := self._links.get(attribute(each, "dm"))):
                for block in diagram_lines(self._archive.xml(part)):
                    self.writer.block(block)


def _rows(table: Element) -> Iterator[list[str]]:
    for row in table.findall("{*}tr"):
        cells = row.findall("{*}tc")
        yield [" ".join(filter(None, (_text(each) for each in every(cell, "p")))) for cell in cells]


def _number(number: int, kind: str) -> str:
    for ending, pattern in _SIGNS:
        if kind.endswith(ending):
            form = _NUMBERS.get(kind.removesuffix(ending), "decimal")
            return pattern.format(formatted(number, form))
    return f"{number}."


def _text(paragraph: Element) -> str:
    """The text of a paragraph, with its formulas."""
    line = Line()
    _add(paragraph, line)
    return line.text()


def _add(element: Element, line: Line) -> None:
    for each in element:
        name = name_of(each)
        if name == "r":
            properties, text = child(each, "rPr"), child(each, "t")
            height = "0" if properties is None else properties.get("baseline", "0")
            raised = height[:1].isdigit() and height.strip("0%") != ""
            line.add("" if text is None else text.text or "", "raised" if raised else "")
        elif name == "br":
            line.add("\n")
        elif name == "fld":
            if each.get("type") != "slidenum":
                _add_text(each, line)
        elif name == "AlternateContent":
            chosen = child(each, "Choice")
            if chosen is not None:
                _add(chosen, line)
        elif name == "m":
            line.add("".join(linear(inner) for inner in each))


def _add_text(element: Element, line: Line) -> None:
    text = child(element, "t")
    line.add("" if text is None else text.text or "")

"""Reads the shapes that are drawn on slides and over sheets: texts, tables, charts and diagrams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from app.ingest import markdown
from app.ingest.charts import chart_lines, diagram_lines
from app.ingest.elements import (
    attribute,
    child,
    chosen,
    every,
    inside,
    integer,
    is_on,
    line_of,
    name_of,
    value_of,
)
from app.ingest.formulas import linear
from app.ingest.list_numbers import bullet, formatted
from app.ingest.markdown import Line, Writer
from app.util import formatting

if TYPE_CHECKING:
    from app.ingest.archive import Archive

_NO_CONTENT = ("sldNum", "dt", "ftr", "hdr", "sldImg")
_TITLES = ("title", "ctrTitle")
_NUMBERS = {
    "arabic": "decimal", "alphaLc": "lowerLetter", "alphaUc": "upperLetter",
    "romanLc": "lowerRoman", "romanUc": "upperRoman",
}  # fmt: skip
_SIGNS = (("ParenBoth", "({})"), ("ParenR", "{})"), ("Period", "{}."), ("Plain", "{}"))


class Shapes:
    """Reads the shapes of a slide, of its notes, or of a sheet's drawing."""

    def __init__(self, archive: Archive, name: str, writer: Writer, is_notes: bool = False) -> None:
        """`name` is the member in which the shapes are."""
        self._archive, self._relations = archive, archive.relations(name)
        self._writer, self._is_notes = writer, is_notes
        self.unknown: Counter[str] = Counter()
        """Elements with text that is not read, by their names."""

    def read(self, shapes: Iterable[Element], hidden: bool = False) -> None:
        for shape in shapes:
            kind = name_of(shape)
            properties = next((each for each in shape if name_of(each).startswith("nv")), None)
            drawn = child(properties, "cNvPr")
            own = hidden or is_on(drawn, "hidden")
            shown = False
            if kind == "grpSp" or kind.endswith("Anchor"):
                self.read(shape, own)
            elif kind == "AlternateContent":
                self.read(chosen(shape), own)
            elif kind == "sp":
                shown = self._shape(shape, own)
            elif kind == "graphicFrame":
                shown = self._graphic(shape, own)
            described = "" if shown or drawn is None else line_of(drawn.get("descr"))
            if described and kind in ("sp", "graphicFrame", "pic"):
                self._writer.paragraph(f"[{described}]")

    def _shape(self, shape: Element, hidden: bool) -> bool:
        """Read the text of a shape. Returns whether it is a place for text."""
        placeholder = child(shape, "nvSpPr", "nvPr", "ph")
        role = "" if placeholder is None else placeholder.get("type", "body")
        body = child(shape, "txBody")
        if body is None or role in _NO_CONTENT:
            return role != ""
        paragraphs = [(each, self._text(each)) for each in body.findall("{*}p")]
        texts = [text for _, text in paragraphs if text.strip()]
        if hidden:
            self._writer.paragraph(markdown.hidden("\n".join(texts)))
        elif role in _TITLES and not self._is_notes:
            self._writer.heading(1, " ".join(texts))
        else:
            self._paragraphs(paragraphs, role)
        return role != "" or bool(texts)

    def _paragraphs(self, paragraphs: Iterable[tuple[Element, str]], role: str) -> None:
        numbers: dict[int, tuple[str, int, int]] = {}
        """What was counted last, by levels: its kind, where it began, and the number."""
        for paragraph, text in paragraphs:
            if not text.strip():
                continue
            properties = child(paragraph, "pPr")
            level = 0 if properties is None else integer(properties.get("lvl", ""))
            marks = {name_of(each): each for each in inside(paragraph, "pPr")}
            mark = ""
            if (automatic := marks.get("buAutoNum")) is not None:
                kind = automatic.get("type", "arabicPeriod")
                before = numbers.get(level, ("", 1, 0))
                start = integer(automatic.get("startAt", ""), before[1] if kind == before[0] else 1)
                goes_on = before[:2] == (kind, start)
                number = before[2] + 1 if goes_on else start
                numbers[level] = kind, start, number
                mark = _number(number, kind)
            elif (sign := marks.get("buChar")) is not None:
                font = marks.get("buFont", sign).get("typeface", "")
                mark = bullet(sign.get("char", "-"), font)
            elif role == "body" and "buNone" not in marks and not self._is_notes:
                mark = "-"
            last = level if automatic is not None else level - 1
            numbers = {at: counted for at, counted in numbers.items() if at <= last}
            if mark:
                self._writer.item(level, mark, text)
            else:
                self._writer.paragraph(text)
        self._writer.end_list()

    def _graphic(self, frame: Element, hidden: bool) -> bool:
        """Read a table, a chart or a diagram. Returns whether there was one."""
        if hidden:
            self._writer.paragraph("(hidden)")
        blocks: list[str] = []
        for each in inside(frame, "graphic", "graphicData"):
            kind = name_of(each)
            if kind == "tbl":
                self._writer.table([*self._rows(each)])
                return True
            if kind == "chart" and (part := self._linked(attribute(each, "id"))):
                blocks += chart_lines(self._archive.xml(part))
            elif kind == "relIds" and (part := self._linked(attribute(each, "dm"))):
                blocks += diagram_lines(self._archive.xml(part))
            elif any(text.strip() for text in each.itertext()):
                self.unknown[kind] += 1
        for block in blocks:
            self._writer.block(block)
        return bool(blocks)

    def _linked(self, id: str) -> str:
        _, target, external = self._relations.get(id, ("", "", True))
        return "" if external else target

    def _rows(self, table: Element) -> Iterator[list[str]]:
        for row in table.findall("{*}tr"):
            cells = row.findall("{*}tc")
            texts = ((self._text(each) for each in every(cell, "p")) for cell in cells)
            yield [" ".join(filter(None, text)) for text in texts]

    # --------------------------------------------------------------------------------- text

    def _text(self, paragraph: Element) -> str:
        """The text of a paragraph, with its formulas."""
        line = Line()
        self._add(paragraph, line)
        return line.text()

    def _add(self, elements: Iterable[Element], line: Line) -> None:
        for link, runs in groupby(elements, self._address):
            shown = ""
            for each in runs:
                name, text = name_of(each), text_of(each)
                if name == "r":
                    line.add(text, _kind(child(each, "rPr")))
                    shown += text
                elif name == "br" or (name == "fld" and each.get("type") != "slidenum"):
                    line.add(text)
                elif name == "AlternateContent":
                    self._add(chosen(each), line)
                elif name == "m":
                    line.add("".join(map(linear, each)))
            line.add(markdown.address(link, shown))

    def _address(self, run: Element) -> str:
        link = child(run, "rPr", "hlinkClick")
        id = "" if link is None else attribute(link, "id")
        _, target, external = self._relations.get(id, ("", "", False))
        return target if external else ""


def unknown_said(unknown: Counter[str], place: str = "") -> Iterator[tuple[str, str]]:
    """What a reader must know of elements that were not read, in a place such as `Slide 3`."""
    if unknown:
        total = formatting.plural(sum(unknown.values()), "element")
        names = ", ".join(name for name, _ in unknown.most_common(5))
        names = ": ".join(filter(None, (place, names)))
        yield f"has {total} that specchat does not know ({names})", "save it as PDF, and add that"


def _kind(properties: Element | None) -> str:
    """How letters are shown; see `Line.add`."""
    if properties is None:
        return ""
    fill = next(iter(inside(properties, "solidFill")), None)
    is_clear = value_of(fill, "alpha") == "0" or (
        child(properties, "noFill") is not None and child(properties, "ln") is None
    )
    if is_clear or markdown.is_tiny(integer(properties.get("sz", ""), 1800) / 100):
        return "hidden"
    if properties.get("strike", "noStrike") != "noStrike":
        return "struck"
    height = properties.get("baseline", "")
    return "raised" if height[:1].isdigit() and height.strip("0%") else ""


def text_of(run: Element) -> str:
    """The text of a run, a field or a line end."""
    text = child(run, "t")
    return ("\n" if name_of(run) == "br" else "") if text is None else text.text or ""


def _number(number: int, kind: str) -> str:
    for ending, pattern in _SIGNS:
        if kind.endswith(ending):
            form = _NUMBERS.get(kind.removesuffix(ending), "decimal")
            return pattern.format(formatted(number, form))
    return f"{number}."

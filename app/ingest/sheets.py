"""Reads Excel workbooks: what Excel shows of their cells, and what stands beside them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from app.ingest import markdown
from app.ingest.elements import (
    attribute,
    child,
    every,
    inside,
    integer,
    is_on,
    line_of,
    name_of,
    value_of,
)
from app.ingest.markdown import Line, Writer
from app.ingest.number_formats import shown_date, shown_number
from app.ingest.parts import Part
from app.ingest.shapes import Shapes, text_of, unknown_said
from app.ingest.sheet_text import MAX_COLUMNS, SheetText

if TYPE_CHECKING:
    from app.ingest.archive import Archive

_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_PLACE = re.compile(r"([A-Z]{1,3})(\d{1,9})")
_BUILT_IN = {
    9: "0%", 10: "0.00%", 14: "yyyy-mm-dd", 15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy",
    18: "h:mm AM/PM", 19: "h:mm:ss AM/PM", 20: "h:mm", 21: "h:mm:ss", 22: "yyyy-mm-dd h:mm",
    45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss",
    **dict.fromkeys(range(27, 37), "yyyy-mm-dd"), **dict.fromkeys(range(50, 59), "yyyy-mm-dd"),
}  # fmt: skip
"""Formats that files name by their numbers only."""


class Workbook:
    """The sheets of an Excel workbook."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        main = archive.main("officeDocument", "xl/workbook.xml")
        book, links = archive.xml(main), archive.relations(main)
        self._sheets = []
        for each in every(book, "sheet"):
            kind, name, external = links.get(attribute(each, "id"), ("", "", True))
            if kind in ("worksheet", "chartsheet") and not external:
                hidden = each.get("state", "visible") != "visible"
                self._sheets.append((each.get("name", ""), name, hidden))
        self._since_1904 = is_on(child(book, "workbookPr"), "date1904")
        self._to_calculate = is_on(child(book, "calcPr"), "fullCalcOnLoad")
        parts = dict(archive.linked(main))
        styles = archive.xml(parts["styles"]) if "styles" in parts else Element("none")
        self._formats = _read_formats(styles)
        has_tables = any(name.startswith("xl/tables/") for name in archive.names)
        self._unseen = {*_unseen_styles(styles, self._formats, has_tables)}
        self._strings: list[str] | None = None
        self._strings_part = parts.get("sharedStrings", "")
        self._people = {
            each.get("id", ""): each.get("displayName", "")
            for each in (archive.xml(parts["person"]) if "person" in parts else ())
        }
        self.embedded = archive.embedded()

    def __len__(self) -> int:
        return len(self._sheets)

    def read(self, number: int) -> Part:
        name, part, hidden = self._sheets[number]
        sheet = SheetText(name, hidden)
        last = -1
        with self._archive.open(part) as file:
            for _, element in ElementTree.iterparse(file):
                kind = name_of(element)
                if kind == "cols":
                    sheet.hide_columns(_hidden_columns(element))
                elif kind == "hyperlinks":
                    self._links(part, element, sheet)
                elif kind == "row":
                    given = element.get("r", "")
                    last = int(given) - 1 if given.isdecimal() else last + 1
                    cells = self._cells(element, sheet)
                    if not sheet.add(last, cells, hidden=is_on(element, "hidden")):
                        break
                    element.clear()  # a long sheet would not fit into memory
        unknown: Counter[str] = Counter()
        found = sheet.part(self._beside(part, unknown))
        return replace(found, said=(*found.said, *unknown_said(unknown, found.mark[1:-1])))

    def _links(self, part: str, links: Element, sheet: SheetText) -> None:
        relations = self._archive.relations(part)
        for ref, id in {each.get("ref", ""): attribute(each, "id") for each in links}.items():
            _, target, external = relations.get(id, ("", "", False))
            place = _PLACE.match(ref)
            if external and place is not None:
                sheet.link(int(place[2]) - 1, _column(place[1]), target)

    def _cells(self, row: Element, sheet: SheetText) -> list[str]:
        cells: list[str] = []
        for cell in row:
            place = _PLACE.match(cell.get("r", ""))
            column = len(cells) if place is None else _column(place[1])
            if column > MAX_COLUMNS:
                cells += [""] * (MAX_COLUMNS + 1 - len(cells)) + ["…"]
                break
            if column > len(cells):
                cells += [""] * (column - len(cells))
            text = self._text(cell, sheet)
            cells.append(markdown.hidden(text) if cell.get("s") in self._unseen else text)
        return cells

    def _text(self, cell: Element, sheet: SheetText) -> str:
        kind, value, formula = cell.get("t", "n"), None, None
        for each in cell:
            name = name_of(each)
            if name == "v":
                value = each.text or ""
            elif name == "f":
                formula = each
            elif name == "is":
                return _string(each)
        if formula is not None and (not value or (value == "0" and self._to_calculate)):
            if kind == "str" and value is not None and not self._to_calculate:
                return ""
            return sheet.not_calculated(formula.text or "…")
        if not value:
            return ""
        if kind == "s":
            return self._shared(value)
        if kind == "b":
            return "TRUE" if value == "1" else "FALSE"
        if kind == "d":
            return shown_date(value)
        if kind == "n":
            try:
                number = float(value)
            except ValueError:
                return value
            code = self._formats.get(cell.get("s", "0"), "")
            return shown_number(number, code, self._since_1904)
        return _unescaped(value)

    def _shared(self, value: str) -> str:
        if self._strings is None:
            self._strings = []
            if self._strings_part:
                with self._archive.open(self._strings_part) as file:
                    for _, element in ElementTree.iterparse(file):
                        if name_of(element) == "si":
                            self._strings.append(_string(element))
                            element.clear()
        number = integer(value, -1)
        return self._strings[number] if 0 <= number < len(self._strings) else ""

    # --------------------------------------------------------------------- beside the cells

    def _beside(self, part: str, unknown: Counter[str]) -> str:
        """Comments on cells, text boxes, charts and pictures of a sheet."""
        writer = Writer()
        linked = self._archive.linked(part)
        newer = any(kind == "threadedComment" for kind, _ in linked)
        for kind, name in linked:
            if kind == "drawing":
                shapes = Shapes(self._archive, name, writer)
                shapes.read(self._archive.xml(name))
                unknown += shapes.unknown
            elif kind == ("threadedComment" if newer else "comments"):
                for place, author, text in self._comments(self._archive.xml(name)):
                    writer.comment(f"[Comment on {place}]", author, text)
        return writer.text()

    def _comments(self, root: Element) -> Iterator[tuple[str, str, str]]:
        """Yield the place, the author and the text of each comment."""
        authors = [line_of(each.text) for each in every(root, "author")]
        for each in every(root, "comment"):
            number = integer(each.get("authorId", ""), len(authors))
            author = authors[number] if 0 <= number < len(authors) else ""
            text = _string(inside(each, "text"))
            yield each.get("ref", ""), author, text.removeprefix(f"{author}:" if author else "")
        for each in every(root, "threadedComment"):
            author = self._people.get(each.get("personId", ""), "")
            yield each.get("ref", ""), author, "".join(text.text or "" for text in inside(each))


def _read_formats(styles: Element) -> dict[str, str]:
    """The number format of each style of cells, by its number."""
    own = {each.get("numFmtId", ""): each.get("formatCode", "") for each in every(styles, "numFmt")}
    formats = (each.get("numFmtId", "") for each in inside(styles, "cellXfs"))
    codes = (own.get(each) or _BUILT_IN.get(integer(each), "") for each in formats)
    return {str(number): code for number, code in enumerate(codes)}


def _unseen_styles(styles: Element, formats: Mapping[str, str], has_tables: bool) -> Iterator[str]:
    """Yield the numbers of the styles whose cells show nothing, or letters that cannot be read.
    White letters are seen if rules or tables may colour their cells."""
    fonts, fills = ([*inside(styles, kind)] for kind in ("fonts", "fills"))
    has_rules = has_tables or any(
        True for rule in inside(styles, "dxfs") for _ in every(rule, "fill")
    )
    for number, each in enumerate(inside(styles, "cellXfs")):
        font, fill = integer(each.get("fontId", "")), integer(each.get("fillId", ""))
        pattern = child(fills[fill], "patternFill") if 0 <= fill < len(fills) else None
        is_filled = pattern is not None and pattern.get("patternType", "none") != "none"
        looks = fonts[font] if 0 <= font < len(fonts) else None
        colour = child(looks, "color")
        is_white = colour is not None and (
            markdown.is_white(colour.get("rgb", "")[2:]) or colour.get("theme") == "0"
        )
        is_tiny = value_of(looks, "sz") in ("0", "1")
        is_nothing = formats.get(str(number), "").replace(" ", "") == ";;;"
        if is_nothing or is_tiny or (is_white and not is_filled and not has_rules):
            yield str(number)


def _hidden_columns(columns: Element) -> Iterator[int]:
    for each in columns:
        if is_on(each, "hidden"):
            first, last = (integer(each.get(name, "")) for name in ("min", "max"))
            yield from range(max(0, first - 1), min(last, MAX_COLUMNS))


def _string(element: Iterable[Element]) -> str:
    """A text of one or more runs, without the readings of its characters."""
    line = Line()
    for each in element:
        name = name_of(each)
        if name == "t":
            line.add(each.text or "")
        elif name == "r":
            raised = value_of(each, "rPr", "vertAlign") == "superscript"
            struck = is_on(child(each, "rPr", "strike"))
            line.add(text_of(each), "struck" if struck else "raised" if raised else "")
    return _unescaped(line.text())


def _unescaped(text: str) -> str:
    if "_x" not in text:
        return text
    return (
        _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
        .replace("\r\n", "\n")
        .replace("\r", "\n")
    )


@cache
def _column(letters: str) -> int:
    number = 0
    for each in letters:
        number = number * 26 + ord(each) - 64
    return number - 1

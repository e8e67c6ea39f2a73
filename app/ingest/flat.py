"""Reads office documents that are a single XML file, in the process of `document_worker.py`."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from app.ingest.archive import Archive, may_declare_entities
from app.ingest.elements import attribute, child, every, integer, name_of
from app.ingest.markdown import Line, Writer, address
from app.ingest.number_formats import shown_date, shown_number
from app.ingest.opendocument import OpenDocument
from app.ingest.parts import Part
from app.ingest.sheet_text import MAX_COLUMNS, SheetText, column_name

_CONTENT, _STYLES = "content.xml", "styles.xml"
_HIDDEN = ("SheetHidden", "SheetVeryHidden")
_FORMATS = {"Percent": "0.00%"}
"""Codes of formats that have names."""


def open_flat(kind: str, data: bytes) -> OpenDocument | WorkbookXml:
    """Open a document of the kind `flat` or `workbook`. Raises anything for a damaged one, and for
    one that declares XML entities, which the formats forbid."""
    if may_declare_entities(data):
        raise ValueError("entities")
    root = ElementTree.fromstring(data)
    return WorkbookXml(root) if kind == "workbook" else OpenDocument(_Members(root))


class _Members(Archive):
    """A flat OpenDocument file as an archive: with the content, the styles, and the formulas,
    charts and documents inside it, which an archive has in members of their own."""

    def __init__(self, root: Element) -> None:
        self._roots = {_CONTENT: root, _STYLES: root}
        for number, each in enumerate(every(root, "object"), 1):
            inner = next((inner for inner in each if name_of(inner) in ("document", "math")), None)
            if inner is not None:
                each.set("href", f"./Object {number}")
                self._roots[f"Object {number}/{_CONTENT}"] = inner
        self.names = {*self._roots}

    def xml(self, name: str) -> Element:
        return self._roots[name]


class WorkbookXml:
    """A workbook in the XML format of Excel 2003, which many programs export as `.xls`."""

    embedded = 0

    def __init__(self, root: Element) -> None:
        self._sheets = root.findall("{*}Worksheet")
        self._formats: dict[str, str] = {}
        for style in root.findall("{*}Styles/{*}Style"):
            form = child(style, "NumberFormat")
            code = "" if form is None else attribute(form, "Format")
            self._formats[attribute(style, "ID")] = _FORMATS.get(code, code)

    def __len__(self) -> int:
        return len(self._sheets)

    def read(self, number: int) -> Part:
        sheet = self._sheets[number]
        visible = child(sheet, "WorksheetOptions", "Visible")
        hidden = visible is not None and (visible.text or "").strip() in _HIDDEN
        text, writer = SheetText(attribute(sheet, "Name"), hidden), Writer()
        table = child(sheet, "Table")
        row = -1
        for each in () if table is None else table:
            name = name_of(each)
            if name == "Column" and attribute(each, "Hidden") == "1":
                first = _place(each, 0)
                last = first + integer(attribute(each, "Span"))
                text.hide_columns(range(first, min(last, MAX_COLUMNS) + 1))
            elif name == "Row":
                row = _place(each, row + 1)
                hidden = attribute(each, "Hidden") == "1"
                if not text.add(row, self._cells(each, row, text, writer), hidden=hidden):
                    break
        return text.part(writer.text())

    def _cells(self, row: Element, number: int, sheet: SheetText, notes: Writer) -> list[str]:
        cells: list[str] = []
        for place, each in _placed(row):
            cells += [""] * (place - len(cells))
            data, formula = child(each, "Data"), attribute(each, "Formula")
            if data is not None:
                code = self._formats.get(attribute(each, "StyleID"), "")
                line = Line()
                _add(data, line)
                text = _value(attribute(data, "Type"), line.text(), code)
                cells.append(text + address(attribute(each, "HRef"), text))
            else:
                cells.append(sheet.not_calculated(formula) if formula else "")
            comment = child(each, "Comment")
            if comment is not None:
                mark = f"[Comment on {column_name(place)}{number + 1}]"
                author = attribute(comment, "Author")
                text = "".join(comment.itertext()).strip()
                notes.comment(mark, author, text.removeprefix(f"{author}:" if author else ""))
        return cells


def _placed(row: Element) -> Iterator[tuple[int, Element]]:
    """Yield the cells of a row with their columns, from 0."""
    place = 0
    for each in row.findall("{*}Cell"):
        place = _place(each, place)
        if place > MAX_COLUMNS:
            return
        yield place, each
        place += 1 + max(0, integer(attribute(each, "MergeAcross")))


def _add(element: Element, line: Line, kind: str = "") -> None:
    line.add(element.text or "", kind)
    for each in element:
        _add(each, line, "raised" if name_of(each) == "Sup" else kind)
        line.add(each.tail or "", kind)


def _value(kind: str, text: str, code: str) -> str:
    if kind == "DateTime":
        return shown_date(text)
    if kind == "Number" and code:
        try:
            return shown_number(float(text), code)
        except (ValueError, OverflowError):
            return text
    return {"1": "TRUE", "0": "FALSE"}.get(text, text) if kind == "Boolean" else text


def _place(element: Element, default: int) -> int:
    """The place that an element names, from 0; it never goes back."""
    return max(default, integer(attribute(element, "Index")) - 1)

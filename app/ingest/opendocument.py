"""Reads texts, spreadsheets and presentations in OpenDocument format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from app.ingest import markdown
from app.ingest.elements import attribute, child, every, name_of
from app.ingest.formulas import linear
from app.ingest.list_numbers import LEVELS, Level, ListCounter
from app.ingest.markdown import Line, Writer, ruby
from app.ingest.parts import Part, WithPassword, changes_said
from app.ingest.sheet_text import MAX_COLUMNS, MAX_ROWS, SheetText, column_name

if TYPE_CHECKING:
    from app.ingest.archive import Archive

_SPACE = re.compile(r"[ \t\r\n]+")
_FORMATS = {
    "1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman",
    "1st": "ordinal", "一, 二, 三, ...": "chineseCounting",
}  # fmt: skip
_HEADING = re.compile(r"Heading ([1-9])")
_CODE = re.compile(r"(?:preformatted|source|code)", re.IGNORECASE)
_EMPTY = """sequence-decls variable-decls user-field-decls forms event-listeners table-column
    table-columns table-header-columns table-column-group page-number annotation-end desc title
    settings number bookmark bookmark-start bookmark-end reference-mark reference-mark-start
    reference-mark-end soft-page-break change change-start change-end glue-point image plugin
    named-expressions database-ranges calculation-settings content-validations scripts
    dde-connection-decls table-source page-thumbnail object-ole"""
_TEXTLESS = frozenset(_EMPTY.split())
"""Elements without text of the document, or whose text is read elsewhere."""


@dataclass(frozen=True, slots=True)
class _Style:
    """What a style, and those that it is based on, say."""

    name: str = ""
    raised: bool = False
    hidden: bool = False
    code: bool = False
    title: bool = False
    outline: int = 0
    """The level of its paragraphs as headings; 0: they are none."""


class OpenDocument:
    """A text, spreadsheet or presentation in OpenDocument format."""

    def __init__(self, archive: Archive) -> None:
        manifest = "META-INF/manifest.xml"
        if manifest in archive.names and b"encryption-data" in archive.read(manifest):
            raise WithPassword
        self._archive = archive
        content = archive.xml("content.xml")
        named = archive.xml("styles.xml") if "styles.xml" in archive.names else None
        body = child(content, "body")
        main = body[0] if body is not None and len(body) else None
        self._kind = "" if main is None else name_of(main)
        self._styles = _Styles([root for root in (named, content) if root is not None])
        self._parts: list[Element] = []
        if main is not None:
            inside = {"spreadsheet": "table", "presentation": "page"}.get(self._kind)
            self._parts = [main] if inside is None else main.findall(f"{{*}}{inside}")
        self._controls = {
            attribute(each, "id"): each
            for each in (() if body is None else every(body, "checkbox"))
        }
        self._objects = _Objects(archive)
        self._margins = [] if named is None or self._kind != "text" else [*_margins(named)]
        self.embedded = self._objects.embedded

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, number: int) -> Part:
        part = self._parts[number]
        reader = _Reader(self._styles, self._objects, self._controls)
        if self._kind == "spreadsheet":
            return reader.sheet(part)
        if self._kind == "presentation":
            return reader.slide(part, number)
        for kind, element in self._margins:
            reader.margin(kind, element)
        reader.blocks(part)
        return Part("", reader.text(), said=tuple(reader.said()))


class _Styles:
    """The styles of a document by their names."""

    def __init__(self, roots: Iterable[Element]) -> None:
        listed: dict[str, Element] = {}
        self.lists: dict[str, dict[int, Level]] = {}
        self.outline: dict[int, Level] = {}
        for root in roots:
            for each in root.iter():
                name = name_of(each)
                if name == "style":
                    listed[f"{attribute(each, 'family')}/{attribute(each, 'name')}"] = each
                elif name == "list-style":
                    self.lists[attribute(each, "name")] = _levels(each)
                elif name == "outline-style":
                    self.outline = _levels(each)
        self._found: dict[str, _Style] = {}
        self._listed = listed

    def __call__(self, family: str, name: str) -> _Style:
        chain: dict[str, None] = {}
        key = f"{family}/{name}"
        while key in self._listed and key not in self._found and key not in chain:
            chain[key] = None
            key = f"{family}/{attribute(self._listed[key], 'parent-style-name')}"
        for each in reversed(chain):
            base = f"{family}/{attribute(self._listed[each], 'parent-style-name')}"
            self._found[each] = _style(self._listed[each], self._found.get(base, _Style()))
        if not name:
            return _Style()
        return self._found.get(f"{family}/{name}") or _named(_Style(), name)


def _style(element: Element, base: _Style) -> _Style:
    found = _named(base, attribute(element, "display-name") or attribute(element, "name"))
    if level := attribute(element, "default-outline-level"):
        found = replace(found, outline=_integer(level, 0))
    for each in element:
        for key, value in each.items():
            kind = key.rpartition("}")[2]
            if kind == "text-position":
                height = value.split()[0] if value.split() else ""
                raised = height == "super" or (height[:1].isdigit() and not height.startswith("0"))
                found = replace(found, raised=raised)
            elif kind == "display" and value in ("none", "false", "true"):
                found = replace(found, hidden=value != "true")
            elif kind == "visibility":
                found = replace(found, hidden=value in ("hidden", "collapse", "filter"))
    return found


def _named(base: _Style, name: str) -> _Style:
    name = name.replace("_20_", " ")
    heading = _HEADING.fullmatch(name)
    return replace(
        base,
        name=name,
        outline=base.outline if heading is None else int(heading[1]),
        code=base.code or _CODE.match(name) is not None,
        title=base.title or name == "Title",
    )


def _levels(element: Element) -> dict[int, Level]:
    found = {}
    for each in element:
        level = _integer(attribute(each, "level"), 1) - 1
        if not 0 <= level < LEVELS:
            continue
        number = attribute(each, "num-format")
        if name_of(each) in ("list-level-style-bullet", "list-level-style-image"):
            found[level] = Level(format="bullet", pattern=attribute(each, "bullet-char", "-"))
            continue
        shown = min(max(_integer(attribute(each, "display-levels"), 1), 1), level + 1)
        places = ".".join(f"%{n + 1}" for n in range(level - shown + 1, level + 1))
        before, after = attribute(each, "num-prefix"), attribute(each, "num-suffix")
        found[level] = Level(
            _integer(attribute(each, "start-value"), 1),
            _FORMATS.get(number, "decimal"),
            f"{before}{places}{after}" if number else "",
        )
    return found


class _Objects:
    """Formulas, charts and documents inside a document."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._roots: dict[str, Element] = {}
        self.embedded = 0
        for name in archive.names:
            folder, _, base = name.rpartition("/")
            if base == "content.xml" and folder:
                root = archive.xml(name)
                if name_of(root) == "math" or next(every(root, "chart"), None) is not None:
                    self._roots[folder] = root
                else:
                    self.embedded += 1
            elif re.fullmatch(r"Object \d+", name):
                self.embedded += 1

    def get(self, reference: str) -> Element | None:
        return self._roots.get(reference.removeprefix("./").rstrip("/"))


def _margins(root: Element) -> Iterator[tuple[str, Element]]:
    """Yield the headers and footers of pages."""
    for page in every(root, "master-page"):
        for each in page:
            kind = name_of(each).partition("-")[0]
            if kind in ("header", "footer") and attribute(each, "display", "true") != "false":
                yield kind, each


class _Reader:
    """Reads one part of a document."""

    def __init__(self, styles: _Styles, objects: _Objects, controls: dict[str, Element]) -> None:
        self._styles, self._objects, self._controls = styles, objects, controls
        self._writer, self._line = Writer(), Line()
        self._outline = ListCounter()
        self._lists: dict[str, ListCounter] = {}
        self._last_lists: dict[str, ListCounter] = {}
        self._comments = 0
        self._hidden = 0
        self._place = ""
        """The cell that is read, such as `B2`."""
        self._after: list[str] = []
        self._margins = markdown.Margins()
        self._changes = 0

    def text(self) -> str:
        return self._margins.around(self._writer.text())

    def said(self) -> Iterator[tuple[str, str]]:
        if self._changes:
            yield changes_said(self._changes)

    def margin(self, kind: str, element: Element) -> None:
        self._margins.add(kind, self._apart(element))

    # ------------------------------------------------------------------------------- blocks

    def blocks(self, elements: Iterable[Element]) -> None:
        for each in elements:
            name = name_of(each)
            if name == "h":
                self._heading(each, None)
            elif name == "p":
                self._paragraph(each)
            elif name == "list":
                self._list(each, 0, "", None)
            elif name == "table":
                self._writer.table(self._grid(each))
            elif name == "section":
                hidden = attribute(each, "display") in ("none", "condition")
                self._hidden += hidden
                self.blocks(each)
                self._hidden -= hidden
            elif name == "tracked-changes":
                self._changes += sum(name_of(region) == "changed-region" for region in each)
            elif name in ("frame", "custom-shape", "rect", "ellipse", "g", "control", "annotation"):
                self._inline_element(each, "")
                self._end_line()
            elif name not in _TEXTLESS:
                self.blocks(each)

    def _end_line(self) -> None:
        line, self._line = self._line, Line()
        self._writer.paragraph(line.text())
        self._write_after()

    def _write_after(self) -> None:
        after, self._after = self._after, []
        for each in after:
            self._writer.block(each)

    def _apart(self, elements: Iterable[Element]) -> str:
        """The text of blocks that stand inside others."""
        line, self._line = self._line, Line()
        writer, self._writer = self._writer, Writer(self._writer)
        after, self._after = self._after, []
        self.blocks(elements)
        inner = self._writer.text()
        self._line, self._writer, self._after = line, writer, after
        return inner

    def _content(self, element: Element) -> str:
        """The text of a heading or paragraph."""
        line, self._line = self._line, Line()
        kind = (
            "hidden" if self._styles("paragraph", attribute(element, "style-name")).hidden else ""
        )
        self._inline(element, kind)
        line, self._line = self._line, line
        return line.text()

    def _heading(self, element: Element, number: str | None) -> None:
        level = max(1, min(_integer(attribute(element, "outline-level"), 1), LEVELS))
        shown = child(element, "number")
        self._writer.begin()
        text = self._content(element)
        if attribute(element, "is-list-header") != "true" and text.strip():
            counted = self._outline.next(level - 1, self._styles.outline)
            number = counted if number is None and self._styles.outline else number
        if shown is not None and shown.text:
            number = shown.text.strip()
        number = "" if number == "-" else number
        self._writer.heading(level, " ".join(filter(None, (number, text))) if text.strip() else "")
        self._write_after()

    def _paragraph(self, element: Element) -> None:
        style = self._styles("paragraph", attribute(element, "style-name"))
        text = self._content(element)
        if style.title or style.outline:
            self._writer.heading(max(1, style.outline), text)
        elif style.code:
            self._writer.code(text)
        else:
            self._writer.paragraph(text)
        self._write_after()

    def _list(self, element: Element, depth: int, outer: str, counter: ListCounter | None) -> None:
        style = attribute(element, "style-name") or outer
        if counter is None:
            continued = self._lists.get(attribute(element, "continue-list"))
            if continued is None and attribute(element, "continue-numbering") == "true":
                continued = self._last_lists.get(style)
            counter = continued or ListCounter()
        self._last_lists[style] = counter
        if id := attribute(element, "id"):
            self._lists[id] = counter
        levels = self._styles.lists.get(style, {})
        for item in element:
            kind = name_of(item)
            if kind not in ("list-item", "list-header"):
                continue
            if start := attribute(item, "start-value"):
                counter.set(depth, _integer(start, 1))
            shown = child(item, "number")
            marked = kind == "list-header"
            mark = ""
            for each in item:
                inner = name_of(each)
                if inner == "list":
                    self._list(each, depth + 1, style, counter)
                    continue
                if inner == "number":
                    continue
                if not marked:
                    mark = "-" if depth not in levels else counter.next(depth, levels)
                    if shown is not None and shown.text:
                        mark = shown.text.strip()
                if inner == "h":
                    self._heading(each, mark if not marked else "")
                elif inner == "p":
                    self._writer.item(depth, "" if marked else mark, self._content(each))
                    self._write_after()
                else:
                    self.blocks([each])
                marked = True

    # --------------------------------------------------------------------------------- text

    def _add(self, text: str, kind: str) -> None:
        self._line.add(text, "hidden" if self._hidden else kind)

    def _inline(self, element: Element, kind: str) -> None:
        self._add(self._spaced(element.text), kind)
        for each in element:
            self._inline_element(each, kind)
            self._add(self._spaced(each.tail), kind)

    @staticmethod
    def _spaced(text: str | None) -> str:
        return _SPACE.sub(" ", text) if text else ""

    def _inline_element(self, element: Element, kind: str) -> None:
        name = name_of(element)
        if name == "s":
            self._add(" " * min(200, _integer(attribute(element, "c"), 1)), kind)
        elif name == "tab":
            self._add("\t", kind)
        elif name == "line-break":
            self._add("\n", kind)
        elif name == "span":
            style = self._styles("text", attribute(element, "style-name"))
            inner = "hidden" if style.hidden else "raised" if style.raised else kind
            self._inline(element, kind if kind == "hidden" else inner)
        elif name == "note":
            self._note(element)
        elif name == "annotation":
            self._comment(element)
        elif name == "ruby":
            base, reading = child(element, "ruby-base"), child(element, "ruby-text")
            texts = ["" if each is None else "".join(each.itertext()) for each in (base, reading)]
            self._add(ruby(*texts), kind)
        elif name == "a":
            self._inline(element, kind)
            shown = "".join(element.itertext())
            self._add(markdown.address(attribute(element, "href"), shown), kind)
        elif name in ("hidden-text", "hidden-paragraph"):
            shown = attribute(element, "string-value") or "".join(element.itertext())
            self._add(shown, "hidden" if attribute(element, "is-hidden") != "false" else kind)
        elif name == "content-control" and attribute(element, "checkbox") == "true":
            self._add(markdown.TICKS[attribute(element, "checked") == "true"], kind)
        elif name == "control":
            box = self._controls.get(attribute(element, "control"))
            if box is not None:
                state = attribute(box, "current-state") or attribute(box, "state")
                self._add(
                    f"{markdown.TICKS[state == 'checked']} {attribute(box, 'label')}".strip(), kind
                )
        elif name == "frame":
            self._frame(element, kind)
        elif name in ("custom-shape", "rect", "ellipse", "g", "line", "connector", "polygon"):
            if text := self._apart(element):
                self._after.append(text)
        elif name == "list":
            self._after.append(self._apart([element]))
        elif name not in _TEXTLESS:
            self._inline(element, kind)

    def _note(self, note: Element) -> None:
        citation, body = child(note, "note-citation"), child(note, "note-body")
        cited = "" if citation is None else "".join(citation.itertext()).strip()
        self._add(f"[^{cited}]", "")
        self._writer.note(f"[^{cited}]", "" if body is None else self._apart(body))

    def _comment(self, comment: Element) -> None:
        author = child(comment, "creator")
        texts = [each for each in comment if name_of(each) in ("p", "list", "h")]
        self._comments += 1
        mark = f"[Comment on {self._place}]" if self._place else f"[Comment {self._comments}]"
        if not self._place:
            self._add(mark, "")
        text = self._apart(texts)
        named = "" if author is None or not author.text else f"{author.text.strip()}: "
        self._writer.note(mark, named + text)

    def _frame(self, frame: Element, kind: str) -> None:
        """Read a text box, a formula, a chart, or the description of a picture."""
        found = False
        for each in frame:
            name = name_of(each)
            if name == "object":
                math = child(each, "math")
                root = math if math is not None else self._objects.get(attribute(each, "href"))
                if root is None:
                    continue
                found = True
                if name_of(root) == "math":
                    self._add(linear(root), kind)
                else:
                    self._after.append(self._chart(root))
                break
            if name == "text-box" or name == "table":
                text = self._apart(each if name == "text-box" else [each])
                if name == "table":
                    text = markdown.table(self._grid(each))
                if text.strip():
                    self._after.append(text)
                    found = True
        if not found:
            shown = child(frame, "desc")
            shown = child(frame, "title") if shown is None else shown
            if shown is not None and shown.text:
                self._add(f"[{' '.join(shown.text.split())}]", kind)

    def _chart(self, root: Element) -> str:
        title = next((each for each in every(root, "title")), None)
        table = next(every(root, "table"), None)
        lines = [] if title is None else [" ".join("".join(title.itertext()).split())]
        if table is not None:
            lines.append(markdown.table([row for row in self._grid(table) if any(row)]))
        return "\n\n".join(filter(None, lines))

    # ------------------------------------------------------------------------------- tables

    def _grid(self, table: Element) -> list[list[str]]:
        rows: list[list[str]] = []
        for row in _rows(table):
            cells: list[str] = []
            for cell in row:
                if name_of(cell) in ("table-cell", "covered-table-cell"):
                    text = self._apart(cell) or _value(cell)
                    times = _integer(attribute(cell, "number-columns-repeated"), 1)
                    cells += [text] * max(0, min(times, MAX_COLUMNS - len(cells)))
            times = _integer(attribute(row, "number-rows-repeated"), 1) if any(cells) else 1
            rows += [cells] * max(0, min(times, MAX_ROWS - len(rows)))
        return rows

    def sheet(self, table: Element) -> Part:
        style = self._styles("table", attribute(table, "style-name"))
        sheet = SheetText(attribute(table, "name"), style.hidden)
        columns = [*_hidden_columns(table)]
        sheet.hide_columns(columns)
        number = 0
        for row in _rows(table):
            times = max(1, _integer(attribute(row, "number-rows-repeated"), 1))
            hidden = attribute(row, "visibility") in ("collapse", "filter")
            cells: list[str] = []
            for cell in row:
                if name_of(cell) not in ("table-cell", "covered-table-cell"):
                    continue
                self._place = f"{column_name(len(cells))}{number + 1}"
                repeated = max(1, _integer(attribute(cell, "number-columns-repeated"), 1))
                text = _value(cell) if attribute(cell, "value-type") == "date" else ""
                shown = self._apart([each for each in cell if name_of(each) != "annotation"])
                for each in cell:
                    if name_of(each) == "annotation":
                        self._comment(each)
                text = text or shown or _value(cell)
                if not text and (formula := attribute(cell, "formula")):
                    text = sheet.not_calculated(formula.partition(":")[2] or formula)
                cells += [text] * (repeated if text else min(repeated, MAX_COLUMNS + 1))
                if len(cells) > MAX_COLUMNS + 1:
                    break
            self._place = ""
            if not sheet.add(number, cells, times if any(cells) else 1, hidden):
                break
            number += times
        for shapes in table.findall("{*}shapes"):
            self.blocks(shapes)
        return sheet.part(self._writer.text())

    # ------------------------------------------------------------------------------- slides

    def slide(self, page: Element, number: int) -> Part:
        hidden = self._styles("drawing-page", attribute(page, "style-name")).hidden
        notes = ""
        for each in page:
            if name_of(each) == "notes":
                shown = [
                    inner
                    for inner in each
                    if attribute(inner, "placeholder") != "true"
                    and attribute(inner, "class") in ("", "notes")
                    and name_of(inner) != "page-thumbnail"
                ]
                notes = self._apart(shown)
            elif attribute(each, "placeholder") == "true":
                continue
            elif attribute(each, "class") == "title":
                self._writer.heading(1, self._apart_text(each))
            elif attribute(each, "class") not in ("date-time", "footer", "header", "page-number"):
                self.blocks([each])
        if notes.strip():
            self._writer.block(f"Speaker notes:\n{notes}")
        mark = f"[Slide {number + 1}{' (hidden)' if hidden else ''}]"
        return Part(mark, self._writer.text())

    def _apart_text(self, frame: Element) -> str:
        box = child(frame, "text-box")
        return self._apart(frame if box is None else box)


def _rows(table: Element) -> Iterator[Element]:
    """Yield the rows of a table, not those of tables in it."""
    for each in table:
        name = name_of(each)
        if name == "table-row":
            yield each
        elif name in ("table-rows", "table-header-rows", "table-row-group"):
            yield from _rows(each)


def _hidden_columns(table: Element) -> Iterator[int]:
    at = 0
    for each in table.iter():
        if name_of(each) == "table-row":
            break
        if name_of(each) == "table-column":
            times = max(1, _integer(attribute(each, "number-columns-repeated"), 1))
            if attribute(each, "visibility") in ("collapse", "filter"):
                yield from range(at, min(at + times, MAX_COLUMNS))
            at += times


def _value(cell: Element) -> str:
    """The value of a cell without a text."""
    kind = attribute(cell, "value-type")
    if kind == "date":
        return attribute(cell, "date-value").replace("T", " ").removesuffix(" 00:00:00")
    if kind == "boolean":
        return attribute(cell, "boolean-value").upper()
    if kind == "time":
        found = re.match(r"PT(\d+)H(\d+)M(\d+)", attribute(cell, "time-value"))
        return "" if found is None else ":".join(each.zfill(2) for each in found.groups())
    if kind == "string":
        return attribute(cell, "string-value")
    value = attribute(cell, "value")
    if kind == "percentage" and value:
        try:
            return f"{float(value) * 100:.10g}%"
        except ValueError:
            return value
    return f"{value} {attribute(cell, 'currency')}".strip() if kind == "currency" else value


def _integer(text: str, default: int) -> int:
    return int(text) if text.lstrip("-").isdecimal() and len(text) < 10 else default

"""Reads texts, spreadsheets, presentations and drawings in OpenDocument format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from app.ingest import markdown
from app.ingest.charts import chart_titles
from app.ingest.elements import attribute, child, every, inside, integer, line_of, name_of
from app.ingest.formulas import linear
from app.ingest.list_numbers import LEVELS, Level, ListCounter
from app.ingest.markdown import TICKS, Line, Writer, ruby
from app.ingest.number_formats import shown_date, shown_number
from app.ingest.parts import Part, WithPassword, changes_said
from app.ingest.sheet_text import MAX_COLUMNS, MAX_ROWS, SheetText, column_name

if TYPE_CHECKING:
    from app.ingest.archive import Archive

_SPACE = re.compile(r"[ \t\r\n]+")
_FORMATS = {
    "1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman",
    "1st": "ordinal", "一, 二, 三, ...": "chineseCounting",
}  # fmt: skip
_EMPTY = """sequence-decls variable-decls user-field-decls forms event-listeners table-column
    table-columns table-header-columns table-column-group annotation-end desc title
    settings number bookmark bookmark-start bookmark-end reference-mark reference-mark-start
    reference-mark-end soft-page-break change change-start change-end glue-point image plugin
    named-expressions database-ranges calculation-settings content-validations scripts
    dde-connection-decls table-source page-thumbnail object-ole script"""
_TEXTLESS = frozenset(_EMPTY.split())
"""Elements without text of the document, or whose text is read elsewhere."""
_BREAKS = {"tab": "\t", "line-break": "\n"}
_SHAPES = ("custom-shape", "rect", "ellipse", "g", "line", "connector", "polygon")
_DRAWN = ("frame", *_SHAPES)
_PARTS = {"spreadsheet": "table", "presentation": "page", "drawing": "page"}
_ENTRIES = ("text", "textarea", "formatted-text", "number", "date", "time", "combobox")
"""Fields of forms in which something is typed."""


_POINTS = re.compile(r"(\d{1,4}(?:\.\d{1,9})?)pt", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Style:
    """What a style, and those that it is based on, say."""

    name: str = ""
    raised: bool = False
    struck: bool = False
    hidden: bool = False
    tiny: bool = False
    white: bool = False
    code: bool = False
    title: bool = False
    outline: int = 0
    """The level of its paragraphs as headings; 0: they are none."""


class OpenDocument:
    """A text, spreadsheet, presentation or drawing in OpenDocument format."""

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
        self._parts = [] if main is None else [main]
        if main is not None and self._kind in _PARTS:
            self._parts = main.findall(f"{{*}}{_PARTS[self._kind]}")
        self._controls = {
            attribute(each, "id"): each
            for forms in (() if body is None else every(body, "forms"))
            for each in forms.iter()
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
        if self._kind in _PARTS:
            unit = "Slide" if self._kind == "presentation" else "Page"
            return reader.page(part, f"{unit} {number + 1}")
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
        self._has_ground = any(
            key.endswith("}background-color") and value not in ("transparent", "#ffffff")
            for root in roots
            for each in root.iter()
            for key, value in each.items()
        )

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
        found = self._found.get(f"{family}/{name}") or _named(_Style(), name)
        is_unseen = found.tiny or (found.white and not self._has_ground)
        return replace(found, hidden=True) if is_unseen else found


def _style(element: Element, base: _Style) -> _Style:
    found = _named(base, attribute(element, "display-name") or attribute(element, "name"))
    if level := attribute(element, "default-outline-level"):
        found = replace(found, outline=integer(level, 0))
    for each in element:
        for key, value in each.items():
            kind = key.rpartition("}")[2]
            if kind == "text-position":
                height = value.split()[0] if value.split() else ""
                raised = height == "super" or (height[:1].isdigit() and not height.startswith("0"))
                found = replace(found, raised=raised)
            elif kind in ("text-line-through-style", "text-line-through-type"):
                found = replace(found, struck=value != "none")
            elif kind == "display" and value in ("none", "false", "true"):
                found = replace(found, hidden=value != "true")
            elif kind == "font-size" and (size := _POINTS.fullmatch(value)):
                found = replace(found, tiny=markdown.is_tiny(float(size[1])))
            elif kind == "color":
                found = replace(found, white=markdown.is_white(value))
            elif kind == "visibility":
                found = replace(found, hidden=value in ("hidden", "collapse", "filter"))
    return found


def _named(base: _Style, name: str) -> _Style:
    name = name.replace("_20_", " ")
    return replace(
        base,
        name=name,
        outline=markdown.heading_level(name) or base.outline,
        code=base.code or markdown.is_code_style(name),
        title=base.title or name == "Title",
    )


def _levels(element: Element) -> dict[int, Level]:
    found = {}
    for each in element:
        level = integer(attribute(each, "level"), 1) - 1
        if not 0 <= level < LEVELS:
            continue
        number = attribute(each, "num-format")
        if name_of(each) in ("list-level-style-bullet", "list-level-style-image"):
            text = child(each, "text-properties")
            font = "" if text is None else attribute(text, "font-name")
            sign = attribute(each, "bullet-char", "-")
            found[level] = Level(format="bullet", pattern=sign, font=font)
            continue
        shown = min(max(integer(attribute(each, "display-levels"), 1), 1), level + 1)
        places = ".".join(f"%{n + 1}" for n in range(level - shown + 1, level + 1))
        before, after = attribute(each, "num-prefix"), attribute(each, "num-suffix")
        found[level] = Level(
            integer(attribute(each, "start-value"), 1),
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
        """Number of hidden sections around."""
        self._is_hidden_paragraph = False
        self._place = ""
        """The cell that is read, such as `B2`."""
        self._after: list[str] = []
        """Text boxes and charts, which follow the paragraph in which they stand."""
        self._margins = markdown.Margins()
        self._in_margin = False
        self._changes = 0
        self._readers: dict[str, Callable[[Element, str], None]] = {
            "s": self._spaces,
            "span": self._span,
            "note": self._note,
            "annotation": self._annotation,
            "ruby": self._ruby,
            "a": self._link,
            "hidden-text": self._hidden_text,
            "hidden-paragraph": self._hide_paragraph,
            "page-number": self._page_number,
            "title": self._title,
            "content-control": self._content_control,
            "control": self._control,
            "frame": self._frame,
            **dict.fromkeys(("list", *_SHAPES), self._inner_block),
        }

    def text(self) -> str:
        return self._margins.around(self._writer.text())

    def said(self) -> Iterator[tuple[str, str]]:
        if self._changes:
            yield changes_said(self._changes)

    def margin(self, kind: str, element: Element) -> None:
        self._in_margin = True
        self._margins.add(kind, self._apart(element))
        self._in_margin = False

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
            elif name == "numbered-paragraph":
                counter = self._lists.setdefault(attribute(each, "list-id"), ListCounter())
                depth = max(1, integer(attribute(each, "level"), 1)) - 1
                self._item(each, depth, attribute(each, "style-name"), counter)
            elif name == "table":
                self._writer.table(self._grid(each))
            elif name == "section":
                display = attribute(each, "display"), attribute(each, "is-hidden")
                hidden = display[0] == "none" or display == ("condition", "true")
                self._hidden += hidden
                self.blocks(each)
                self._hidden -= hidden
            elif name == "tracked-changes":
                self._changes += sum(name_of(region) == "changed-region" for region in each)
            elif name == "annotation":
                self._comment(each)
            elif name in ("frame", "control"):
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
        outer, self._line = self._line, Line()
        style = self._styles("paragraph", attribute(element, "style-name"))
        self._inline(element, "hidden" if style.hidden else "")
        line, self._line = self._line, outer
        is_hidden, self._is_hidden_paragraph = self._is_hidden_paragraph, False
        return markdown.hidden(line.text()) if is_hidden else line.text()

    def _heading(self, element: Element, number: str | None) -> None:
        level = max(1, min(integer(attribute(element, "outline-level"), 1), LEVELS))
        self._writer.begin()
        text = self._content(element)
        if attribute(element, "is-list-header") != "true" and text.strip():
            counted = self._outline.next(level - 1, self._styles.outline)
            number = counted if number is None and self._styles.outline else number
        number = _text_of(child(element, "number")).strip() or number
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
        for item in element:
            if name_of(item) in ("list-item", "list-header"):
                self._item(item, depth, style, counter)

    def _item(self, item: Element, depth: int, style: str, counter: ListCounter) -> None:
        levels = self._styles.lists.get(style, {})
        if start := attribute(item, "start-value"):
            counter.set(depth, integer(start, 1))
        given = _text_of(child(item, "number")).strip()
        mark: str | None = "" if name_of(item) == "list-header" else None
        """None before the first paragraph, and empty for those that follow it."""
        for each in item:
            kind = name_of(each)
            if kind == "list":
                self._list(each, depth + 1, style, counter)
            elif kind != "number":
                if mark is None:
                    counted = counter.next(depth, levels) if depth in levels else "-"
                    mark = given or counted
                if kind == "h":
                    self._heading(each, mark)
                elif kind == "p":
                    self._writer.item(depth, mark, self._content(each))
                    self._write_after()
                else:
                    self.blocks([each])
                mark = ""

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
        if (read := self._readers.get(name)) is not None:
            read(element, kind)
        elif name in _BREAKS:
            self._add(_BREAKS[name], kind)
        elif name not in _TEXTLESS:
            self._inline(element, kind)

    def _spaces(self, element: Element, kind: str) -> None:
        self._add(" " * min(200, integer(attribute(element, "c"), 1)), kind)

    def _span(self, element: Element, kind: str) -> None:
        style = self._styles("text", attribute(element, "style-name"))
        if style.hidden or kind == "hidden":
            kind = "hidden"
        elif style.struck or kind == "struck":
            kind = "struck"
        elif style.raised:
            kind = "raised"
        self._inline(element, kind)

    def _ruby(self, element: Element, kind: str) -> None:
        base, reading = (_text_of(child(element, f"ruby-{part}")) for part in ("base", "text"))
        self._add(ruby(base, reading), kind)

    def _link(self, element: Element, kind: str) -> None:
        self._inline(element, kind)
        self._add(markdown.address(attribute(element, "href"), _text_of(element)), kind)

    def _page_number(self, element: Element, kind: str) -> None:
        if not self._in_margin:
            self._inline(element, kind)

    def _title(self, element: Element, kind: str) -> None:
        """Read the title of the document; those of pictures describe them."""
        if ":text:" in element.tag:
            self._inline(element, kind)

    def _hidden_text(self, element: Element, kind: str) -> None:
        shown = attribute(element, "string-value") or _text_of(element)
        self._add(shown, kind if attribute(element, "is-hidden") == "false" else "hidden")

    def _hide_paragraph(self, mark: Element, kind: str) -> None:
        self._is_hidden_paragraph |= attribute(mark, "is-hidden") == "true"

    def _content_control(self, element: Element, kind: str) -> None:
        if attribute(element, "checkbox") == "true":
            self._add(TICKS[attribute(element, "checked") == "true"], kind)
        else:
            self._inline(element, kind)

    def _control(self, element: Element, kind: str) -> None:
        control = self._controls.get(attribute(element, "control"))
        if control is not None:
            self._add(_choice(control), kind)

    def _inner_block(self, element: Element, kind: str) -> None:
        """Read a list or a shape that stands in a paragraph."""
        self._after.append(self._apart([element]))

    def _note(self, note: Element, kind: str) -> None:
        mark = f"[^{_text_of(child(note, 'note-citation')).strip()}]"
        self._add(mark, "")
        self._writer.note(mark, self._apart(inside(note, "note-body")))

    def _annotation(self, annotation: Element, kind: str) -> None:
        self._add(self._comment(annotation), "")

    def _comment(self, comment: Element) -> str:
        """Write a comment. Returns its mark."""
        self._comments += 1
        mark = f"[Comment on {self._place}]" if self._place else f"[Comment {self._comments}]"
        text = self._apart(each for each in comment if name_of(each) in ("p", "list", "h"))
        self._writer.comment(mark, _text_of(child(comment, "creator")), text)
        return mark

    def _frame(self, frame: Element, kind: str) -> None:
        """Read a text box, a formula, a chart, or the description of a picture."""
        for each in frame:
            name, text = name_of(each), ""
            if name == "object":
                math = child(each, "math")
                root = self._objects.get(attribute(each, "href")) if math is None else math
                if root is not None and name_of(root) == "math":
                    self._add(linear(root), kind)
                    return
                text = "" if root is None else self._chart(root)
            elif name == "text-box":
                text = self._apart(each)
            elif name == "table":
                text = markdown.table(self._grid(each))
            if text.strip():
                self._after.append(text)
                return
        described = (line_of(_text_of(child(frame, name))) for name in ("desc", "title"))
        if shown := next(filter(None, described), ""):
            self._add(f"[{shown}]", kind)

    def _chart(self, root: Element) -> str:
        table = next(every(root, "table"), None)
        lines = chart_titles(root, _text_of)
        if table is not None:
            lines.append(markdown.table([row for row in self._grid(table) if any(row)]))
        return "\n\n".join(filter(None, lines))

    # ------------------------------------------------------------------------------- tables

    def _grid(self, table: Element) -> list[list[str]]:
        rows: list[list[str]] = []
        room = markdown.max_cells(sum(1 for _ in every(table, "table-cell")))
        for row in _rows(table):
            cells: list[str] = []
            for cell in row:
                if name_of(cell) in ("table-cell", "covered-table-cell"):
                    text = self._apart(cell) or _value(cell)
                    times = integer(attribute(cell, "number-columns-repeated"), 1)
                    cells += [text] * max(1, min(times, MAX_COLUMNS - len(cells), room))
            times = integer(attribute(row, "number-rows-repeated"), 1) if any(cells) else 1
            repeated = max(1, min(times, MAX_ROWS - len(rows), room // max(1, len(cells))))
            rows += [cells] * repeated
            room -= repeated * len(cells)
        return rows

    def sheet(self, table: Element) -> Part:
        style = self._styles("table", attribute(table, "style-name"))
        sheet = SheetText(attribute(table, "name"), style.hidden)
        columns = [*_hidden_columns(table)]
        sheet.hide_columns(columns)
        number = 0
        for row in _rows(table):
            times = max(1, integer(attribute(row, "number-rows-repeated"), 1))
            hidden = attribute(row, "visibility") in ("collapse", "filter")
            cells: list[str] = []
            for cell in row:
                if name_of(cell) not in ("table-cell", "covered-table-cell"):
                    continue
                self._place = f"{column_name(len(cells))}{number + 1}"
                repeated = max(1, integer(attribute(cell, "number-columns-repeated"), 1))
                shown = self._apart(each for each in cell if name_of(each) not in _DRAWN)
                self.blocks(each for each in cell if name_of(each) in _DRAWN)
                if attribute(cell, "value-type") == "date":
                    shown = ""  # it may be short and ambiguous
                text = shown or _value(cell)
                if self._styles("table-cell", attribute(cell, "style-name")).hidden:
                    text = markdown.hidden(text)
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

    def page(self, page: Element, mark: str) -> Part:
        """Read a slide or the page of a drawing."""
        hidden = self._styles("drawing-page", attribute(page, "style-name")).hidden
        notes = ""
        for each in page:
            role = attribute(each, "class")
            if name_of(each) == "notes":
                notes = self._apart(
                    inner
                    for inner in each
                    if attribute(inner, "placeholder") != "true"
                    and attribute(inner, "class") in ("", "notes")
                )
            elif attribute(each, "placeholder") == "true":
                continue
            elif role == "title":
                self._writer.heading(1, self._apart(inside(each, "text-box")))
            elif attribute(each, "display") == "none":
                self._writer.block(markdown.hidden(self._apart([each])))
            elif role not in ("date-time", "footer", "header", "page-number"):
                self.blocks([each])
        if notes.strip():
            self._writer.block(f"Speaker notes:\n{notes}")
        return Part(f"[{mark}{' (hidden)' if hidden else ''}]", self._writer.text())


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
            times = max(1, integer(attribute(each, "number-columns-repeated"), 1))
            if attribute(each, "visibility") in ("collapse", "filter"):
                yield from range(at, min(at + times, MAX_COLUMNS))
            at += times


def _value(cell: Element) -> str:
    """The value of a cell without a text."""
    kind = attribute(cell, "value-type")
    name = f"{kind}-value" if kind in ("date", "boolean", "time", "string") else "value"
    value = attribute(cell, name)
    if kind == "date":
        return shown_date(value)
    if kind == "boolean":
        return value.upper()
    if kind == "time":
        found = re.match(r"PT(\d+)H(\d+)M(\d+)", value)
        return "" if found is None else ":".join(each.zfill(2) for each in found.groups())
    if kind == "percentage":
        with suppress(ValueError):
            return shown_number(float(value), "0%")
    return f"{value} {attribute(cell, 'currency')}".strip() if kind == "currency" else value


def _text_of(element: Element | None) -> str:
    return "" if element is None else "".join(element.itertext())


def _choice(control: Element) -> str:
    """What was chosen or typed in a field of a form."""

    def state(of: Element, name: str) -> str:
        return attribute(of, f"current-{name}") or attribute(of, name)

    kind = name_of(control)
    if kind in ("checkbox", "radio"):
        tick = TICKS[state(control, "state") == "checked" or state(control, "selected") == "true"]
        return f"{tick} {attribute(control, 'label')}".strip()
    if kind == "listbox":
        chosen = (each for each in control if state(each, "selected") == "true")
        return ", ".join(attribute(each, "label") for each in chosen)
    return state(control, "value") if kind in _ENTRIES else attribute(control, "label")

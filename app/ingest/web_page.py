"""Extracts the text that a browser shows of a web page, without scripts and styles, as Markdown.

Also of mails in HTML, and of the sections of e-books. Elements are opened and ended as browsers do
it, because most pages leave out some end tags. The time is linear in the size of the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import ClassVar

from app.ingest import markdown
from app.ingest.html_elements import (
    HEADINGS,
    LINES,
    LISTS,
    PARAGRAPHS,
    SPECIAL,
    Element,
    OpenElements,
    names,
)
from app.ingest.html_source import attributes_of, is_empty, parts, style_of
from app.ingest.list_numbers import formatted
from app.ingest.markdown import INVISIBLE
from app.ingest.page_parts import (
    Cell,
    Choice,
    Flow,
    Formula,
    Item,
    OpenList,
    Table,
    blocks,
    in_cell,
    integer,
    span,
)

_PAGE = re.compile(
    r"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--[^>]{0,500}-->\s*)?<(?:!doctype\s+)?html\b", re.I
)
_SPACE = re.compile(r"[ \t\r\n\f]+")
_LINE_END = re.compile(r"\r\n?")
_HIDING = re.compile("hidden|none|collapse|popover", re.IGNORECASE)
_COLOURED = re.compile("color|background", re.IGNORECASE)
_STYLE_SHEET = re.compile(r"<style|stylesheet", re.IGNORECASE)
_PERMALINK = re.compile(r"[¶§#🔗↵⏎↑^]|↩[\ufe0e\ufe0f]?\d{0,3}")
"""The text of a link that only leads to the place at which it stands, or back to its note."""
_NOTE_MARK = re.compile(r"[(\[]?([^\W_]{1,4}|[*†‡§¶#]{1,4})[)\]]?")
_BETWEEN_NOTES = re.compile(r"[\s,;]*")
_LIST_FORMATS = {
    "1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman",
    "decimal": "decimal", "decimal-leading-zero": "decimalZero", "lower-alpha": "lowerLetter",
    "lower-latin": "lowerLetter", "upper-alpha": "upperLetter", "upper-latin": "upperLetter",
    "lower-roman": "lowerRoman", "upper-roman": "upperRoman", "none": "none", "disc": "bullet",
    "circle": "bullet", "square": "bullet",
}  # fmt: skip
_MAX_TABLES = 30
"""Tables that are nested deeper are read as lines."""
_MAX_CELL = 1_000
"""Maximum characters of a cell of a table; longer ones are columns of a page."""
_MAX_ADDRESS = 100
"""Longer addresses of links are cut."""
_WHITE = names("white #fff #ffffff rgb(255,255,255)")
_NO_GROUND = names("none transparent inherit initial unset")
_NOTE_LINKS = names("noteref doc-noteref footnote-ref footnote-reference")
_NOTES = names("footnote endnote rearnote note doc-footnote doc-endnote")
_UNREAD = names("template noscript object audio video canvas datalist rp")
_Close = Callable[[], None]


class _Kind(Enum):
    """The kind of a source, and the elements that are not part of its text."""

    PAGE = names("svg")
    MAIL = names("svg head title")
    BOOK = names("head title desc metadata epub:default")


def is_page(text: str) -> bool:
    """Whether a text begins like a web page."""
    return _PAGE.match(text) is not None


def page_text(source: str, check: Callable[[], None] = lambda: None) -> str:
    """The text of a web page, with marks for headings, list items and table cells. If the page has
    no text, or is a template with placeholders, returns the source itself. `check` is called
    regularly, and may raise."""
    if "<?php" in source or "<%" in source:
        return source
    reader = _shown(source, _Kind.PAGE, check)
    return source if reader.is_template or not reader.whole else reader.whole


def mail_text(source: str, check: Callable[[], None] = lambda: None) -> str:
    """The text of a mail in HTML, with the addresses of its links; empty if it has none."""
    return _shown(source, _Kind.MAIL, check).whole


def markup_text(source: str) -> str:
    """The text of a part of a document that is written in HTML, such as a section of a book; empty
    if it has none."""
    return _shown(source, _Kind.BOOK, lambda: None).whole


def _shown(source: str, kind: _Kind, check: Callable[[], None]) -> _Reader:
    def read(hides: bool = True, items: Sequence[int] = ()) -> _Reader:
        reader = _Reader(kind, hides, _STYLE_SHEET.search(source) is not None, items)
        for tag, content in parts(source):
            check()
            if tag:
                reader.tag(tag, content)
            else:
                reader.text(content)
        reader.end()
        return reader

    reader = read()
    if reader.is_cut:  # an unclosed element would hide the rest of the page
        reader = read(hides=False)
    if reader.reversed:
        reader = read(reader.hides, [each.items for each in reader.reversed])
    return reader


class _Reader:
    """Reads the tags and texts of a page."""

    def __init__(self, kind: _Kind, hides: bool, has_sheet: bool, items: Sequence[int]) -> None:
        """`hides`: leave out hidden elements. `has_sheet`: a style sheet may change colours.
        `items` are the numbers of items of reversed lists."""
        self.hides = hides
        self.is_template = False
        """Whether the text has placeholders."""
        self.is_cut = False
        """Whether an element without an end hid the rest."""
        self.reversed: list[OpenList] = []
        self.whole = ""
        self._kind, self._unread, self._items = kind, kind.value | _UNREAD, items
        self._has_sheet = has_sheet
        self._elements = OpenElements()
        self._has_ground = False
        """Whether an element before has another background than white."""
        self._flow = Flow()
        self._tables: list[Table | None] = []
        """None: nested too deeply."""
        self._marks: dict[str, str] = {}
        """Marks of notes, by the ids of the notes."""
        self._raised = 0
        self._is_reading = 0
        self._choice: Choice | None = None
        self._formula: Formula | None = None
        self._y = ""
        """The height of a line in a drawing."""

    def text(self, text: str) -> None:
        if self._elements.hidden:
            return
        flow = self._flow
        if self._formula is not None:
            self._formula.add(text)
        elif self._choice is not None:
            self._choice.add(text)
        elif flow.is_code:
            text = _LINE_END.sub("\n", text)
            flow.add(text if flow.pieces else text.removeprefix("\n"), self._text_kind(text))
        else:
            text = _SPACE.sub(" ", text)
            if ("{{" in text or "{%" in text) and "code" not in self._elements:
                self.is_template = True
            flow.add(text, self._text_kind(text))

    def _text_kind(self, text: str) -> str:
        if self._is_reading:
            return "reading"
        return "raised" if self._raised and not _BETWEEN_NOTES.fullmatch(text) else ""

    def tag(self, tag: str, attributes: str) -> None:
        name, is_end = tag.removeprefix("/"), tag.startswith("/")
        if self._formula is not None:
            if not is_end and name not in SPECIAL:
                self._formula.start(name, attributes)
                return
            if is_end and name != "math":
                self._formula.end(name)
                return
            self._elements.end("math")
        if not is_end:
            self._start(name, attributes)
        elif name == "br":
            self._start(name, "")
        elif name == "p" and name not in self._elements and not self._elements.hidden:
            self._flow.end_paragraph()
        else:
            self._elements.end(name)

    def end(self) -> None:
        """End the page."""
        self.is_cut = self._elements.end_all()
        text = self._flow.text()
        self.whole = f"{text}\n" if text.strip() else ""

    # ---------------------------------------------------------------------------- elements

    def _start(self, name: str, attributes: str) -> None:
        elements, close = self._elements, None
        elements.end_before(name)
        is_gone, is_unseen = self._visibility(name, attributes)
        is_unseen |= self._is_white(attributes)
        is_void = is_empty(name, attributes)
        if not elements.hidden and not is_gone and not (is_unseen and is_void):
            close = self._opened(name, attributes)
        if not is_void and name not in ("html", "body"):
            elements.add(Element(name, close, is_gone or is_unseen))
        elif is_void and close is not None:
            close()

    def _visibility(self, name: str, attributes: str) -> tuple[bool, bool]:
        """Whether an element is not part of the page, and whether it is there but not seen."""
        if not self.hides or name in ("html", "body"):
            return False, False  # a script shows them
        if name in self._unread:
            return True, False
        if name != "dialog" and not _HIDING.search(attributes):
            return False, False
        found = attributes_of(attributes)
        style = style_of(found)
        is_gone = "hidden" in found or "popover" in found or style.get("display") == "none"
        if name == "dialog":
            is_gone = is_gone or "open" not in found
        if name == "option" or (self._kind is _Kind.BOOK and self._is_note(name, found)):
            return False, False
        return is_gone, style.get("visibility") in ("hidden", "collapse")

    @staticmethod
    def _is_note(name: str, attributes: Mapping[str, str]) -> bool:
        """Whether an element is shown when its mark is chosen."""
        kinds = f"{attributes.get('epub:type', '')} {attributes.get('role', '')}"
        return name == "aside" or not _NOTES.isdisjoint(kinds.split())

    def _is_white(self, attributes: str) -> bool:
        """Whether a text is white on white. A page with style sheets, which may change colours, is
        read as if it were not."""
        if self._has_sheet or not self.hides or not _COLOURED.search(attributes):
            return False
        found = attributes_of(attributes)
        style = style_of(found)
        grounds = [style.get("background-color"), style.get("background")]
        grounds += [found.get("bgcolor"), found.get("background")]
        self._has_ground |= any(
            each and each.lower().replace(" ", "") not in _WHITE | _NO_GROUND for each in grounds
        )
        colour = style.get("color") or found.get("color", "")
        return colour.lower().replace(" ", "") in _WHITE and not self._has_ground

    def _opened(self, name: str, attributes: str) -> _Close | None:
        """Read a start tag. Returns what to do at the end of its element."""
        flow = self._flow
        if self._choice is not None and name not in ("option", "select"):
            return None
        if flow.is_code and name in SPECIAL:
            if name in ("td", "th"):
                flow.add("\t" if flow.pieces and not flow.pieces[-1][0].endswith("\n") else "")
                return None
            flow.end_line()
            return flow.end_line
        end = flow.end_paragraph if name in PARAGRAPHS else flow.end_line
        is_block = name in PARAGRAPHS or name in LINES
        if is_block:
            end()
        handler = self._HANDLERS.get(name)
        if handler is None and "super" in attributes:
            is_raised = style_of(attributes_of(attributes)).get("vertical-align") == "super"
            handler = _Reader._sup if is_raised else None
        close = None if handler is None else handler(self, name, attributes)
        if not is_block:
            return close
        if close is None:
            return end

        def close_block() -> None:
            close()
            end()

        return close_block

    # ------------------------------------------------------------------------------ blocks

    def _br(self, name: str, attributes: str) -> None:
        if self._flow.is_code:
            self._flow.add("\n")
        elif self._flow.pieces:
            self._flow.end_line()
        else:
            self._flow.end_paragraph()

    def _aside(self, name: str, attributes: str) -> _Close:
        flow = self._flow
        flow.note = self._marks.get(attributes_of(attributes).get("id", ""), "")

        def close() -> None:
            flow.note = ""

        return close

    def _heading(self, name: str, attributes: str) -> _Close:
        flow = self._flow
        flow.heading = int(name[1])

        def close() -> None:
            flow.end_paragraph()
            flow.heading = 0

        return close

    def _pre(self, name: str, attributes: str) -> _Close:
        flow, in_cell = self._flow, bool(self._tables)
        flow.is_code = True
        return lambda: flow.end_code(in_cell)

    def _list(self, name: str, attributes: str) -> _Close:
        found = attributes_of(attributes)
        flow = self._flow
        format = "none" if "nav" in self._elements else _list_format(found)
        current = OpenList(format or ("decimal" if name == "ol" else "bullet"))
        if name == "ol" and "reversed" in found:
            current.step = -1
            known = len(self.reversed) < len(self._items)
            current.number = self._items[len(self.reversed)] if known else 0
            self.reversed.append(current)
        current.number = integer(found.get("start", ""), current.number)
        has_marks = current.format != "none"
        flow.write_mark() if has_marks else flow.end_line()
        if not flow.lists:
            flow.end_paragraph()
        flow.lists.append(current)

        def close() -> None:
            flow.end_paragraph() if has_marks else flow.end_line()
            flow.lists.pop()
            if not flow.lists:
                flow.end_paragraph()
                flow.writer.end_list()

        return close

    def _li(self, name: str, attributes: str) -> _Close:
        found = attributes_of(attributes)
        flow = self._flow
        current = flow.lists[-1] if flow.lists else OpenList("bullet")
        format = _list_format(found) or current.format
        number = current.next(found.get("value", ""))
        depth = max(0, len(flow.lists) - 1)
        if format == "none":
            flow.end_line()
            if depth:
                flow.pieces.append(("  " * min(depth, 10), ""))
            return flow.end_line
        flow.end_paragraph()
        flow.items.append(
            Item(depth, "-" if format == "bullet" else f"{formatted(number, format)}.")
        )

        def close() -> None:
            flow.write_mark()
            flow.items.pop()

        return close

    def _table(self, name: str, attributes: str) -> _Close | None:
        if len(self._tables) >= _MAX_TABLES:
            self._tables.append(None)
            return self._end_table
        role = attributes_of(attributes).get("role", "") if "role" in attributes else ""
        table = Table(role)
        self._tables.append(table)

        def close() -> None:
            self._end_table()
            self._write_table(table)

        return close

    def _end_table(self) -> None:
        self._tables.pop()
        if self._tables and (outer := self._tables[-1]) is not None:
            outer.has_table = True

    def _tr(self, name: str, attributes: str) -> None:
        if self._tables and (table := self._tables[-1]) is not None:
            table.rows.append([])

    def _td(self, name: str, attributes: str) -> _Close | None:
        table = self._tables[-1] if self._tables else None
        if table is None:
            self._flow.end_line()
            return None
        spans = attributes_of(attributes) if "span" in attributes else {}
        cell = Cell(span(spans.get("colspan", "")), span(spans.get("rowspan", "")))
        if not table.rows:
            table.rows.append([])
        table.rows[-1].append(cell)
        table.has_header |= name == "th"
        outer, inner = self._flow, Flow()
        self._flow = inner

        def close() -> None:
            cell.text = inner.text()
            table.has_code |= inner.has_code
            self._flow = outer

        return close

    def _write_table(self, table: Table) -> None:
        flow, grid = self._flow, table.grid()
        flow.write_mark()
        if self._arranges(table, grid):
            for block in blocks([[cell.text for cell in row] for row in table.rows]):
                flow.writer.block(block)
            flow.has_code |= table.has_code
        else:
            flow.writer.table([[in_cell(text) for text in row] for row in grid])

    def _arranges(self, table: Table, grid: Sequence[Sequence[str]]) -> bool:
        """Whether a table only arranges texts on the page."""
        if max(map(len, grid), default=0) < 2 or table.has_code:
            return True
        if table.role in ("presentation", "none"):
            return True
        if self._kind is _Kind.BOOK:
            return False
        if table.has_table:
            return True
        if table.has_header and self._kind is _Kind.PAGE:
            return False
        return any(
            len(cell.text) > _MAX_CELL or cell.text.count("\n\n") > 3
            for row in table.rows
            for cell in row
        )

    # ------------------------------------------------------------------------ inside a line

    def _a(self, name: str, attributes: str) -> _Close:
        found = attributes_of(attributes)
        flow, line, begin = self._flow, self._flow.line, len(self._flow.pieces)
        target = found.get("href", "")
        kinds = f"{found.get('class', '')} {found.get('epub:type', '')} {found.get('role', '')}"

        def close() -> None:
            inner = flow.pieces[begin:] if flow.line == line else []
            shown = "".join(text for text, _ in inner).translate(INVISIBLE).strip()
            is_inside = "#" in target
            if "headerlink" in kinds or (is_inside and _PERMALINK.fullmatch(shown)):
                del flow.pieces[begin:]
            elif is_inside and (mark := _NOTE_MARK.fullmatch(shown)):
                is_raised = all(kind == "raised" for text, kind in inner if text.strip())
                if is_raised or not _NOTE_LINKS.isdisjoint(kinds.split()):
                    flow.pieces[begin:] = [(f"[{mark[1]}]", "")]
                    self._marks[target.rpartition("#")[2]] = mark[1]
            elif self._kind is _Kind.MAIL:
                is_block = flow.line != line
                flow.add(markdown.address(_shortened(target), "…" if is_block else shown))
                if is_block:
                    flow.end_line()

        return close

    def _sup(self, name: str, attributes: str) -> _Close:
        flow = self._flow
        self._raised += 1

        def close() -> None:
            self._raised -= 1
            text, kind = flow.pieces[-1] if flow.pieces else ("", "")
            if kind == "raised" and text.endswith(" ") and not self._raised:
                flow.pieces[-1:] = [(text.rstrip(" "), kind), (" ", "")]

        return close

    def _ruby(self, name: str, attributes: str) -> _Close | None:
        if "ruby" in self._elements:
            return None
        flow, line, begin = self._flow, self._flow.line, len(self._flow.pieces)

        def close() -> None:
            if flow.line == line:
                inner = flow.pieces[begin:]
                base = "".join(text for text, kind in inner if kind != "reading")
                reading = "".join(text for text, kind in inner if kind == "reading")
                flow.pieces[begin:] = [(markdown.ruby(base.strip(), reading), "")]

        return close

    def _rt(self, name: str, attributes: str) -> _Close | None:
        if "ruby" not in self._elements:
            return None
        self._is_reading += 1

        def close() -> None:
            self._is_reading -= 1

        return close

    def _math(self, name: str, attributes: str) -> _Close:
        found, flow = attributes_of(attributes), self._flow
        formula = self._formula = Formula()
        if found.get("display") == "block":
            flow.end_line()

        def close() -> None:
            self._formula = None
            flow.add(formula.text() or " ".join(found.get("alttext", "").split()))
            if found.get("display") == "block":
                flow.end_line()

        return close

    def _select(self, name: str, attributes: str) -> _Close:
        flow, choice = self._flow, Choice("multiple" in attributes_of(attributes))
        self._choice = choice

        def close() -> None:
            self._choice = None
            flow.add(choice.text())

        return close

    def _option(self, name: str, attributes: str) -> None:
        if self._choice is not None:
            self._choice.option(attributes_of(attributes))

    def _field(self, name: str, attributes: str) -> None:
        """Write an element that is shown by its attributes."""
        found = attributes_of(attributes)
        kind = found.get("type", "").lower()
        if name == "input" and kind in ("checkbox", "radio"):
            self._flow.add("[x]" if "checked" in found else "[ ]")
            self._flow.add(" ")
            return
        shown = found.get("alt", "")
        if name == "input" and kind != "image":
            shown = "" if kind in ("hidden", "password") else found.get("value", "")
        if shown.strip():
            self._flow.add(f"[{' '.join(shown.split())}]")

    def _label(self, name: str, attributes: str) -> _Close:
        flow = self._flow
        flow.add(" ")
        return lambda: flow.add(" ")

    def _tspan(self, name: str, attributes: str) -> None:
        found = attributes_of(attributes)
        if "x" in found and ("dy" in found or found.get("y", self._y) != self._y):
            self._flow.end_line()
        self._y = found.get("y", self._y)

    _HANDLERS: ClassVar[dict[str, Callable[[_Reader, str, str], _Close | None]]] = {
        "a": _a, "aside": _aside, "br": _br, "button": _label, "label": _label, "li": _li,
        "math": _math, "option": _option, "pre": _pre, "rt": _rt, "rtc": _rt, "ruby": _ruby,
        "select": _select, "sup": _sup, "table": _table, "td": _td, "th": _td, "tr": _tr,
        "tspan": _tspan,
        **dict.fromkeys(("img", "area", "input"), _field),
        **dict.fromkeys(HEADINGS, _heading),
        **dict.fromkeys(LISTS, _list),
    }  # fmt: skip


def _list_format(attributes: Mapping[str, str]) -> str:
    """How the items of a list are marked; empty if it says nothing."""
    style = style_of(dict(attributes))
    named = style.get("list-style-type") or style.get("list-style", "")
    for word in named.split():
        if word in _LIST_FORMATS:
            return _LIST_FORMATS[word]
    kind = attributes.get("type", "")
    return _LIST_FORMATS.get(kind) or _LIST_FORMATS.get(kind.lower(), "")


def _shortened(address: str) -> str:
    """An address, without the long query with which senders count clicks."""
    begin, query, _ = address.partition("?")
    return address if len(address) <= _MAX_ADDRESS else f"{begin[:_MAX_ADDRESS]}{query}…"

"""Extracts the text that a browser shows of a web page, without scripts and styles, as Markdown.

Also of mails in HTML, and of the sections of e-books. Elements are opened and ended as browsers do
it, because most pages leave out some end tags. The time is linear in the size of the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import islice, takewhile
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
from app.ingest.html_source import Tag, parts
from app.ingest.html_styles import LOOKS, Sheet, look_alike, of_classes, sheet_in
from app.ingest.list_numbers import formatted
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
_SPACE = re.compile(r"(?:[\t\r\n\f]| [ \t\r\n\f])[ \t\r\n\f]*")
"""White space that is not a single space."""
_LINE_END = re.compile(r"\r\n?")
_STYLE_SHEET = re.compile(r"<style|stylesheet", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{[{%]")
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
_MAX_QUOTES = 20
"""Quotes that are nested deeper have no marks of their own."""
_MAX_CELL = 1_000
"""Maximum characters of a cell of a table; longer ones are columns of a page."""
_MAX_ADDRESS = 100
"""Longer addresses of links are cut."""
_SHOWN_LATER = names("html body option")
"""Elements that a script shows, or the reader."""
_NOTE_LINKS = names("noteref doc-noteref footnote-ref footnote-reference")
_NOTES = names("footnote endnote rearnote note doc-footnote doc-endnote")
_UNREAD = names("template noscript object audio video canvas datalist rp")
_MAX_LINKS = 40
"""Tags at the beginning of a page among which links to style sheets are looked for."""
_PARTS = 64
"""Tags and texts between two checks."""


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


def markup_text(source: str, sheets: Sequence[Sheet] = ()) -> str:
    """The text of a part of a document that is written in HTML, such as a section of a book; empty
    if it has none. `sheets` are those that it links to."""
    return _shown(source, _Kind.BOOK, lambda: None, sheets).whole


def linked_sheets(source: str) -> Iterator[str]:
    """Yield the addresses of the first style sheets that a page links to."""
    links = (part for part in parts(source) if isinstance(part, Tag))
    for tag in islice(takewhile(lambda tag: tag.name != "body", links), _MAX_LINKS):
        if tag.name == "link" and "stylesheet" in tag.attributes.get("rel", ""):
            yield tag.attributes.get("href", "")


def _shown(
    source: str, kind: _Kind, check: Callable[[], None], sheets: Sequence[Sheet] = ()
) -> _Reader:
    has_sheet = _STYLE_SHEET.search(source) is not None
    known = [each for each in (*sheets, sheet_in(source) if has_sheet else {}) if each]

    def read(hides: bool = True, looks: bool = True, items: Sequence[int] = ()) -> _Reader:
        reader = _Reader(kind, hides, looks, has_sheet, known, items)
        for number, part in enumerate(parts(source, is_xml=kind is _Kind.BOOK)):
            if number % _PARTS == 0:
                check()
            if isinstance(part, str):
                reader.text(part)
            else:
                reader.tag(part)
        reader.end()
        return reader

    reader = read()
    if not reader.cut.isdisjoint(kind.value | _UNREAD):  # browsers end these elements themselves
        reader = read(hides=False)
    if reader.cut and not reader.whole:
        reader = read(hides=False, looks=False)
    if reader.reversed:
        items = [each.items for each in reader.reversed]
        reader = read(reader.hides, reader.looks, items)
    return reader


class _Reader:
    """Reads the tags and texts of a page.

    For each element that matters there is a generator: what follows its `yield` is done at the end
    of the element.
    """

    def __init__(
        self,
        kind: _Kind,
        hides: bool,
        looks: bool,
        has_sheet: bool,
        sheets: Sequence[Sheet],
        items: Sequence[int],
    ) -> None:
        """Leave out elements which their names hide (`hides`), and which their looks hide
        (`looks`). `has_sheet`: a style sheet may change colours. `sheets` are those that are known.
        `items` are the numbers of items of reversed lists."""
        self.looks = looks
        self.hides = hides
        self.is_template = False
        """Whether the text has placeholders."""
        self.cut = frozenset[str]()
        """Elements that hid the rest, because they had no end."""
        self.reversed: list[OpenList] = []
        self.whole = ""
        self._kind, self._items, self._has_sheet = kind, items, has_sheet
        self._sheets = sheets
        self._unread = kind.value | _UNREAD if hides else frozenset[str]()
        self._elements = OpenElements()
        self._paint = ("", "")
        """The colours of letters and ground; empty if they are not known."""
        self._has_ground = False
        """Whether an element before has another background than white."""
        self._flow = Flow()
        self._tables: list[Table | None] = []
        """None: nested too deeply."""
        self._marks: dict[str, str] = {}
        """Marks of notes, by the ids of the notes."""
        self._raised = self._struck = self._quotes = 0
        self._is_reading = 0
        self._unseen_by = frozenset[str]()
        """The looks that hide the text here (see `html_styles.LOOKS`)."""
        self._choice: Choice | None = None
        self._formula: Formula | None = None
        self._y = ""
        """The height of a line in a drawing."""

    def text(self, text: str) -> None:
        if self._elements.hidden or self._unseen_by:
            return
        flow = self._flow
        text = markdown.visible(text)
        if self._formula is not None:
            self._formula.add(text)
            return
        if self._choice is not None:
            self._choice.add(text)
            return
        if flow.is_code:
            text = _LINE_END.sub("\n", text) if "\r" in text else text
            text = text if flow.pieces else text.removeprefix("\n")
        else:
            if "  " in text or not text.isprintable():
                text = _SPACE.sub(" ", text)
            if "{" in text and _PLACEHOLDER.search(text) and "code" not in self._elements:
                self.is_template = True
        if self._is_reading:
            flow.add(text, "reading")
        elif self._struck and not flow.is_code:
            flow.add(text, "struck")
        elif self._raised and not _BETWEEN_NOTES.fullmatch(text):
            flow.add(text, "raised")
        else:
            flow.add(text)

    def tag(self, tag: Tag) -> None:
        if self._formula is not None:
            if self._formula.takes(tag):
                return
            self._elements.end("math")
        if not tag.is_end:
            self._start(tag)
        elif tag.name == "p" and "p" not in self._elements and not self._elements.hidden:
            self._flow.end_paragraph()
        else:
            self._elements.end(tag.name)

    def end(self) -> None:
        """End the page."""
        self.cut = self._elements.end_all()
        text = self._flow.text()
        self.whole = f"{text}\n" if text.strip() else ""

    def _add(self, text: str) -> None:
        """Write what an element shows that is no text of the page."""
        if "invisible" not in self._unseen_by:
            self._flow.add(text)

    # ---------------------------------------------------------------------------- elements

    def _start(self, tag: Tag) -> None:
        elements, name = self._elements, tag.name
        elements.end_before(name)
        is_gone, is_unseen = name in self._unread, False
        if tag.has_look and self.looks and not is_gone:
            is_gone, is_unseen = self._visibility(tag)
        rest = None
        if not (elements.hidden or is_gone or (is_unseen and tag.is_empty)):
            rest = self._opened(tag)
            if rest is not None:
                next(rest, None)
        if not tag.is_empty and name not in ("html", "body"):
            elements.add(Element(name, rest, is_gone or is_unseen))
        elif tag.is_empty and rest is not None:
            next(rest, None)

    def _visibility(self, tag: Tag) -> tuple[bool, bool]:
        """Whether an element is not part of the page, and whether it is there but not seen."""
        found = tag.attributes
        if self._is_shown_later(tag):
            return False, False
        is_gone = "hidden" in found or "popover" in found or tag.style.get("display") == "none"
        if tag.name == "dialog":
            is_gone = is_gone or "open" not in found
        return is_gone, tag.is_unseen

    def _is_shown_later(self, tag: Tag) -> bool:
        return tag.name in _SHOWN_LATER or self._is_note(tag)

    def _is_note(self, tag: Tag) -> bool:
        """Whether an element of a book is shown when its mark is chosen."""
        kinds = f"{tag.attributes.get('epub:type', '')} {tag.attributes.get('role', '')}"
        is_note = tag.name == "aside" or not _NOTES.isdisjoint(kinds.split())
        return is_note and self._kind is _Kind.BOOK

    def _opened(self, tag: Tag) -> Iterator[None] | None:
        """What is to be done with an element; None if its content is only text of the line."""
        effects = tag.effects
        if self._sheets and "class" in tag.source:
            classes = tag.attributes.get("class", "").split()
            effects = effects.union(*(of_classes(tag.name, classes, each) for each in self._sheets))
        if not self.looks:
            effects -= LOOKS.keys()
        elif "invisible" in effects and self._is_shown_later(tag):
            effects -= {"invisible"}
        is_styled = effects or any(tag.paint)
        return self._styled(tag, effects) if is_styled else self._by_name(tag)

    def _styled(self, tag: Tag, effects: frozenset[str]) -> Iterator[None]:
        own = self._by_name(tag, "block" in effects)
        by_style = [self._del(tag)] if "struck" in effects else []
        by_style += [
            self._look(kind, kind in effects)
            for kind, ends in LOOKS.items()
            if kind in effects or (kind in self._unseen_by and not ends.isdisjoint(effects))
        ]
        if self.looks and any(tag.paint):
            by_style.append(self._painted(tag))
        if "raised" in effects and tag.name not in SPECIAL:
            by_style.append(self._sup(tag))
        rests = [*by_style, own] if own is not None else by_style
        for rest in rests:
            next(rest, None)
        yield
        for rest in reversed(rests):
            next(rest, None)

    def _look(self, kind: str, is_on: bool) -> Iterator[None]:
        before = self._unseen_by
        self._unseen_by = before | {kind} if is_on else before - {kind}
        yield
        self._unseen_by = before

    def _painted(self, tag: Tag) -> Iterator[None]:
        """Hide a text that looks like its ground. Where a style sheet may set the ground, an
        element must have both colours."""
        before, unseen_by = self._paint, self._unseen_by
        is_body = tag.name in ("html", "body")
        inherited = "" if self._has_sheet else before[0]
        colour = "" if is_body else tag.paint[0] or inherited
        ground = tag.paint[1] or ("" if self._has_sheet else before[1])
        self._has_ground |= bool(ground) and not look_alike(ground, "white")
        self._paint = colour, ground
        if not ground and not self._has_ground and not self._has_sheet:
            ground = "white"
        is_alike = look_alike(colour, ground)
        self._unseen_by = unseen_by | {"alike"} if is_alike else unseen_by - {"alike"}
        yield
        self._paint, self._unseen_by = before, unseen_by

    def _by_name(self, tag: Tag, is_block: bool = False) -> Iterator[None] | None:
        name, flow = tag.name, self._flow
        if self._choice is not None and name not in ("option", "select"):
            return None
        if flow.is_code and name in SPECIAL:
            return self._line_of_code(name)
        handler = self._HANDLERS.get(name)
        if name in PARAGRAPHS:
            return self._block(tag, flow.end_paragraph, handler)
        if name in LINES or (is_block and name != "br"):
            return self._block(tag, flow.end_line, handler)
        return handler(self, tag) if handler is not None else None

    # ------------------------------------------------------------------------------ blocks

    def _block(self, tag: Tag, end: Callable[[], None], inside: _Handler | None) -> Iterator[None]:
        end()
        if inside is None:
            yield
        else:
            yield from inside(self, tag)
        end()

    def _line_of_code(self, name: str) -> Iterator[None]:
        flow = self._flow
        if name in ("td", "th"):
            if flow.pieces and not flow.pieces[-1][0].endswith("\n"):
                flow.add("\t")
            return
        flow.end_line()
        yield
        flow.end_line()

    def _br(self, tag: Tag) -> Iterator[None]:
        if self._flow.is_code:
            self._flow.add("\n")
        elif self._flow.pieces:
            self._flow.end_line()
        else:
            self._flow.end_paragraph()
        yield

    def _aside(self, tag: Tag) -> Iterator[None]:
        flow = self._flow
        flow.note = self._marks.get(tag.attributes.get("id", ""), "")
        yield
        flow.note = ""

    def _blockquote(self, tag: Tag) -> Iterator[None]:
        outer = self._flow
        if self._quotes == _MAX_QUOTES:
            yield
            return
        self._quotes += 1
        inner = self._flow = Flow()
        inner.note, outer.note = outer.note, ""
        yield
        self._quotes -= 1
        self._flow = outer
        outer.quote(inner)

    def _heading(self, tag: Tag) -> Iterator[None]:
        flow = self._flow
        flow.heading = int(tag.name[1])
        yield
        flow.end_paragraph()
        flow.heading = 0

    def _pre(self, tag: Tag) -> Iterator[None]:
        flow, in_cell = self._flow, bool(self._tables)
        flow.is_code = True
        yield
        flow.end_code(in_cell)

    def _list(self, tag: Tag) -> Iterator[None]:
        flow = self._flow
        format = "none" if "nav" in self._elements else _list_format(tag)
        current = OpenList(format or ("decimal" if tag.name == "ol" else "bullet"))
        if tag.name == "ol" and "reversed" in tag.attributes:
            current.step = -1
            known = len(self.reversed) < len(self._items)
            current.number = self._items[len(self.reversed)] if known else 0
            self.reversed.append(current)
        current.number = integer(tag.attributes.get("start", ""), current.number)
        has_marks = current.format != "none"
        flow.write_mark() if has_marks else flow.end_line()
        if not flow.lists:
            flow.end_paragraph()
        flow.lists.append(current)
        yield
        flow.end_paragraph() if has_marks else flow.end_line()
        flow.lists.pop()
        if not flow.lists:
            flow.end_paragraph()
            flow.writer.end_list()

    def _li(self, tag: Tag) -> Iterator[None]:
        flow = self._flow
        current = flow.lists[-1] if flow.lists else OpenList("bullet")
        format = _list_format(tag) or current.format
        number = current.next(tag.attributes.get("value", ""))
        depth = max(0, len(flow.lists) - 1)
        if format == "none":
            flow.end_line()
            if depth:
                flow.pieces.append(("  " * min(depth, 10), ""))
            yield
            flow.end_line()
            return
        flow.end_paragraph()
        mark = "-" if format == "bullet" else f"{formatted(number, format)}."
        if "invisible" in self._unseen_by:
            mark = ""
        flow.items.append(Item(depth, mark))
        yield
        flow.write_mark()
        flow.items.pop()

    def _table(self, tag: Tag) -> Iterator[None]:
        is_too_deep = len(self._tables) >= _MAX_TABLES
        table = None if is_too_deep else Table(tag.attributes.get("role", ""))
        self._tables.append(table)
        yield
        self._tables.pop()
        if self._tables and (outer := self._tables[-1]) is not None:
            outer.has_table = True
        if table is not None:
            self._write_table(table)

    def _tr(self, tag: Tag) -> Iterator[None]:
        if self._tables and (table := self._tables[-1]) is not None:
            table.rows.append([])
        yield

    def _td(self, tag: Tag) -> Iterator[None]:
        table = self._tables[-1] if self._tables else None
        if table is None:
            self._flow.end_line()
            return
        spans = tag.attributes
        cell = Cell(span(spans.get("colspan", "")), span(spans.get("rowspan", "")))
        if not table.rows:
            table.rows.append([])
        table.rows[-1].append(cell)
        table.has_header |= tag.name == "th"
        outer, inner = self._flow, Flow()
        self._flow = inner
        yield
        cell.text = inner.text()
        table.has_code |= inner.has_code
        self._flow = outer

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
        is_single = max(map(len, grid), default=0) < 2
        if is_single or table.has_code or table.role in ("presentation", "none"):
            return True
        if self._kind is _Kind.BOOK:
            return False
        if table.has_table or (table.has_header and self._kind is _Kind.PAGE):
            return table.has_table
        return any(
            len(cell.text) > _MAX_CELL or cell.text.count("\n\n") > 3
            for row in table.rows
            for cell in row
        )

    # ------------------------------------------------------------------------ inside a line

    def _a(self, tag: Tag) -> Iterator[None]:
        is_mail = self._kind is _Kind.MAIL
        if not is_mail and "#" not in tag.source:
            return
        found, flow = tag.attributes, self._flow
        line, begin = flow.line, len(flow.pieces)
        yield
        target = found.get("href", "")
        kinds = f"{found.get('class', '')} {found.get('epub:type', '')} {found.get('role', '')}"
        inner = flow.pieces[begin:] if flow.line == line else []
        shown = "".join(text for text, _ in inner).strip()
        is_inside = "#" in target
        if "headerlink" in kinds or (is_inside and _PERMALINK.fullmatch(shown)):
            del flow.pieces[begin:]
        elif is_inside and (mark := _NOTE_MARK.fullmatch(shown)):
            is_raised = all(kind == "raised" for text, kind in inner if text.strip())
            if is_raised or not _NOTE_LINKS.isdisjoint(kinds.split()):
                flow.pieces[begin:] = [(f"[{mark[1]}]", "")]
                self._marks[target.rpartition("#")[2]] = mark[1]
        elif is_mail:
            is_block = flow.line != line
            flow.add(markdown.address(_shortened(target), "…" if is_block else shown))
            if is_block:
                flow.end_line()

    def _del(self, tag: Tag) -> Iterator[None]:
        self._struck += 1
        yield
        self._struck -= 1

    def _sup(self, tag: Tag) -> Iterator[None]:
        flow = self._flow
        self._raised += 1
        yield
        self._raised -= 1
        text, kind = flow.pieces[-1] if flow.pieces else ("", "")
        if kind == "raised" and text.endswith(" ") and not self._raised:
            flow.pieces[-1:] = [(text.rstrip(" "), kind), (" ", "")]

    def _ruby(self, tag: Tag) -> Iterator[None]:
        if "ruby" in self._elements:
            return
        flow, line, begin = self._flow, self._flow.line, len(self._flow.pieces)
        yield
        if flow.line == line:
            inner = flow.pieces[begin:]
            base = "".join(text for text, kind in inner if kind != "reading")
            reading = "".join(text for text, kind in inner if kind == "reading")
            flow.pieces[begin:] = [(markdown.ruby(base.strip(), reading), "")]

    def _rt(self, tag: Tag) -> Iterator[None]:
        if "ruby" in self._elements:
            self._is_reading += 1
            yield
            self._is_reading -= 1

    def _math(self, tag: Tag) -> Iterator[None]:
        found, flow = tag.attributes, self._flow
        formula = self._formula = Formula()
        is_block = found.get("display") == "block"
        if is_block:
            flow.end_line()
        yield
        self._formula = None
        self._add(formula.text() or " ".join(found.get("alttext", "").split()))
        if is_block:
            flow.end_line()

    def _select(self, tag: Tag) -> Iterator[None]:
        choice = self._choice = Choice("multiple" in tag.attributes)
        yield
        self._choice = None
        self._add(choice.text())

    def _option(self, tag: Tag) -> Iterator[None]:
        if self._choice is not None:
            self._choice.option("selected" in tag.attributes)
        yield

    def _field(self, tag: Tag) -> Iterator[None]:
        """Write an element that is shown by its attributes."""
        found, is_input = tag.attributes, tag.name == "input"
        kind = found.get("type", "").lower()
        if is_input and kind in ("checkbox", "radio"):
            self._add(f"{markdown.TICKS['checked' in found]} ")
            return
        shown = found.get("alt", "")
        if is_input and kind != "image":
            shown = "" if kind in ("hidden", "password") else found.get("value", "")
        if shown.strip():
            self._add(f"[{' '.join(shown.split())}]")
        yield

    def _label(self, tag: Tag) -> Iterator[None]:
        flow = self._flow
        flow.add(" ")
        yield
        flow.add(" ")

    def _tspan(self, tag: Tag) -> Iterator[None]:
        found = tag.attributes
        if "x" in found and ("dy" in found or found.get("y", self._y) != self._y):
            self._flow.end_line()
        self._y = found.get("y", self._y)
        yield

    _HANDLERS: ClassVar[dict[str, _Handler]] = {
        "a": _a, "aside": _aside, "blockquote": _blockquote, "br": _br, "button": _label,
        "label": _label, "li": _li,
        "math": _math, "option": _option, "pre": _pre, "rt": _rt, "rtc": _rt, "ruby": _ruby,
        "select": _select, "sup": _sup, "table": _table, "td": _td, "th": _td, "tr": _tr,
        "tspan": _tspan,
        **dict.fromkeys(("del", "s", "strike"), _del),
        **dict.fromkeys(("img", "area", "input"), _field),
        **dict.fromkeys(HEADINGS, _heading),
        **dict.fromkeys(LISTS, _list),
    }  # fmt: skip


_Handler = Callable[[_Reader, Tag], Iterator[None]]


def _list_format(tag: Tag) -> str:
    """How the items of a list are marked; empty if it says nothing."""
    if not tag.source:
        return ""
    named = tag.style.get("list-style-type") or tag.style.get("list-style", "")
    for word in named.split():
        if word in _LIST_FORMATS:
            return _LIST_FORMATS[word]
    kind = tag.attributes.get("type", "")
    return _LIST_FORMATS.get(kind) or _LIST_FORMATS.get(kind.lower(), "")


def _shortened(address: str) -> str:
    """An address, without the long query with which senders count clicks."""
    begin, query, _ = address.partition("?")
    return address if len(address) <= _MAX_ADDRESS else f"{begin[:_MAX_ADDRESS]}{query}…"

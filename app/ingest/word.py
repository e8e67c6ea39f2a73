"""Reads Word documents: what Word shows of them, in the order of their text.

Numbers of clauses, headings and notes are not in the text of a file: Word counts them when it shows
them, and so does this reader. Tracked changes are read as accepted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from app.ingest import markdown
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
from app.ingest.fields import NUMBER_FIELDS, PAGE_FIELDS, field_kind, field_text
from app.ingest.formulas import linear
from app.ingest.list_numbers import Counters, formatted
from app.ingest.markdown import Line, Writer, ruby
from app.ingest.parts import Part, changes_said
from app.ingest.symbols import symbol

if TYPE_CHECKING:
    from app.ingest.archive import Archive

_BODY_LEVEL = 9
"""The outline level of text that is no heading."""
_OUTER = "hyperlink smartTag customXml bdo dir sdtContent rubyBase rt tr tc txbxContent"
_INSIDE = frozenset(_OUTER.split())
"""Elements whose text is read like that around them."""
_EMPTY = """annotationRef bookmarkEnd bookmarkStart continuationSeparator dayLong dayShort
    delInstrText delText endnoteRef fldData footnoteRef lastRenderedPageBreak monthLong monthShort
    permEnd permStart pgNum proofErr separator softHyphen tblGrid yearLong yearShort"""
_TEXTLESS = frozenset(_EMPTY.split())
_TEXTLESS_ENDS = ("Pr", "PrEx", "RangeStart", "RangeEnd")
"""Names, and ends of names, of elements without text of the document."""
_BREAKS = {"tab": "\t", "ptab": "\t", "cr": "\n", "br": "\n", "noBreakHyphen": "\u2011"}
_WRAPPERS = ("sdt", "sdtContent", "customXml", "ins", "moveTo")
"""Elements around rows and cells."""
_STRIKES = ("strike", "dstrike")
_DESCRIPTIONS = {"docPr": "descr", "imagedata": "title", "shape": "alt", "textpath": "string"}
"""Attributes that describe a picture, by the names of elements. Letters drawn as a picture are its
`textpath`."""
_NOTES = {"footnotes": "decimal", "endnotes": "lowerRoman"}
"""Formats of their numbers, unless the document says others."""
_GROUND = re.compile(
    rb"fill=.(?!auto|[fF]{6})[0-9a-zA-Z]|<w:(?:highlight|background)\b|<wps:|<v:|<a:solidFill"
)
_MAX_DEPTH = 30
"""Documents and text boxes that are nested deeper are not read."""


@dataclass(frozen=True, slots=True)
class _Style:
    """What a style, and those that it is based on, say of a paragraph or of characters."""

    name: str = ""
    outline: int | None = None
    """The level of headings, from 0."""
    list: str | None = None
    level: int = 0
    """The level in its list, unless a level of the list names `list_style`."""
    list_style: str = ""
    """The style that says the list."""
    raised: bool = False
    struck: bool = False
    hidden: bool = False
    tiny: bool = False
    white: bool = False
    code: bool = False


@dataclass(slots=True)
class _Field:
    """A field that is not complete yet."""

    code: str = ""
    form: Element | None = None
    """What the file says of a field of a form."""
    in_result: bool = False
    is_shown: bool = False
    """Whether the text that follows is shown, as results are, unless a field around hides them."""
    shown: list[str] = field(default_factory=list)


class WordDocument:
    """A Word document, with headings, lists, tables, notes and comments; it has no pages."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._main = archive.main("officeDocument", "word/document.xml")
        self.embedded = archive.embedded()

    def __len__(self) -> int:
        return 1

    def read(self, number: int) -> Part:
        reader = _Reader(self._archive, self._main)
        return Part("", reader.text(), said=tuple(reader.said()))


class _Reader:
    """Reads the text of a document once."""

    def __init__(self, archive: Archive, main: str, depth: int = 0) -> None:
        self._archive, self._main, self._depth = archive, main, depth
        self._relations = archive.relations(main)
        self._styles, self._default = self._read_styles()
        lists = {id: style.list for id, style in self._styles.items() if style.list is not None}
        self._counters = Counters(self._part("numbering"), lists)
        self._notes = {
            kind: {attribute(each, "id"): each for each in inside(self._part(kind))}
            for kind in (*_NOTES, "comments")
        }
        self._counts: Counter[str] = Counter()
        self._sections = [*self._sections_of_notes()][::-1]
        """The properties of the sections that are left, the last one first."""
        self._settings = self._part("settings")
        self._margins = markdown.Margins()
        self._headers: dict[tuple[str, str], str] = {}
        """Members of headers and footers that are not read yet, by kinds and pages."""
        self._in_margin = False
        self._unknown: Counter[str] = Counter()
        self._changes = 0
        self._writer = Writer()
        self._line = Line()
        self._style = self._default
        self._fields: list[_Field] = []
        self._joined: Line | None = None
        """The text of a paragraph that goes on in the next one."""
        self._after: list[Element] = []
        """Text boxes and charts, which follow the paragraph in which they stand."""
        self._readers: dict[str, Callable[[Element, str], None]] = {
            "r": self._run,
            "t": self._text,
            "hyperlink": self._link,
            "fldSimple": self._simple_field,
            "fldChar": self._field_mark,
            "instrText": self._field_code,
            "oMath": self._formula,
            "oMathPara": self._formula,
            "sdt": self._control,
            "ins": self._accepted,
            "moveTo": self._accepted,
            "del": self._rejected,
            "moveFrom": self._rejected,
            "p": self._block,
            "tbl": self._block,
            "sym": self._symbol,
            "commentReference": self._comment,
            "ruby": self._ruby,
            **dict.fromkeys(("drawing", "pict", "object"), self._drawing),
        }

    def text(self) -> str:
        self._blocks(self._body())
        self._end_story()
        return self._margins.around(self._writer.text())

    def _body(self) -> Iterator[Element]:
        """Yield the blocks of the body, and remove each before the next one: the whole tree would
        be many times the file."""
        depth, body = 0, None
        with self._archive.open(self._main) as file:
            for event, element in ElementTree.iterparse(file, ("start", "end")):
                if event == "start":
                    depth += 1
                    if depth == 2 and name_of(element) == "body":
                        body = element
                    continue
                depth -= 1
                if depth == 2 and body is not None:
                    yield element
                    body.remove(element)

    def said(self) -> Iterator[tuple[str, str]]:
        """What a reader must know of the text."""
        if self._changes:
            yield changes_said(self._changes)
        if self._unknown:
            from app.ingest.shapes import unknown_said

            yield from unknown_said(self._unknown)

    # ------------------------------------------------------------------- parts of the archive

    def _part(self, kind: str) -> Element | None:
        default = f"{self._main.rpartition('/')[0]}/{kind}.xml"
        linked = (target for each, target, _ in self._relations.values() if each == kind)
        name = next(linked, default)
        return self._archive.xml(name) if name in self._archive.names else None

    def _linked(self, id: str) -> str:
        """The member that an id refers to; empty if there is none."""
        _, target, external = self._relations.get(id, ("", "", True))
        return "" if external else target

    def _read_styles(self) -> tuple[dict[str, _Style], _Style]:
        """Styles by their ids, and that of paragraphs without one."""
        listed = {
            attribute(each, "styleId"): each
            for each in inside(self._part("styles"))
            if name_of(each) == "style"
        }
        found: dict[str, _Style] = {}
        default = _Style()
        for start, element in listed.items():
            chain: dict[str, None] = {}
            id = start
            while id in listed and id not in found and id not in chain:
                chain[id] = None
                id = value_of(listed[id], "basedOn")
            for each in reversed(chain):
                found[each] = _style(listed[each], found.get(value_of(listed[each], "basedOn")))
            if is_on(element, "default") and attribute(element, "type") == "paragraph":
                default = found[start]
        return found, default

    # ------------------------------------------------------------------------------- blocks

    def _blocks(self, elements: Iterable[Element]) -> None:
        """Read paragraphs, tables and what contains them."""
        for each in elements:
            name = name_of(each)
            if name == "p":
                if (section := self._paragraph(each)) is not None:
                    self._section(section)
            elif name == "tbl":
                self._table(each)
            elif name == "sdt" and child(each, "sdtPr", "checkbox") is None:
                self._blocks(inside(each, "sdtContent"))
            elif name == "altChunk":
                self._imported(attribute(each, "id"))
            elif name == "sectPr":
                self._section(each)
            elif name == "AlternateContent":
                self._blocks(chosen(each))
            elif name in ("ins", "moveTo", "customXml"):
                self._changes += name != "customXml"
                self._blocks(each)
            else:
                self._inline(each)
                self._end_line()

    def _end_line(self) -> None:
        line, self._line = self._line, Line()
        self._writer.paragraph(line.text())
        self._write_after()

    def _write_after(self) -> None:
        after, self._after = self._after, []
        for each in after:
            if name_of(each) != "txbxContent":
                self._chart(each)
            elif self._depth < _MAX_DEPTH:
                self._depth += 1
                self._story(each, self._writer)
                self._depth -= 1

    def _story(self, blocks: Iterable[Element], writer: Writer) -> Writer:
        """Write blocks that stand on their own, such as those of a cell, a text box or a note."""
        outer = self._writer, self._line, self._after, self._joined, self._style, self._fields
        self._writer, self._line, self._after, self._joined = writer, Line(), [], None
        self._fields = [] if self._shown else self._fields[-1:]
        before = len(self._fields)
        self._blocks(blocks)
        self._end_story(before)
        self._writer, self._line, self._after, self._joined, self._style, self._fields = outer
        return writer

    def _end_story(self, fields: int = 0) -> None:
        self._end_joined()
        open_fields = [each for each in self._fields[fields:] if not each.in_result]
        if open_fields:  # nothing behind them was shown
            self._unknown["field without an end"] += len(open_fields)

    def _end_joined(self) -> None:
        if self._joined:
            self._writer.paragraph(self._joined.text())
        self._joined = None

    def _block(self, element: Element, kind: str) -> None:
        """Read a block that stands in a paragraph."""
        self._story((element,), self._writer)

    def _paragraph(self, paragraph: Element) -> Element | None:
        """Read a paragraph. Returns the properties of the section that ends with it."""
        style, id, list_id, level, outline = self._default, "", "", -1, -1
        mark, is_drop_cap, section = None, False, None
        for each in inside(paragraph, "pPr"):
            name = name_of(each)
            if name == "pStyle":
                id = attribute(each, "val")
                style = self._styles.get(id, self._default)
            elif name == "numPr":
                list_id, level = value_of(each, "numId"), integer(value_of(each, "ilvl"), -1)
            elif name == "outlineLvl":
                outline = integer(attribute(each, "val"), -1)
            elif name == "rPr":
                mark = each
            elif name == "framePr":
                is_drop_cap = attribute(each, "dropCap", "none") != "none"
            elif name == "sectPr":
                section = each
        list_id = list_id or style.list or ""
        if list_id and level < 0:
            named = self._counters.level_of(list_id, id, style.list_style)
            level = style.level if named is None else named
        self._writer.begin()
        outer, self._style = self._line, style
        self._line, self._joined = self._joined or Line(), None
        for each in paragraph:
            self._inline(each)
        line, self._line = self._line, outer
        is_deleted = child(mark, "del") is not None or child(mark, "moveFrom") is not None
        self._changes += is_deleted or child(mark, "ins") is not None
        if is_deleted or is_drop_cap:
            self._joined = line
            return section
        number = None if list_id in ("", "0") else self._counters.next(list_id, level)
        if outline < 0 and style.outline is not None:
            outline = style.outline
        text = line.text()
        if 0 <= outline < _BODY_LEVEL:
            title = " ".join(filter(None, (number, text))) if text.strip() else ""
            self._writer.heading(outline + 1, title)
        elif style.code:
            self._writer.code(text)
        elif number is not None:
            self._writer.item(level, number, text)
        else:
            self._writer.paragraph(text)
        self._write_after()
        return section

    def _section(self, properties: Element) -> None:
        """End a section: read the headers and footers that it shows. It takes those that it does
        not name from the section before."""
        if self._in_margin:
            return
        for each in properties:
            kind = name_of(each).removesuffix("Reference")
            if kind in self._margins:
                of = kind, attribute(each, "type", "default")
                self._headers[of] = self._linked(attribute(each, "id"))
        unused = {
            "first": not is_on(child(properties, "titlePg")),
            "even": not is_on(child(self._settings, "evenAndOddHeaders")),
        }
        for kind, pages in [*self._headers]:
            name = "" if unused.get(pages) else self._headers.pop((kind, pages))
            if name:
                relations, self._relations = self._relations, self._archive.relations(name)
                self._in_margin = True
                text = self._apart(self._archive.xml(name))
                self._in_margin, self._relations = False, relations
                self._margins.add(kind, "\n".join(map(line_of, text.split("\n"))))
        del self._sections[-1:]
        for kind in _NOTES:
            if self._counts[kind] and self._said_of(kind, "numRestart") == "eachSect":
                self._counts[kind] = 0
                self._writer.end_section()

    # ------------------------------------------------------------------------------- tables

    def _table(self, table: Element) -> None:
        self._end_joined()
        rows = [
            (child(row, "trPr"), [*self._wrapped(row, "tc")]) for row in self._wrapped(table, "tr")
        ]
        if all(len(cells) < 2 for _, cells in rows):
            for _, cells in rows:
                for cell in cells:
                    self._story(cell, self._writer)
            return
        shown: list[list[list[str]]] = []
        above: dict[int, list[str]] = {}
        for properties, cells in rows:
            if child(properties, "del") is not None:
                self._changes += 1
                continue
            self._changes += child(properties, "ins") is not None
            line: list[list[str]] = [[]] * _columns(value_of(properties, "gridBefore"))
            for cell in cells:
                self._cell(cell, line, above)
            shown.append(line)
        self._writer.table([[" ".join(texts) for texts in line] for line in shown])

    def _cell(self, cell: Element, line: list[list[str]], above: dict[int, list[str]]) -> None:
        """Add the texts of a cell to a line of a table. A cell that is merged with those above it
        adds to theirs, which are in `above`, by columns."""
        properties = child(cell, "tcPr")
        if child(properties, "cellDel") is not None:
            self._changes += 1
            return
        text = self._apart(cell)
        texts = [text] if text else []
        merge, column = child(properties, "vMerge"), len(line)
        if merge is None or attribute(merge, "val") == "restart" or column not in above:
            above[column] = texts
        else:
            above[column] += texts
            texts = []
        line += [texts, *[[]] * (_columns(value_of(properties, "gridSpan")) - 1)]

    def _wrapped(self, elements: Iterable[Element], wanted: str) -> Iterator[Element]:
        """Yield the rows of a table or the cells of a row, also those in content controls."""
        for each in elements:
            name = name_of(each)
            if name == wanted:
                yield each
            elif name in _WRAPPERS:
                yield from self._wrapped(each, wanted)
            elif name == "AlternateContent":
                yield from self._wrapped(chosen(each), wanted)
            else:
                self._skip(name)

    def _apart(self, blocks: Iterable[Element]) -> str:
        """The text of a cell, a note or a header."""
        return self._story(blocks, Writer(self._writer)).text()

    # --------------------------------------------------------------------------------- text

    def _inline(self, element: Element, kind: str = "") -> None:
        """Read what stands in a paragraph or a run. `kind` is that of `Line.add`."""
        name = name_of(element)
        if (read := self._readers.get(name)) is not None:
            read(element, kind)
        elif name in _BREAKS:
            self._add(_BREAKS[name], kind)
        elif name in _INSIDE:
            for each in element:
                self._inline(each, kind)
        elif name == "AlternateContent":
            for each in chosen(element):
                self._inline(each, kind)
        else:
            self._skip(name)

    def _skip(self, name: str) -> None:
        if name not in _TEXTLESS and not name.endswith(_TEXTLESS_ENDS):
            self._unknown[name] += 1

    def _add(self, text: str, kind: str = "") -> None:
        """Add text that is shown: not the code of a field."""
        if self._fields:
            if not self._shown:
                return
            self._fields[-1].shown.append(text)
        self._line.add(text, kind)

    @property
    def _shown(self) -> bool:
        return not self._fields or self._fields[-1].is_shown

    def _run(self, run: Element, outer: str = "") -> None:
        kind = self._kind(())
        for each in run:
            name = name_of(each)
            if name == "t":
                self._add(each.text or "", kind)
            elif name == "rPr":
                kind = self._kind(each)
            elif name == "footnoteReference" or name == "endnoteReference":
                if self._shown and self._note(run, each, f"{name.removesuffix('Reference')}s"):
                    return
            else:
                self._inline(each, kind)

    def _text(self, element: Element, kind: str) -> None:
        self._add(element.text or "", kind)

    def _kind(self, properties: Iterable[Element]) -> str:
        raised, struck, hidden = False, self._style.struck, self._style.hidden
        tiny, white = self._style.tiny, self._style.white
        for each in properties:
            name = name_of(each)
            if name == "rStyle":
                style = self._styles.get(attribute(each, "val"), _Style())
                raised, hidden = raised or style.raised, hidden or style.hidden
                struck, tiny, white = (
                    struck or style.struck,
                    tiny or style.tiny,
                    white or style.white,
                )
            elif name in _STRIKES:
                struck = is_on(each)
            elif name == "vertAlign":
                raised = attribute(each, "val") == "superscript"
            elif name == "position":
                raised = raised or integer(attribute(each, "val")) >= 5
            elif name == "vanish":
                hidden = is_on(each) or self._style.hidden
            elif name == "sz":
                tiny = _is_tiny(each)
            elif name == "color":
                white = markdown.is_white(attribute(each, "val"))
        hidden = hidden or tiny or (white and not self._has_ground)
        return "hidden" if hidden else "struck" if struck else "raised" if raised else ""

    @cached_property
    def _has_ground(self) -> bool:
        """Whether something in the document has another background than white."""
        members = (name for name in self._archive.names if name.startswith("word/"))
        return any(
            _GROUND.search(self._archive.read(name)) for name in members if name.endswith(".xml")
        )

    def _accepted(self, change: Element, kind: str) -> None:
        self._changes += 1
        for each in change:
            self._inline(each, kind)

    def _rejected(self, change: Element, kind: str) -> None:
        self._changes += 1

    def _formula(self, element: Element, kind: str) -> None:
        formulas = [element] if name_of(element) == "oMath" else element.findall("{*}oMath")
        self._add("\n".join(map(linear, formulas)))

    def _symbol(self, element: Element, kind: str) -> None:
        code = attribute(element, "char")
        if re.fullmatch(r"[0-9a-fA-F]{1,6}", code):
            self._add(symbol(attribute(element, "font"), int(code, 16)), kind)

    def _ruby(self, element: Element, kind: str) -> None:
        base, reading = (self._apart_line(inside(element, part)) for part in ("rubyBase", "rt"))
        self._add(ruby(base.text(), reading.text()), kind)

    def _link(self, element: Element, outer: str) -> None:
        kind, target, external = self._relations.get(attribute(element, "id"), ("", "", False))
        line = self._apart_line(element)
        self._line.extend(line)
        if external and kind == "hyperlink":
            self._add(markdown.address(target, line.text()))

    def _apart_line(self, elements: Iterable[Element]) -> Line:
        outer, self._line = self._line, Line()
        for each in elements:
            self._inline(each)
        line, self._line = self._line, outer
        return line

    def _control(self, element: Element, kind: str) -> None:
        """Read a field of a form, or other content with properties."""
        box = child(element, "sdtPr", "checkbox")
        if box is not None:
            self._add(markdown.TICKS[is_on(child(box, "checked"))])
        else:
            for each in inside(element, "sdtContent"):
                self._inline(each, kind)

    # ------------------------------------------------------------------------------- fields

    def _simple_field(self, element: Element, kind: str) -> None:
        self._fields.append(_Field(attribute(element, "instr")))
        if len(element):
            self._begin_result()
        for each in element:
            self._inline(each)
        self._end_field()

    def _field_code(self, element: Element, kind: str) -> None:
        if self._fields and not self._fields[-1].in_result:
            self._fields[-1].code += element.text or ""

    def _field_mark(self, element: Element, outer: str) -> None:
        kind = attribute(element, "fldCharType")
        if kind == "begin":
            self._fields.append(_Field(form=child(element, "ffData")))
        elif kind == "separate" and self._fields:
            self._begin_result()
        elif kind == "end" and self._fields:
            self._end_field()

    def _begin_result(self) -> None:
        own = self._fields.pop()
        own.is_shown = self._shown and not (self._in_margin and field_kind(own.code) in PAGE_FIELDS)
        own.in_result = True
        self._fields.append(own)

    def _end_field(self) -> None:
        """Write what the program shows of a field without a result, and the address of a link."""
        ended = self._fields.pop()
        shown, kind = "".join(ended.shown), field_kind(ended.code)
        if kind in NUMBER_FIELDS and self._shown and not shown:
            self._unknown[kind] += 1
        if ended.form is not None:
            self._add(_form_choice(ended.form))
        else:
            self._add(field_text(ended.code, shown))

    # -------------------------------------------------------------------------------- notes

    def _note(self, run: Element, reference: Element, kind: str) -> bool:
        """Write the mark of a note, and the note. Returns whether the mark was the rest of the
        run."""
        is_own = is_on(reference, "customMarkFollows")
        if is_own:
            mark = "".join(each.text or "" for each in run if name_of(each) == "t").strip() or "*"
        else:
            first = integer(self._said_of(kind, "numStart"), 1)
            self._counts[kind] = self._counts[kind] + 1 if self._counts[kind] else first
            mark = formatted(self._counts[kind], self._said_of(kind, "numFmt") or _NOTES[kind])
        self._add(f"[^{mark}]")
        note = self._notes[kind].get(attribute(reference, "id"))
        if note is not None:
            self._writer.note(f"[^{mark}]", self._apart(note))
        return is_own

    def _said_of(self, kind: str, name: str) -> str:
        """What the section or, if it says nothing, the document says of its notes."""
        places = *self._sections[-1:], self._settings
        said = (value_of(each, f"{kind.removesuffix('s')}Pr", name) for each in places)
        return next(filter(None, said), "")

    def _sections_of_notes(self) -> Iterator[Element]:
        """Yield the properties of all sections if any says how its notes are numbered. Word puts
        them at the end of each section."""
        noted = any(self._notes[kind] for kind in _NOTES)
        source = self._archive.read(self._main) if noted else b""
        if b"footnotePr" in source or b"endnotePr" in source:
            for block in self._body():
                if name_of(block) == "sectPr":
                    yield block
                for each in every(block, "pPr"):
                    yield from each.findall("{*}sectPr")

    def _comment(self, reference: Element, kind: str) -> None:
        comment = self._notes["comments"].get(attribute(reference, "id"))
        if comment is not None and self._shown:
            self._counts["comments"] += 1
            mark = f"[Comment {self._counts['comments']}]"
            self._add(mark)
            self._writer.comment(mark, attribute(comment, "author"), self._apart(comment))

    # ----------------------------------------------------------------------------- drawings

    def _drawing(self, drawing: Element, kind: str) -> None:
        """Read the text boxes, charts and diagrams of a drawing, and describe a picture."""
        if self._shown:
            self._after += _outermost(drawing, ("txbxContent", "chart", "relIds"))
        for each in drawing.iter():
            shown = line_of(attribute(each, _DESCRIPTIONS.get(name_of(each), "-")))
            if shown:
                self._add(f"[{shown}]")
                break

    def _chart(self, element: Element) -> None:
        from app.ingest.charts import chart_lines, diagram_lines

        is_diagram = name_of(element) == "relIds"
        if name := self._linked(attribute(element, "dm" if is_diagram else "id")):
            root = self._archive.xml(name)
            for block in diagram_lines(root) if is_diagram else chart_lines(root):
                self._writer.block(block)

    def _imported(self, id: str) -> None:
        """Read a document in another format that Word shows here."""
        name = self._linked(id)
        text = self._imported_text(name, self._archive.read(name)) if name else ""
        if text.strip():
            self._writer.block(text.strip("\n"))
        else:
            self._unknown["altChunk"] += 1

    def _imported_text(self, name: str, data: bytes) -> str:
        from app.ingest.archive import Archive
        from app.ingest.rtf import rtf_text
        from app.ingest.text import decode
        from app.ingest.web_page import markup_text

        if name.endswith((".htm", ".html", ".xhtml")) or data[:200].lstrip()[:1] == b"<":
            return markup_text(decode(data).text)
        if name.endswith(".txt"):
            return decode(data).text
        if data.startswith(b"{\\rtf"):
            return rtf_text(data)
        if data.startswith(b"PK") and self._depth < 2:
            inner = Archive(data)
            inner.refuse_entities()
            main = inner.main("officeDocument", "word/document.xml")
            return _Reader(inner, main, self._depth + 1).text()
        return ""


def _form_choice(form: Element) -> str:
    """What was chosen in a field of a form: a tick, or an entry of a list."""
    box, choices = child(form, "checkBox"), child(form, "ddList")
    if box is not None:
        checked = child(box, "checked")
        return markdown.TICKS[is_on(child(box, "default") if checked is None else checked)]
    if choices is not None:
        entries = [attribute(each, "val") for each in choices.findall("{*}listEntry")]
        number = integer(value_of(choices, "result") or value_of(choices, "default"))
        return entries[number] if 0 <= number < len(entries) else ""
    return ""


def _outermost(elements: Iterable[Element], names: Sequence[str]) -> Iterator[Element]:
    """Yield the elements of these names that are not inside another of them. Of several forms, the
    first that has any is read."""
    for each in elements:
        name = name_of(each)
        if name in names:
            yield each
        elif name == "AlternateContent":
            forms = ([*_outermost(form, names)] for form in each)
            yield from next(filter(None, forms), [])
        else:
            yield from _outermost(each, names)


def _style(element: Element, base: _Style | None) -> _Style:
    """What a style adds to the one that it is based on."""
    name = value_of(element, "name")
    found = replace(base or _Style(), name=name)
    if level := markdown.heading_level(name):
        found = replace(found, outline=level - 1)
    elif name.lower() == "title":
        found = replace(found, outline=0)
    if markdown.is_code_style(name):
        found = replace(found, code=True)
    paragraph, characters = child(element, "pPr"), child(element, "rPr")
    if outline := value_of(paragraph, "outlineLvl"):
        found = replace(found, outline=integer(outline, _BODY_LEVEL))
    if (numbers := child(paragraph, "numPr")) is not None:
        found = replace(
            found,
            list=value_of(numbers, "numId") or found.list,
            level=integer(value_of(numbers, "ilvl"), found.level),
            list_style=attribute(element, "styleId"),
        )
    if align := value_of(characters, "vertAlign"):
        found = replace(found, raised=align == "superscript")
    for strike in filter(None.__ne__, (child(characters, each) for each in _STRIKES)):
        found = replace(found, struck=is_on(strike))
    if (vanish := child(characters, "vanish")) is not None:
        found = replace(found, hidden=is_on(vanish))
    if (size := child(characters, "sz")) is not None:
        found = replace(found, tiny=_is_tiny(size))
    if colour := value_of(characters, "color"):
        found = replace(found, white=markdown.is_white(colour))
    return found


def _is_tiny(size: Element) -> bool:
    """Whether letters of a size, in half-points, cannot be read."""
    return markdown.is_tiny(integer(attribute(size, "val"), 24) / 2)


def _columns(number: str) -> int:
    """A number of columns that a cell spans, or that are skipped."""
    return max(0, min(integer(number), 100))

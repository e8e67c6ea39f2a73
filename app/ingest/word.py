"""Reads Word documents: what Word shows of them, in the order of their text.

Numbers of clauses, headings and notes are not in the text of a file: Word counts them when it shows
them, and so does this reader. Tracked changes are read as accepted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from app.ingest import markdown
from app.ingest.elements import attribute, child, name_of
from app.ingest.formulas import field_formula, linear
from app.ingest.list_numbers import Counters, formatted
from app.ingest.markdown import Line, Writer, ruby
from app.ingest.parts import Part, changes_said
from app.ingest.symbols import symbol
from app.util import formatting

if TYPE_CHECKING:
    from app.ingest.archive import Archive

_HEADING = re.compile(r"heading ([1-9])", re.IGNORECASE)
_CODE = re.compile(r"(?:source ?code|code|html preformatted|preformatted text|macro text)\b", re.I)
_BODY_LEVEL = 9
"""The outline level of text that is no heading."""
_OUTER = "hyperlink smartTag customXml bdo dir sdtContent rubyBase tr tc txbxContent"
_INSIDE = frozenset(_OUTER.split())
"""Elements whose text is read like that around them."""
_EMPTY = """annotationRef bookmarkEnd bookmarkStart commentRangeEnd commentRangeStart
    continuationSeparator customXmlDelRangeEnd customXmlDelRangeStart customXmlInsRangeEnd
    customXmlInsRangeStart customXmlMoveFromRangeEnd customXmlMoveFromRangeStart
    customXmlMoveToRangeEnd customXmlMoveToRangeStart customXmlPr dayLong dayShort delInstrText
    delText endnoteRef fldData footnoteRef lastRenderedPageBreak monthLong monthShort
    moveFromRangeEnd moveFromRangeStart moveToRangeEnd moveToRangeStart pPr permEnd permStart pgNum
    proofErr rPr sdtEndPr sdtPr sectPr separator smartTagPr softHyphen tblGrid tblPr tblPrEx tcPr
    trPr yearLong yearShort"""
_TEXTLESS = frozenset(_EMPTY.split())
"""Elements without text of the document."""
_BREAKS = {"tab": "\t", "ptab": "\t", "cr": "\n", "br": "\n", "noBreakHyphen": "\u2011"}
_LINK_FIELD = re.compile(r'HYPERLINK\s+"([^"]+)"', re.IGNORECASE)
_SYMBOL_FIELD = re.compile(r'SYMBOL\s+(0x[0-9a-f]+|\d+)(?:.*\\f\s+"?([^"\\]+))?', re.IGNORECASE)
_PAGE_FIELDS = ("PAGE", "NUMPAGES", "SECTIONPAGES")
_MAX_DEPTH = 30
"""Documents and text boxes that are nested deeper are not read."""


@dataclass(frozen=True, slots=True)
class _Style:
    """What a style, and those that it is based on, say of a paragraph or of characters."""

    name: str = ""
    outline: int | None = None
    """The level of headings, from 0."""
    list: str | None = None
    raised: bool = False
    hidden: bool = False
    code: bool = False


@dataclass(slots=True)
class _Field:
    """A field that is not complete yet."""

    code: str = ""
    form: Element | None = None
    """What the file says of a field of a form."""
    in_result: bool = False

    @property
    def kind(self) -> str:
        """The first word of its code, such as `PAGE`."""
        return next(iter(self.code.upper().split()), "")


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
            kind: {} if (root := self._part(kind)) is None else _by_id(root)
            for kind in ("footnotes", "endnotes", "comments")
        }
        self._counts: Counter[str] = Counter()
        self._fields: list[_Field] = []
        self._margins = markdown.Margins()
        self._in_margin = False
        self._joined: Line | None = None
        """The text of a paragraph whose end was deleted: it goes on in the next one."""
        self._unknown: Counter[str] = Counter()
        self._changes = 0
        self._writer = Writer()
        self._line = Line()
        self._style = self._default
        self._after: list[Element] = []
        """Text boxes and charts, which follow the paragraph in which they stand."""

    def text(self) -> str:
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
                    self._blocks((element,))
                    body.remove(element)  # the whole tree would be many times the file
        if self._joined:
            self._writer.paragraph(self._joined.text())
        text = self._writer.text()
        return self._margins.around(text)

    def said(self) -> Iterator[tuple[str, str]]:
        """What a reader must know of the text."""
        if self._changes:
            yield changes_said(self._changes)
        if self._unknown:
            total = formatting.plural(sum(self._unknown.values()), "element")
            names = ", ".join(name for name, _ in self._unknown.most_common(5))
            yield (
                f"has {total} that specchat does not know ({names})",
                "save it as PDF, and add that",
            )

    # ------------------------------------------------------------------- parts of the archive

    def _part(self, kind: str) -> Element | None:
        name = next((target for each, target, _ in self._relations.values() if each == kind), "")
        folder = self._main.rpartition("/")[0]
        name = name or f"{folder}/{kind}.xml"
        return self._archive.xml(name) if name in self._archive.names else None

    def _read_styles(self) -> tuple[dict[str, _Style], _Style]:
        """Styles by their ids, and that of paragraphs without one."""
        root = self._part("styles")
        listed = (
            {}
            if root is None
            else {attribute(each, "styleId"): each for each in root if name_of(each) == "style"}
        )
        found: dict[str, _Style] = {}
        default = _Style()
        for start, element in listed.items():
            chain: dict[str, None] = {}
            id = start
            while id in listed and id not in found and id not in chain:
                chain[id] = None
                id = _value(listed[id], "basedOn")
            for each in reversed(chain):
                found[each] = _style(listed[each], found.get(_value(listed[each], "basedOn")))
            is_default = attribute(element, "default") in ("1", "true")
            if is_default and attribute(element, "type") == "paragraph":
                default = found[start]
        return found, default

    # ------------------------------------------------------------------------------- blocks

    def _blocks(self, elements: Iterable[Element]) -> None:
        """Read paragraphs, tables and what contains them."""
        for each in elements:
            name = name_of(each)
            if name == "p":
                self._paragraph(each)
            elif name == "tbl":
                self._table(each)
            elif name == "sdt":
                self._blocks(child(each, "sdtContent") or ())
            elif name == "altChunk":
                self._imported(attribute(each, "id"))
            elif name == "sectPr":
                self._section(each)
            elif name in ("oMathPara", "oMath", "r"):
                self._inline(each)
                self._end_line()
            elif name == "AlternateContent":
                self._blocks(self._chosen(each))
            elif name in ("ins", "moveTo", "customXml"):
                self._changes += name != "customXml"
                self._blocks(each)
            elif name in ("del", "moveFrom"):
                self._changes += 1
            elif name not in _TEXTLESS:
                self._unknown[name] += 1

    def _end_line(self) -> None:
        line, self._line = self._line, Line()
        self._writer.paragraph(line.text())
        self._write_after()

    def _write_after(self) -> None:
        while self._after:
            each = self._after.pop(0)
            if name_of(each) == "txbxContent":
                if self._depth < _MAX_DEPTH:
                    self._depth += 1
                    self._inner_blocks(each)
                    self._depth -= 1
            else:
                self._chart(each)

    def _inner_blocks(self, content: Iterable[Element]) -> None:
        """Read blocks that stand inside a paragraph."""
        after, self._after = self._after, []
        line, self._line = self._line, Line()
        self._blocks(content)
        self._after, self._line = after, line

    def _paragraph(self, paragraph: Element) -> None:
        properties = child(paragraph, "pPr")
        style, level, outline = self._default, None, None
        list_id: str | None = None
        mark = None
        if properties is not None:
            id = _value(properties, "pStyle")
            style = self._styles.get(id, self._default)
            for each in properties:
                name = name_of(each)
                if name == "numPr":
                    list_id = _value(each, "numId") or style.list
                    level = _integer(_value(each, "ilvl"))
                elif name == "outlineLvl":
                    outline = _integer(attribute(each, "val"))
                elif name == "rPr":
                    mark = each
                elif name == "sectPr":
                    self._section(each)
            if list_id is None and style.list is not None:
                list_id = style.list
            if list_id is not None and level is None:
                level = self._counters.level_of(list_id, id)
        self._writer.begin()
        outer = self._line
        self._line = self._joined or Line()
        self._joined = None
        self._style = style
        for each in paragraph:
            self._inline(each)
        line, self._line = self._line, outer
        if mark is not None and (
            child(mark, "del") is not None or child(mark, "moveFrom") is not None
        ):
            self._changes += 1
            self._joined = line
            return
        if mark is not None and child(mark, "ins") is not None:
            self._changes += 1
        self._write(line.text(), style, list_id, level or 0, outline)
        self._write_after()

    def _write(
        self, text: str, style: _Style, list_id: str | None, level: int, outline: int | None
    ) -> None:
        number = None
        if list_id is not None and list_id != "0":
            number = self._counters.next(list_id, level)
        if outline is None:
            outline = style.outline
        if outline is not None and outline < _BODY_LEVEL:
            self._writer.heading(
                outline + 1, " ".join(filter(None, (number, text))) if text.strip() else ""
            )
        elif style.code:
            self._writer.code(text)
        elif number is not None:
            self._writer.item(level, number, text)
        else:
            self._writer.paragraph(text)

    def _section(self, properties: Element) -> None:
        """Read the headers and footers of a section."""
        for each in properties:
            kind = name_of(each).removesuffix("Reference")
            _, name, external = self._relations.get(attribute(each, "id"), ("", "", True))
            if kind in self._margins and not external and not self._in_margin:
                writer, self._writer = self._writer, Writer(self._writer)
                relations, self._relations = self._relations, self._archive.relations(name)
                after, self._after = self._after, []
                joined, self._joined = self._joined, None
                self._in_margin = True
                self._blocks(self._archive.xml(name))
                self._in_margin = False
                inner, self._writer = self._writer, writer
                self._relations, self._after, self._joined = relations, after, joined
                lines = (" ".join(line.split()) for line in inner.text().split("\n"))
                self._margins.add(kind, "\n".join(lines))

    # ------------------------------------------------------------------------------- tables

    def _table(self, table: Element) -> None:
        if self._joined:
            self._writer.paragraph(self._joined.text())
            self._joined = None
        rows = [*self._rows(table)]
        if all(len(cells) < 2 for cells, *_ in rows):
            for cells, *_ in rows:
                for cell in cells:
                    self._inner_blocks(cell)
            return
        shown: list[list[str]] = []
        for cells, before in rows:
            line = [""] * before
            for cell in cells:
                properties = child(cell, "tcPr")
                text = self._cell(cell)
                span, merged = 1, False
                if properties is not None:
                    span = max(1, min(_integer(_value(properties, "gridSpan")) or 1, 100))
                    merge = child(properties, "vMerge")
                    merged = merge is not None and attribute(merge, "val", "continue") != "restart"
                if merged and text and shown:
                    for above in reversed(shown):
                        if len(above) > len(line) and above[len(line)]:
                            above[len(line)] += f" {text}"
                            text = ""
                            break
                line += [text, *[""] * (span - 1)]
            shown.append(line)
        self._writer.table(shown)

    def _rows(self, table: Element) -> Iterator[tuple[list[Element], int]]:
        """Yield the cells of each row, and the number of columns before them."""
        for each in table:
            name = name_of(each)
            if name == "tr":
                properties = child(each, "trPr")
                before = 0
                if properties is not None:
                    if child(properties, "del") is not None:
                        self._changes += 1
                        continue
                    self._changes += child(properties, "ins") is not None
                    before = max(0, min(_integer(_value(properties, "gridBefore")) or 0, 100))
                yield [*_cells(each)], before
            elif name in ("sdt", "sdtContent", "customXml", "ins"):
                yield from self._rows(each)

    def _cell(self, cell: Element) -> str:
        writer, self._writer = self._writer, Writer(self._writer)
        self._inner_blocks(cell)
        inner, self._writer = self._writer, writer
        return inner.text()

    # --------------------------------------------------------------------------------- text

    def _inline(self, element: Element) -> None:
        """Read what stands in a paragraph."""
        name = name_of(element)
        if name == "r":
            self._run(element)
        elif name == "hyperlink":
            self._link(element)
        elif name == "fldSimple":
            self._simple_field(element)
        elif name in ("oMath", "oMathPara"):
            if name == "oMathPara":
                formulas = (linear(each) for each in element if name_of(each) == "oMath")
                self._add("\n".join(formulas))
            else:
                self._add(linear(element))
        elif name == "sdt":
            self._control(element)
        elif name == "AlternateContent":
            for each in self._chosen(element):
                self._inline(each)
        elif name in ("ins", "moveTo"):
            self._changes += 1
            for each in element:
                self._inline(each)
        elif name in ("del", "moveFrom"):
            self._changes += 1
        elif name in _INSIDE:
            for each in element:
                self._inline(each)
        elif name in ("p", "tbl"):
            self._inner_blocks((element,))
        elif name not in _TEXTLESS:
            self._piece(element, "")

    def _add(self, text: str, kind: str = "") -> None:
        """Add text that is shown: not the code of a field."""
        for each in self._fields:
            if not each.in_result or (self._in_margin and each.kind in _PAGE_FIELDS):
                return
        self._line.add(text, kind)

    def _run(self, run: Element) -> None:
        kind = ""
        for each in run:
            name = name_of(each)
            if name == "t":
                self._add(each.text or "", kind)
            elif name == "rPr":
                kind = self._kind(each)
            elif name == "footnoteReference" or name == "endnoteReference":
                if self._note(run, each, f"{name.removesuffix('Reference')}s"):
                    return
            else:
                self._piece(each, kind)

    def _kind(self, properties: Element) -> str:
        raised = hidden = False
        for each in properties:
            name = name_of(each)
            if name == "rStyle":
                style = self._styles.get(attribute(each, "val"), _Style())
                raised, hidden = raised or style.raised, hidden or style.hidden
            elif name == "vertAlign":
                raised = attribute(each, "val") == "superscript"
            elif name == "position":
                raised = raised or (_integer(attribute(each, "val")) or 0) >= 5
            elif name == "vanish":
                hidden = _is_on(each)
        if hidden or self._style.hidden:
            return "hidden"
        return "raised" if raised else ""

    def _piece(self, element: Element, kind: str) -> None:
        """Read what stands in a run beside text."""
        name = name_of(element)
        if name in _BREAKS:
            self._add(_BREAKS[name], kind)
        elif name == "fldChar":
            self._field_mark(element)
        elif name == "instrText":
            if self._fields and not self._fields[-1].in_result:
                self._fields[-1].code += element.text or ""
        elif name == "sym":
            code = attribute(element, "char")
            if re.fullmatch(r"[0-9a-fA-F]{1,6}", code):
                self._add(symbol(attribute(element, "font"), int(code, 16)), kind)
        elif name == "commentReference":
            self._comment(attribute(element, "id"))
        elif name == "ruby":
            self._ruby(element, kind)
        elif name in ("drawing", "pict", "object"):
            self._drawing(element)
        elif name == "AlternateContent":
            for each in self._chosen(element):
                self._piece(each, kind)
        elif name in ("oMath", "sdt", "r"):
            self._inline(element)
        elif name not in _TEXTLESS:
            self._unknown[name] += 1

    def _ruby(self, element: Element, kind: str) -> None:
        texts = {}
        for part in ("rubyBase", "rt"):
            line, self._line = self._line, Line()
            for each in child(element, part) or ():
                self._inline(each)
            inner, self._line = self._line, line
            texts[part] = inner.text()
        self._add(ruby(texts["rubyBase"], texts["rt"]), kind)

    def _chosen(self, element: Element) -> Iterable[Element]:
        """The content of one of several forms: the first with text boxes or drawings."""
        choice, fallback = child(element, "Choice"), child(element, "Fallback")
        if choice is not None and len(choice):
            return choice
        return fallback if fallback is not None else ()

    def _link(self, element: Element) -> None:
        kind, target, external = self._relations.get(attribute(element, "id"), ("", "", False))
        line, self._line = self._line, Line()
        for each in element:
            self._inline(each)
        inner, self._line = self._line, line
        self._line.extend(inner)
        if external and kind == "hyperlink":
            self._add(markdown.address(target, inner.text()))

    def _control(self, element: Element) -> None:
        """Read a field of a form, or other content with properties."""
        box = child(element, "sdtPr", "checkbox")
        if box is not None:
            checked = child(box, "checked")
            self._add(markdown.TICKS[checked is not None and _is_on(checked)])
            return
        for each in child(element, "sdtContent") or ():
            self._inline(each)

    # ------------------------------------------------------------------------------- fields

    def _simple_field(self, element: Element) -> None:
        self._fields.append(_Field(attribute(element, "instr"), in_result=True))
        if not len(element):
            self._end_field(self._fields[-1])
        for each in element:
            self._inline(each)
        self._fields.pop()

    def _field_mark(self, element: Element) -> None:
        kind = attribute(element, "fldCharType")
        if kind == "begin":
            self._fields.append(_Field(form=child(element, "ffData")))
        elif kind == "separate" and self._fields:
            self._fields[-1].in_result = True
        elif kind == "end" and self._fields:
            self._end_field(self._fields.pop())

    def _end_field(self, field: _Field) -> None:
        """Write what the program shows of a field without a result."""
        code, kind, form = field.code.strip(), field.kind, field.form
        if kind == "FORMCHECKBOX" and form is not None:
            box = child(form, "checkBox")
            state = child(box, "checked")
            state = child(box, "default") if state is None else state
            self._add(markdown.TICKS[state is not None and _is_on(state)])
        elif kind == "FORMDROPDOWN" and form is not None:
            choices = child(form, "ddList")
            if choices is not None:
                entries = [attribute(e, "val") for e in choices if name_of(e) == "listEntry"]
                chosen = _integer(_value(choices, "result") or _value(choices, "default")) or 0
                self._add(entries[chosen] if 0 <= chosen < len(entries) else "")
        elif kind == "EQ" and not field.in_result:
            self._add(field_formula(code))
        elif kind == "SYMBOL" and not field.in_result and (found := _SYMBOL_FIELD.match(code)):
            self._add(
                symbol(found[2] or "", int(found[1], 16 if found[1][:2].lower() == "0x" else 10))
            )
        elif kind == "HYPERLINK" and (linked := _LINK_FIELD.match(code)):
            self._add(markdown.address(linked[1], self._line.text()))

    # -------------------------------------------------------------------------------- notes

    def _note(self, run: Element, reference: Element, kind: str) -> bool:
        """Write the mark of a note, and the note. Returns whether the mark was the rest of the
        run."""
        note = self._notes[kind].get(attribute(reference, "id"))
        own = attribute(reference, "customMarkFollows") in ("1", "true", "on")
        if own:
            mark = "".join(each.text or "" for each in run if name_of(each) == "t").strip() or "*"
        else:
            self._counts[kind] += 1
            mark = formatted(self._counts[kind], "decimal" if kind == "footnotes" else "lowerRoman")
        self._add(f"[^{mark}]")
        if note is not None:
            self._writer.note(f"[^{mark}]", self._note_text(note))
        return own

    def _comment(self, id: str) -> None:
        comment = self._notes["comments"].get(id)
        if comment is None:
            return
        self._counts["comments"] += 1
        mark = f"[Comment {self._counts['comments']}]"
        author = " ".join(attribute(comment, "author").split())
        self._add(mark)
        text = self._note_text(comment)
        self._writer.note(mark, f"{author}: {text}" if author else text)

    def _note_text(self, note: Element) -> str:
        fields, self._fields = self._fields, []
        joined, self._joined = self._joined, None
        style = self._style
        text = self._cell(note)
        self._fields, self._joined, self._style = fields, joined, style
        return text

    # ----------------------------------------------------------------------------- drawings

    def _drawing(self, drawing: Element) -> None:
        """Read the text boxes, charts and diagrams of a drawing, and describe a picture."""
        found = [*_outermost(drawing, ("txbxContent", "chart", "relIds"))]
        if self._shown:
            self._after += found
        for each in drawing.iter():
            name = name_of(each)
            shown = ""
            if name == "docPr":
                shown = each.get("descr") or ""
            elif name == "imagedata":
                shown = attribute(each, "title")
            elif name == "shape" and name_of(drawing) == "pict":
                shown = each.get("alt", "")
            if shown.strip():
                self._add(f"[{' '.join(shown.split())}]")
                break

    @property
    def _shown(self) -> bool:
        return all(each.in_result for each in self._fields)

    def _chart(self, element: Element) -> None:
        from app.ingest.charts import chart_lines, diagram_lines

        which = "dm" if name_of(element) == "relIds" else "id"
        _, name, external = self._relations.get(attribute(element, which), ("", "", True))
        if not external:
            root = self._archive.xml(name)
            lines = diagram_lines(root) if which == "dm" else chart_lines(root)
            for block in lines:
                self._writer.block(block)

    def _imported(self, id: str) -> None:
        """Read a document in another format that Word shows here."""
        from app.ingest.text import decode
        from app.ingest.web_page import markup_text

        _, name, external = self._relations.get(id, ("", "", True))
        data = b"" if external else self._archive.read(name)
        text = ""
        if name.endswith((".htm", ".html", ".xhtml")) or data[:200].lstrip()[:1] == b"<":
            text = markup_text(decode(data).text)
        elif name.endswith(".txt"):
            text = decode(data).text
        elif data.startswith(b"{\\rtf"):
            from app.ingest.rtf import rtf_text

            text = rtf_text(data)
        elif data.startswith(b"PK") and self._depth < 2:
            from app.ingest.archive import Archive

            inner = Archive(data)
            inner.refuse_entities()
            main = inner.main("officeDocument", "word/document.xml")
            text = _Reader(inner, main, self._depth + 1).text()
        if text.strip():
            self._writer.block(text.strip("\n"))
        else:
            self._unknown["altChunk"] += 1


def _outermost(element: Element, names: Sequence[str]) -> Iterator[Element]:
    """Yield the elements of these names that are not inside another of them."""
    for each in element:
        name = name_of(each)
        if name in names:
            yield each
        elif name == "AlternateContent":
            choice = child(each, "Choice")
            inner = [] if choice is None else [*_outermost(choice, names)]
            fallback = child(each, "Fallback")
            if not inner and fallback is not None:
                inner = [*_outermost(fallback, names)]
            yield from inner
        else:
            yield from _outermost(each, names)


def _cells(row: Element) -> Iterator[Element]:
    for each in row:
        if name_of(each) == "tc":
            yield each
        elif name_of(each) in ("sdt", "sdtContent", "customXml"):
            yield from _cells(each)


def _style(element: Element, base: _Style | None) -> _Style:
    """What a style adds to the one that it is based on."""
    name = _value(element, "name")
    found = replace(base or _Style(), name=name)
    if heading := _HEADING.fullmatch(name):
        found = replace(found, outline=int(heading[1]) - 1)
    elif name.lower() == "title":
        found = replace(found, outline=0)
    if _CODE.match(name):
        found = replace(found, code=True)
    paragraph, characters = child(element, "pPr"), child(element, "rPr")
    if (level := child(paragraph, "outlineLvl")) is not None:
        found = replace(found, outline=_integer(attribute(level, "val")))
    if (numbers := child(paragraph, "numPr")) is not None and (id := _value(numbers, "numId")):
        found = replace(found, list=id)
    if (align := child(characters, "vertAlign")) is not None:
        found = replace(found, raised=attribute(align, "val") == "superscript")
    if (vanish := child(characters, "vanish")) is not None:
        found = replace(found, hidden=_is_on(vanish))
    return found


def _by_id(root: Element) -> dict[str, Element]:
    return {attribute(each, "id"): each for each in root}


def _value(element: Element | None, name: str) -> str:
    found = child(element, name)
    return "" if found is None else attribute(found, "val")


def _integer(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdecimal() and len(text) < 10 else None


def _is_on(element: Element) -> bool:
    return attribute(element, "val", "1").lower() not in ("0", "false", "off", "none")

"""Reads Rich Text: what a program shows of it, in the order of its text.

Tracked changes are read as accepted. Numbers of lists are in the text of most files; in others they
are counted, as programs count them when they show the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from xml.etree.ElementTree import Element, SubElement

from app.ingest import markdown
from app.ingest.formulas import field_formula, linear
from app.ingest.list_numbers import formatted
from app.ingest.markdown import Line, Writer
from app.ingest.parts import Part, changes_said
from app.ingest.rtf_head import Fonts, Lists, Styles, item_mark
from app.ingest.rtf_state import (
    NO_LOOK,
    NO_PARAGRAPH,
    UNDEFINED,
    Field,
    Flow,
    Group,
    Look,
    Paragraph,
)
from app.ingest.rtf_tables import Block, RowShape, written
from app.ingest.symbols import symbol
from app.ingest.text import whole_characters
from app.util import formatting

_TOKEN = re.compile(
    rb"\\([a-zA-Z]{1,32})(-?[0-9]{1,10})?[0-9]* ?|\\'([0-9a-fA-F]{2})|\\(.)"
    rb"|([{}])|[\r\n]+|([^\\{}\r\n]+)",
    re.DOTALL,
)
_SKIPPED_TOKEN = re.compile(
    rb"\\bin(?![a-zA-Z])([0-9]{1,10})?[0-9]* ?|\\.|([{}])|[^\\{}]+", re.DOTALL
)
_MAX_GROUPS = 1000
_MAX_FLOWS = 8
"""Groups, and notes and boxes inside each other, that are nested deeper are not read."""
_SKIPPED = frozenset(
    b"aftncn aftnsep aftnsepc atndate atnicn atnid atnparent atnref atntime bkmkend bkmkstart"
    b" colorschememapping colortbl datafield datastore fchars ffdeftext ffentrymcr ffexitmcr"
    b" ffformat ffhelptext ffname ffstattext filetbl ftncn ftnsep ftnsepc generator info keycode"
    b" latentstyles lchars mmathPict mmathPr nonesttables nonshppict objalias objclass objname"
    b" objsect objtime panose private revtbl rsidtbl rxe shprslt tc tcn themedata txe xe"
    b" xmlnstbl".split()
)
"""Groups without text of the document."""
_SPECIAL = {
    b"line": "\n", b"lbr": "\n", b"page": "\n", b"column": "\n", b"tab": "\t",
    b"emdash": "—", b"endash": "–", b"bullet": "•", b"lquote": "‘", b"rquote": "’",
    b"ldblquote": "“", b"rdblquote": "”", b"emspace": " ", b"enspace": " ", b"qmspace": " ",
    b"zwj": "\u200d", b"zwnj": "\u200c", b"ltrmark": "\u200e", b"rtlmark": "\u200f",
}  # fmt: skip
_ESCAPED = {b"~": "\xa0", b"_": "\u2011", b"\t": "\t"}
_BODY_LEVEL = 9
"""The outline level of text that is no heading."""
_TYPED_MARK = re.compile(r"\s*([•◦▪‣●○■·*–—-]|\(?[\w.]{1,8}[.)])\t\s*")
"""The mark of an item that is not marked as one, as pandoc writes it."""
_LINK_FIELD = re.compile(r'HYPERLINK\s+"([^"]+)"', re.IGNORECASE)
_SYMBOL_FIELD = re.compile(
    r'SYMBOL\s+(?:0x([0-9a-f]{1,6})|(\d{1,7}))(?:.*\\f\s+"?([^"\\]+))?', re.IGNORECASE
)
_PAGE_FIELDS = ("PAGE", "NUMPAGES", "SECTIONPAGES")
_BOX, _CHOICE = 1, 2
"""Kinds of fields of forms."""
_NOTE_NUMBERS = {
    b"ar": "decimal", b"alc": "lowerLetter", b"auc": "upperLetter", b"rlc": "lowerRoman",
    b"ruc": "upperRoman",
}  # fmt: skip
_SHOWN_PROPERTIES = {"wzDescription": "[{}]", "gtextUNICODE": "{}"}
"""Properties of shapes that are text: the description, and the letters of WordArt."""
_MAX_SHOWN = 100
_MIN_RAISED = 5
"""How far text is raised, in halves of a point, if it is raised like a figure."""


def rtf_text(data: bytes, check: Callable[[], None] = lambda: None) -> str:
    """The text of a file. `check` is called regularly, and may raise."""
    return read_rtf(data, check).text


def read_rtf(data: bytes, check: Callable[[], None] = lambda: None) -> Part:
    """Read a file. `check` is called regularly, and may raise."""
    reader = _Reader(data, check)
    return Part("", reader.text(), said=tuple(reader.said()))


class _Reader:
    """Reads a file once."""

    def __init__(self, data: bytes, check: Callable[[], None]) -> None:
        self._data, self._at, self._check = data, 0, check
        self._last_word = data.rfind(b"\\")
        self._group = Group()
        self._outer: list[Group] = []
        self._ends: list[tuple[int, Callable[[Group], None]]] = []
        """What to do at the ends of groups, with the number of groups around them."""
        self._star = False
        """Whether the next word begins a group that may be skipped."""
        self._opened = False
        """Whether a group was just opened, and may still become one without text."""
        self._is_alternative = False
        """Whether the next group is an older form of the one after it."""
        self._bytes = bytearray()
        """Bytes that are not decoded yet, because a character may have two."""
        self._to_skip = 0
        self._fonts, self._styles, self._lists = Fonts(), Styles(), Lists()
        self._tables: dict[str, Fonts | Lists] = {"fonts": self._fonts, "lists": self._lists}
        self._name: list[str] = []
        """Of a font or style that is being read."""
        self._marked: set[int] = set()
        """Lists whose marks the file gives."""
        self._writer = Writer()
        self._flow = Flow(lambda block: block(self._writer))
        self._flows = 1
        self._shape = self._inner_shape = RowShape()
        """Of rows of tables, and of tables in tables."""
        self._fields: list[Field] = []
        self._property = ""
        """The name of a property of a shape."""
        self._author = ""
        self._margins = markdown.Margins()
        self._counts: Counter[str] = Counter()
        self._note_numbers = {"footnote": "decimal", "endnote": "lowerRoman"}
        self._change = (False, False)
        self._changes = self._embedded = self._unknown_boxes = 0
        self._too_deep = False

    def text(self) -> str:
        while (token := _TOKEN.match(self._data, self._at)) is not None:
            self._check()
            self._at = token.end()
            word, number, code, sign, brace, plain = token.groups()
            if word is not None:
                self._control(word, None if number is None else int(number))
            elif plain is not None:
                self._opened = self._opened and plain.isspace()
                self._add(plain)
            elif brace is not None:
                self._brace(brace)
            elif code is not None:
                self._add(bytes([int(code, 16)]))
            elif sign is not None:
                self._escape(sign)
        self._close()
        while self._outer:
            self._close()
        return whole_characters(self._margins.around(self._writer.text()))

    def said(self) -> Iterator[tuple[str, str]]:
        """What a reader must know of the text."""
        if self._changes:
            yield changes_said(self._changes)
        if self._unknown_boxes:
            boxes = formatting.plural(self._unknown_boxes, "form field")
            yield f"has {boxes} of unknown state", "save the original as DOCX or PDF"
        if self._embedded:
            files = formatting.plural(self._embedded, "embedded file")
            yield f"has {files} that cannot be read", "save each as a file of its own"
        if self._too_deep:
            yield "is nested too deeply to be read completely", "save it as DOCX or PDF"

    # ------------------------------------------------------------------------------- groups

    def _brace(self, brace: bytes) -> None:
        if brace == b"}":
            if self._outer:
                self._close()
            if not self._outer and self._at > self._last_word:
                self._at = len(self._data)  # bytes after the end
            return
        self._decode()
        self._star, self._to_skip, self._opened = False, 0, True
        if self._is_alternative or len(self._outer) >= _MAX_GROUPS:
            self._too_deep = self._too_deep or not self._is_alternative
            self._is_alternative = False
            self._skip_group()
            self._at += 1
        else:
            self._outer.append(self._group)

    def _close(self) -> None:
        self._decode()
        self._star, self._to_skip, self._opened = False, 0, False
        inner = self._group
        self._group = self._outer.pop() if self._outer else self._group
        while self._ends and (self._ends[-1][0] > len(self._outer) or not self._outer):
            self._ends.pop()[1](inner)
        if not self._outer:
            self._finish(self._flow, inner)

    def _at_end(self, do: Callable[[Group], None]) -> None:
        """Do something at the end of this group."""
        self._ends.append((len(self._outer), do))

    def _skip_group(self) -> None:
        """Go to the end of the innermost group."""
        depth = 0
        while (token := _SKIPPED_TOKEN.match(self._data, self._at)) is not None:
            self._check()
            if token[2] == b"}" and depth == 0:
                break
            self._at = token.end() + int(token[1] or 0)
            depth += (token[2] == b"{") - (token[2] == b"}")

    def _modify(self, **changes: object) -> None:
        self._decode()
        self._group = replace(self._group, **changes)  # type: ignore[arg-type]

    def _collect(self, then: Callable[[str], None]) -> None:
        """Give the text of this group to a function, at its end."""
        text: list[str] = []
        look = Look(self._group.look.font)
        self._modify(destination="text", text=text, formula=None, look=look)
        self._at_end(lambda _: then("".join(text)))

    def _apart(self, then: Callable[[list[Block], Flow], None], is_margin: bool = False) -> None:
        """Read this group as a text of its own, and give its blocks to a function."""
        if self._group.look.deleted or self._group.destination or self._flows > _MAX_FLOWS:
            self._too_deep = self._too_deep or self._flows > _MAX_FLOWS
            self._skip_group()
            return
        outer, blocks = self._flow, list[Block]()
        look = Look(self._group.look.font)
        self._modify(paragraph=NO_PARAGRAPH, look=look)
        self._flow = inner = Flow(blocks.append, is_margin or outer.is_margin)
        self._flows += 1

        def end(group: Group) -> None:
            self._finish(inner, group)
            self._flow = outer
            self._flows -= 1
            then(blocks, inner)

        self._at_end(end)

    # ----------------------------------------------------------------------- words and text

    def _control(self, word: bytes, value: int | None) -> None:
        star, self._star = self._star, False
        group = self._group
        if word in _SPECIAL:
            self._opened = False
            if self._to_skip:
                self._to_skip -= 1
            else:
                self._write(_SPECIAL[word])
        elif group.destination in self._tables and word in self._tables[group.destination].WORDS:
            self._tables[group.destination].word(word, value or 0)
        elif word in _LOOKS:
            name, changed = _LOOKS[word]
            look = replace(group.look, **{name: changed(value)})
            if look != group.look:
                self._modify(look=look)
        elif word in _PARAGRAPHS:
            paragraph = replace(group.paragraph, **{_PARAGRAPHS[word]: value or 0})
            if paragraph != group.paragraph:
                self._modify(paragraph=paragraph)
        elif word in _WORDS:
            _WORDS[word](self, value)
        elif (star or word in _SKIPPED) and self._opened:
            self._skip_group()
        elif group.formula is not None and word[:1] == b"m":
            self._formula_part(word[1:].decode())
        elif note := _NOTE_WORD.fullmatch(word):
            self._note_numbers["endnote" if note[1] else "footnote"] = _NOTE_NUMBERS[note[2]]

    def _escape(self, sign: bytes) -> None:
        if sign == b"*":
            self._star = self._opened
        elif sign in b"\\{}":
            self._opened = False
            self._add(sign)
        elif sign in b"\r\n":
            self._end_paragraph(None)
        elif sign in _ESCAPED:
            self._write(_ESCAPED[sign])

    def _add(self, data: bytes) -> None:
        """Add text that is not decoded."""
        skipped = min(self._to_skip, len(data))
        self._to_skip -= skipped
        if self._group.destination != "nothing":
            self._bytes += data[skipped:]

    def _decode(self) -> None:
        if not self._bytes:
            return
        text = self._fonts.decoded(self._bytes, self._group.look.font)
        self._bytes.clear()
        self._put(text)

    def _unicode(self, value: int | None) -> None:
        self._write(self._fonts.character((value or 0) % 0x10000, self._group.look.font))
        self._to_skip = self._group.fallback

    def _write(self, text: str) -> None:
        self._decode()
        self._to_skip = 0
        self._put(text)

    def _put(self, text: str) -> None:
        """Add text to what the group is."""
        group = self._group
        if group.text is not None:
            group.text.append(text)
        elif not group.destination:
            self._show(text)
        elif group.formula is not None:
            if "val" in group.formula.attrib:
                group.formula.attrib["val"] = (group.formula.attrib["val"] + text)[:20]
            else:
                SubElement(group.formula, "t").text = text
        elif group.destination in ("fonts", "styles"):
            self._name.append(text)
            if ";" in text:
                self._define("".join(self._name).partition(";")[0].strip())
                self._name.clear()

    def _show(self, text: str) -> None:
        """Add text to the paragraph."""
        look = self._group.look
        self._note_change(look)
        if look.deleted:
            return
        kind = "hidden" if look.hidden else "raised" if look.raised else ""
        self._flow.line.add(text, kind)
        if self._fields and len(self._fields[-1].shown) < _MAX_SHOWN:
            self._fields[-1].shown.append(text)

    def _note_change(self, look: Look) -> None:
        change = look.deleted, look.revised
        if change != self._change:
            self._change = change
            self._changes += any(change)

    # ------------------------------------------------------------------ the head of the file

    def _define(self, name: str) -> None:
        """Keep a font or style whose name is known now."""
        if self._group.destination == "fonts":
            self._fonts.define(name)
        else:
            style = self._group.paragraph
            self._styles.add(style.style, name, style.based, style.outline)

    def _use_font(self, value: int | None) -> None:
        if value != self._group.look.font:
            self._modify(look=replace(self._group.look, font=value or 0))

    def _style_list(self, _: int | None) -> None:
        self._modify(destination="styles", paragraph=NO_PARAGRAPH)

    def _other_style(self, _: int | None) -> None:
        if self._group.destination == "styles":
            self._skip_group()

    def _begin_file(self, _: int | None) -> None:
        self._opened = False

    # --------------------------------------------------------------------------- paragraphs

    def _end_paragraph(self, _: int | None) -> None:
        self._decode()
        self._opened = False
        if self._group.destination:
            self._put(" ")
            return
        look = self._group.look
        if look.deleted or look.revised:
            self._note_change(look)
        if not look.deleted:
            paragraph = self._group.paragraph
            self._write_paragraph(self._flow, paragraph, paragraph.table or self._flow.in_row)

    def _finish(self, flow: Flow, group: Group) -> None:
        """End a text whose last paragraph or row may have no end."""
        if flow.line or flow.mark or flow.after:
            self._write_paragraph(flow, group.paragraph, group.paragraph.table or flow.in_row)
        flow.blocks.close()

    def _write_paragraph(self, flow: Flow, paragraph: Paragraph, level: int) -> None:
        text = whole_characters(flow.line.text())
        mark = None if flow.mark is None else item_mark(flow.mark)
        flow.line, flow.mark, flow.has_note_mark = Line(), None, False
        if paragraph.list and mark is not None:
            self._marked.add(paragraph.list)
        elif paragraph.list not in self._marked and paragraph.list and text.strip():
            mark = self._lists.next(paragraph.list, paragraph.level)
        flow.blocks.put(self._block(flow, paragraph, mark, text), level)
        after, flow.after = flow.after, []
        for each in after:
            flow.blocks.put(each, level)

    def _block(self, flow: Flow, paragraph: Paragraph, mark: str | None, text: str) -> Block | None:
        """How a paragraph is written; None if it is empty."""
        style = self._styles.get(paragraph.style)
        outline = style.outline if paragraph.outline is None else paragraph.outline
        is_heading = outline is not None and outline < _BODY_LEVEL
        if not text.strip() and (is_heading or not mark):
            return partial(Writer.code, text="") if style.code else None
        if outline is not None and is_heading:
            number = mark if mark and mark[0] != "-" else ""
            return partial(Writer.heading, level=outline + 1, text=f"{number} {text}")
        if style.code:
            return partial(Writer.code, text=text)
        if mark is None and paragraph.first < 0 and (typed := _TYPED_MARK.match(text)):
            mark, text = item_mark(typed[1]), text[typed.end() :]
        goes_on = mark is None and paragraph.list in self._marked and flow.indents
        if not mark and not goes_on:
            flow.indents.clear()
            return partial(Writer.paragraph, text=text)
        depth = flow.depth(paragraph.left, paragraph.level if paragraph.list else 0)
        return partial(Writer.item, depth=depth, mark=mark or "", text=text)

    def _plain(self, _: int | None) -> None:
        self._modify(look=NO_LOOK)

    def _default_paragraph(self, _: int | None) -> None:
        self._modify(paragraph=NO_PARAGRAPH)
        self._flow.in_row = False

    def _item_text(self, _: int | None) -> None:
        flow = self._flow
        if self._group.destination:
            self._skip_group()
            return

        def end(mark: str) -> None:
            flow.mark = mark

        self._collect(end)

    # ------------------------------------------------------------------------------- tables

    def _in_table(self, _: int | None) -> None:
        if not self._group.paragraph.table:
            self._modify(paragraph=replace(self._group.paragraph, table=1))

    def _begin_row(self, _: int | None) -> None:
        if self._group.destination == "row":
            self._inner_shape = RowShape()
        elif not self._group.destination:
            self._shape = RowShape()
            self._flow.in_row = True

    def _row_shape(self, value: int | None, word: str = "") -> None:
        shape = self._inner_shape if self._group.destination == "row" else self._shape
        shape.word(word, value or 0)

    def _end_cell(self, _: int | None, level: int = 1) -> None:
        if self._group.destination:
            return
        self._decode()
        flow = self._flow
        level = level if level == 1 else max(level, self._group.paragraph.table)
        if flow.line or flow.mark or flow.after:
            self._write_paragraph(flow, self._group.paragraph, level)
        flow.blocks.end_cell(level)

    def _end_row(self, _: int | None) -> None:
        if self._group.destination:
            return
        self._decode()
        if self._flow.line.text().strip():
            self._end_cell(None)
        self._flow.line = Line()
        self._flow.blocks.end_row(1, self._shape)
        self._flow.in_row = False

    def _end_inner_row(self, _: int | None) -> None:
        if self._group.destination in ("", "row"):
            self._flow.blocks.end_row(2, self._inner_shape)

    # ------------------------------------------------------------------------------- fields

    def _begin_field(self, _: int | None) -> None:
        self._fields.append(Field())
        self._at_end(lambda _: self._end_field())

    def _field_code(self, _: int | None) -> None:
        if not self._fields:
            self._skip_group()
            return
        current = self._fields[-1]

        def end(code: str) -> None:
            current.code = code.strip()

        self._collect(end)

    def _field_result(self, _: int | None) -> None:
        if not self._fields:
            return
        current = self._fields[-1]
        is_page = self._flow.is_margin and current.kind in _PAGE_FIELDS
        if is_page or current.form in (_BOX, _CHOICE):
            self._skip_group()

    def _end_field(self) -> None:
        """Write what a program shows of a field without a result."""
        current = self._fields.pop()
        code, kind = current.code, current.kind
        shown = "".join(current.shown)
        own = ""
        if current.form in (_BOX, _CHOICE):
            number = current.default if current.result == UNDEFINED else current.result
            entries = current.entries
            chosen = entries[number] if 0 <= number < len(entries) else ""
            own = markdown.TICKS[number == 1] if current.form == _BOX else chosen
        elif kind == "HYPERLINK" and (linked := _LINK_FIELD.match(code)):
            own = markdown.address(linked[1], shown)
        elif shown.strip():
            pass
        elif kind == "EQ":
            own = field_formula(code)
        elif kind == "SYMBOL" and (found := _SYMBOL_FIELD.match(code)):
            sign = int(found[1], 16) if found[1] else int(found[2])
            own = symbol(found[3] or "", sign)
        elif kind == "FORMCHECKBOX":
            self._unknown_boxes += 1
        if self._fields and not self._group.destination:
            outer = self._fields[-1].shown
            outer += current.shown[: _MAX_SHOWN - len(outer)]
        if own:
            self._write(own)

    def _form(self, value: int | None, name: str = "") -> None:
        """A property of a form's field."""
        if self._fields:
            setattr(self._fields[-1], name, value or 0)

    def _form_entry(self, _: int | None) -> None:
        if self._fields:
            self._collect(self._fields[-1].entries.append)

    # ----------------------------------------------------------------------- notes, margins

    def _note_mark(self, _: int | None) -> None:
        if not self._group.destination and not self._group.look.deleted:
            self._flow.has_note_mark = True

    def _endnote(self, _: int | None) -> None:
        self._flow.is_endnote = True

    def _note(self, _: int | None) -> None:
        outer = self._flow

        def end(blocks: list[Block], flow: Flow) -> None:
            text = written(self._writer, blocks).strip()
            mark = "" if outer.has_note_mark else outer.line.take_raised().strip()
            outer.has_note_mark = False
            if mark:
                text = text.removeprefix(mark).lstrip().removeprefix(mark)
            else:
                kind = "endnote" if flow.is_endnote else "footnote"
                self._counts[kind] += 1
                mark = formatted(self._counts[kind], self._note_numbers[kind])
            outer.line.add(f"[^{mark}]")
            outer.after.append(partial(Writer.note, mark=f"[^{mark}]", text=text))

        self._apart(end)

    def _first_note(self, value: int | None, kind: str = "") -> None:
        self._counts[kind] = max(1, value or 1) - 1

    def _comment_author(self, _: int | None) -> None:
        def end(name: str) -> None:
            self._author = " ".join(name.split())

        self._collect(end)

    def _comment(self, _: int | None) -> None:
        outer = self._flow

        def end(blocks: list[Block], flow: Flow) -> None:
            self._counts["comment"] += 1
            mark = f"[Comment {self._counts['comment']}]"
            text = written(self._writer, blocks).strip()
            author, self._author = self._author, ""
            outer.line.add(mark)
            shown = f"{author}: {text}" if author else text
            outer.after.append(partial(Writer.note, mark=mark, text=shown))

        self._apart(end)

    def _margin(self, _: int | None, kind: str = "") -> None:
        def end(blocks: list[Block], flow: Flow) -> None:
            self._margins.add(kind, written(self._writer, blocks))

        self._apart(end, is_margin=True)

    # ------------------------------------------------------------ boxes, pictures, formulas

    def _box(self, _: int | None) -> None:
        outer = self._flow
        self._apart(lambda blocks, _: outer.after.extend(blocks))

    def _picture(self, _: int | None) -> None:
        self._modify(destination="nothing", text=None, formula=None)

    def _property_name(self, _: int | None) -> None:
        def end(name: str) -> None:
            self._property = name.strip()

        self._collect(end)

    def _property_value(self, _: int | None) -> None:
        shown = _SHOWN_PROPERTIES.get(self._property)
        if shown is None:
            self._skip_group()
            return
        template = shown

        def end(text: str) -> None:
            if line := " ".join(text.split()):
                self._show(template.format(line))

        self._collect(end)

    def _object_data(self, _: int | None) -> None:
        self._embedded += 1
        self._skip_group()

    def _alternatives(self, _: int | None) -> None:
        self._is_alternative = True

    def _formula(self, _: int | None) -> None:
        root = Element("oMath")
        if self._group.destination in ("", "text"):
            self._modify(destination="formula", text=None, formula=root)
            self._at_end(lambda _: self._write(linear(root)))

    def _formula_part(self, name: str) -> None:
        """Begin a part of a formula, if this group is one."""
        around = self._group.formula
        if around is not None and self._outer and self._outer[-1].formula is around:
            part = SubElement(around, name)
            if around.tag.endswith("Pr"):
                part.set("val", "")
            self._modify(formula=part)

    # -------------------------------------------------------------------------------- other

    def _binary(self, value: int | None) -> None:
        self._at += max(0, value or 0)
        self._to_skip = max(0, self._to_skip - 1)

    def _fallback(self, value: int | None) -> None:
        self._modify(fallback=max(0, value or 0))

    def _become(self, _: int | None, destination: str = "") -> None:
        """What text in this group is."""
        if not self._group.destination:
            self._modify(destination=destination)

    def _nothing(self, _: int | None) -> None:
        """The group is read like the text around it."""


def _is_on(value: int | None) -> bool:
    return value != 0


def _off(_: int | None) -> bool:
    return False


_LOOKS: dict[bytes, tuple[str, Callable[[int | None], bool]]] = {
    b"v": ("hidden", _is_on), b"deleted": ("deleted", _is_on), b"mvf": ("deleted", _is_on),
    b"revised": ("revised", _is_on), b"mvt": ("revised", _is_on), b"super": ("raised", _is_on),
    b"up": ("raised", lambda value: value is None or value >= _MIN_RAISED),
    b"sub": ("raised", _off), b"nosupersub": ("raised", _off), b"dn": ("raised", _off),
}  # fmt: skip
"""What words say of characters."""
_PARAGRAPHS = {
    b"s": "style", b"sbasedon": "based", b"outlinelevel": "outline", b"itap": "table",
    b"ls": "list", b"ilvl": "level", b"li": "left", b"fi": "first",
}  # fmt: skip
"""What words say of paragraphs, or of styles."""
_NOTE_WORD = re.compile(rb"s?(a?)ftnn(ar|alc|auc|rlc|ruc)")
_R = _Reader
_WORDS: dict[bytes, Callable[[_Reader, int | None], None]] = {
    b"u": _R._unicode, b"uc": _R._fallback, b"bin": _R._binary, b"upr": _R._alternatives,
    b"par": _R._end_paragraph, b"sect": _R._end_paragraph,
    b"pard": _R._default_paragraph, b"plain": _R._plain, b"f": _R._use_font,
    b"rtf": _R._begin_file, b"fonttbl": partial(_R._become, destination="fonts"),
    b"deff": lambda reader, value: reader._fonts.set_default(value or 0),
    b"ansicpg": lambda reader, value: reader._fonts.set_encoding(f"cp{value}"),
    b"mac": lambda reader, _: reader._fonts.set_encoding("mac_roman"),
    b"pc": lambda reader, _: reader._fonts.set_encoding("cp437"),
    b"pca": lambda reader, _: reader._fonts.set_encoding("cp850"),
    b"stylesheet": _R._style_list, b"cs": _R._other_style, b"ds": _R._other_style,
    b"listtable": partial(_R._become, destination="lists"),
    b"listoverridetable": partial(_R._become, destination="lists"),
    b"leveltext": lambda reader, _: reader._collect(reader._lists.pattern),
    b"listtext": _R._item_text, b"pntext": _R._item_text,
    b"intbl": _R._in_table, b"trowd": _R._begin_row, b"cell": _R._end_cell, b"row": _R._end_row,
    b"nestcell": partial(_R._end_cell, level=2), b"nestrow": _R._end_inner_row,
    b"nesttableprops": partial(_R._become, destination="row"),
    **{word.encode(): partial(_R._row_shape, word=word) for word in RowShape.WORDS},
    b"field": _R._begin_field, b"fldinst": _R._field_code, b"fldrslt": _R._field_result,
    b"fftype": partial(_R._form, name="form"), b"ffres": partial(_R._form, name="result"),
    b"ffdefres": partial(_R._form, name="default"), b"ffl": _R._form_entry,
    b"chftn": _R._note_mark, b"footnote": _R._note, b"ftnalt": _R._endnote,
    b"ftnstart": partial(_R._first_note, kind="footnote"),
    b"aftnstart": partial(_R._first_note, kind="endnote"),
    b"atnauthor": _R._comment_author, b"annotation": _R._comment,
    **{
        b"%s%s" % (kind.encode(), pages): partial(_R._margin, kind=kind)
        for kind in ("header", "footer") for pages in (b"", b"l", b"r", b"f")
    },
    b"shptxt": _R._box, b"dptxbxtext": _R._box, b"pict": _R._picture,
    b"sn": _R._property_name, b"sv": _R._property_value, b"objdata": _R._object_data,
    b"moMath": _R._formula,
    **dict.fromkeys(
        b"do formfield moMathPara picprop result shp shpinst shppict ud".split(), _R._nothing
    ),
}  # fmt: skip
"""What is done at other words."""

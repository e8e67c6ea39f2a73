"""Reads Rich Text: what a program shows of it, in the order of its text.

Tracked changes are read as accepted. Numbers of lists are in the text of most files; in others they
are counted, as programs count them when they show the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from app.ingest import markdown
from app.ingest.formulas import field_formula
from app.ingest.list_numbers import formatted
from app.ingest.markdown import Line, Writer
from app.ingest.parts import Part, changes_said
from app.ingest.rtf_flow import Block, Flow, RowShape, written
from app.ingest.rtf_head import (
    NO_FONT,
    NOTHING,
    Collected,
    Destination,
    Fonts,
    Formula,
    Lists,
    Styles,
    item_mark,
)
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
_UNDEFINED = 25
"""The result of a form's field that still has its default."""
_SHOWN_PROPERTIES = {"wzDescription": "[{}]", "gtextUNICODE": "{}"}
"""Properties of shapes that are text: the description, and the letters of WordArt."""
_MAX_SHOWN = 1000
"""Pieces of a field's text, and characters of each, that are compared with its code."""
_MIN_RAISED = 5
"""How far text is raised, in halves of a point, if it is raised like a figure."""


def rtf_text(data: bytes, check: Callable[[], None] = lambda: None) -> str:
    """The text of a file. `check` is called regularly, and may raise."""
    return read_rtf(data, check).text


def read_rtf(data: bytes, check: Callable[[], None] = lambda: None) -> Part:
    """Read a file. `check` is called regularly, and may raise."""
    reader = _Reader(data, check)
    return Part("", reader.text(), said=tuple(reader.said()))


@dataclass(slots=True)
class _Group:
    """State within a pair of braces."""

    destination: Destination | None = None
    """None: the text of the document."""
    fallback: int = 1
    """Number of fallback characters after a Unicode character, for programs that cannot show it."""
    look: dict[str, int] = field(default_factory=dict)
    """How characters are formatted: `font`, `hidden`, `raised`, `deleted`, `revised`."""
    paragraph: dict[str, int] = field(default_factory=dict)
    """How paragraphs are formatted, by the words for it. Never changed, only replaced, as `look`"""
    ends: list[Callable[[], None]] = field(default_factory=list)
    """What to do at the end of the group, the last first."""


@dataclass(slots=True)
class _Field:
    start: int
    """How many pieces of text were shown before it."""
    code: str = ""
    form: dict[str, int] = field(default_factory=dict)
    """Properties of a form's field, by the words for them."""
    entries: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The first word of its code, such as `PAGE`."""
        return next(iter(self.code.split(None, 1)), "").upper()

    def form_text(self) -> str | None:
        """What a form's box or choice shows; None for others."""
        result = self.form.get("ffres", _UNDEFINED)
        number = self.form.get("ffdefres", 0) if result == _UNDEFINED else result
        kind = self.form.get("fftype")
        if kind == _BOX:
            return markdown.TICKS[number == 1]
        if kind == _CHOICE:
            return self.entries[number] if 0 <= number < len(self.entries) else ""
        return None

    def text(self, shown: str) -> str:
        """What a program shows beside the result that it has `shown`."""
        code, kind = self.code, self.kind
        if kind == "HYPERLINK" and (linked := _LINK_FIELD.match(code)):
            return markdown.address(linked[1], shown)
        if shown.strip():
            return ""
        if kind == "EQ":
            return field_formula(code)
        if kind == "SYMBOL" and (found := _SYMBOL_FIELD.match(code)):
            return symbol(found[3] or "", int(found[1], 16) if found[1] else int(found[2]))
        return ""


class _Reader:
    """Reads a file once."""

    def __init__(self, data: bytes, check: Callable[[], None]) -> None:
        self._data, self._at, self._check = data, 0, check
        self._last_word = data.rfind(b"\\")
        self._group = _Group()
        self._outer: list[_Group] = []
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
        self._marked: set[int] = set()
        """Lists whose marks the file gives."""
        self._writer = Writer()
        self._flow = Flow(lambda block: block(self._writer))
        self._flows = 1
        self._row = RowShape()
        self._fields: list[_Field] = []
        self._shown: list[str] = []
        """Texts since the outermost field began."""
        self._property = ""
        """The name of a property of a shape."""
        self._author = ""
        self._margins = markdown.Margins()
        self._counts: Counter[str] = Counter()
        self._note_formats = {"footnote": "decimal", "endnote": "lowerRoman"}
        self._first_notes: Counter[str] = Counter()
        self._restarting: set[str] = set()
        """Kinds of notes that are counted in each section."""
        self._change = (0, 0)
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
        while self._outer:
            self._close()
        self._close()
        self._finish(self._flow, self._group)
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
            elif self._at > self._last_word:
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
            group = self._group
            self._outer.append(group)
            self._group = _Group(group.destination, group.fallback, group.look, group.paragraph)

    def _begin_file(self) -> None:
        """The group of the whole file is the outermost one."""
        self._opened = False
        if len(self._outer) == 1:
            self._outer.clear()

    def _close(self) -> None:
        self._decode()
        self._star, self._to_skip, self._opened = False, 0, False
        inner = self._group
        if self._outer:
            self._group = self._outer.pop()
        while inner.ends:
            inner.ends.pop()()

    def _skip_group(self) -> None:
        """Go to the end of the innermost group."""
        depth = 0
        while (token := _SKIPPED_TOKEN.match(self._data, self._at)) is not None:
            self._check()
            if token[2] == b"}" and depth == 0:
                break
            self._at = token.end() + int(token[1] or 0)
            depth += (token[2] == b"{") - (token[2] == b"}")

    def _become(self, destination: Destination) -> None:
        """Put what is in this group there."""
        self._decode()
        self._group.destination = destination

    def _collect(self, then: Callable[[str], None]) -> None:
        """Give the text of this group to a function, at its end."""
        collected = Collected()
        self._become(collected)
        self._group.look = {"font": self._font}
        self._group.ends.append(lambda: then(collected.text()))

    def _apart(self, then: Callable[[Flow, list[Block]], None], is_margin: bool = False) -> None:
        """Read this group as a text of its own, and give its blocks to a function."""
        group, outer = self._group, self._flow
        if self._flows > _MAX_FLOWS or group.destination is not None or group.look.get("deleted"):
            self._too_deep = self._too_deep or self._flows > _MAX_FLOWS
            self._skip_group()
            return
        self._decode()
        group.look = {"font": self._font}
        group.paragraph = {}
        blocks: list[Block] = []
        self._flow = inner = Flow(blocks.append, is_margin or outer.is_margin)
        self._flows += 1

        def end() -> None:
            self._finish(inner, group)
            self._flow = outer
            self._flows -= 1
            then(inner, blocks)

        group.ends.append(end)

    # ----------------------------------------------------------------------- words and text

    def _control(self, word: bytes, value: int | None) -> None:
        star, self._star = self._star, False
        destination = self._group.destination
        if destination is not None:
            self._decode()
            if destination.word(word, value or 0):
                return
        if (setting := _SETTINGS.get(word)) is not None:
            setting(self, value)
        elif (action := _ACTIONS.get(word)) is not None:
            action(self)
        elif not self._opened or word in _TRANSPARENT:
            pass
        elif star or word in _SKIPPED:
            self._skip_group()
        elif isinstance(destination, Formula) and word[:1] == b"m":
            self._opened = False
            destination.begin(word[1:].decode())
            self._group.ends.append(destination.end)

    def _escape(self, sign: bytes) -> None:
        if sign == b"*":
            self._star = self._opened
        elif sign in b"\\{}":
            self._opened = False
            self._add(sign)
        elif sign in b"\r\n":
            self._end_paragraph()
        elif sign in _ESCAPED:
            self._special(_ESCAPED[sign])

    def _special(self, text: str) -> None:
        """Add a character that has a word, unless it is in place of a Unicode character."""
        self._opened = False
        if self._to_skip:
            self._to_skip -= 1
        else:
            self._write(text)

    def _unicode(self, value: int | None) -> None:
        self._write(self._fonts.character((value or 0) % 0x10000, self._font))
        self._to_skip = self._group.fallback

    def _fallback(self, value: int | None) -> None:
        self._group.fallback = max(0, value or 0)

    def _binary(self, value: int | None) -> None:
        self._at += max(0, value or 0)
        self._to_skip = max(0, self._to_skip - 1)

    def _add(self, data: bytes) -> None:
        """Add text that is not decoded."""
        skipped = min(self._to_skip, len(data))
        self._to_skip -= skipped
        if self._group.destination is not NOTHING:
            self._bytes += data[skipped:]

    def _decode(self) -> None:
        if self._bytes:
            text = self._fonts.decoded(self._bytes, self._font)
            self._bytes.clear()
            self._put(text)

    def _write(self, text: str) -> None:
        self._decode()
        self._to_skip = 0
        self._put(text)

    def _put(self, text: str) -> None:
        if self._group.destination is not None:
            self._group.destination.put(text)
        else:
            self._show(text)

    def _show(self, text: str) -> None:
        """Add text to the paragraph."""
        if self._is_deleted():
            return
        look = self._group.look
        kind = "hidden" if look.get("hidden") else "raised" if look.get("raised") else ""
        self._flow.line.add(text, kind)
        if self._fields:
            self._shown.append(text[:_MAX_SHOWN])

    def _is_deleted(self) -> bool:
        """Whether what is here is deleted. Counts changes."""
        look = self._group.look
        change = look.get("deleted", 0), look.get("revised", 0)
        if change != self._change:
            self._change = change
            self._changes += any(change)
        return bool(change[0])

    # --------------------------------------------------------------------------- formatting

    @property
    def _font(self) -> int:
        return self._group.look.get("font", NO_FONT)

    def _look(self, value: int | None, name: str, least: int = 1) -> None:
        """Switch a property of characters on, if the number is not less, or off."""
        on = value is None or value >= least
        if on != self._group.look.get(name, 0):
            self._decode()
            self._group.look = {**self._group.look, name: int(on)}

    def _use_font(self, value: int | None) -> None:
        if value != self._font:
            self._decode()
            self._group.look = {**self._group.look, "font": value or 0}

    def _default_font(self, value: int | None) -> None:
        self._decode()
        self._fonts.set_default(value or 0)

    def _encoding(self, value: int | None) -> None:
        self._fonts.set_encoding(f"cp{value}")

    def _plain(self) -> None:
        self._decode()
        self._group.look = {}

    def _paragraph(self, value: int | None, name: str) -> None:
        """Set a property of paragraphs."""
        if self._group.paragraph.get(name) != (value or 0):
            self._group.paragraph = {**self._group.paragraph, name: value or 0}

    def _default_paragraph(self) -> None:
        self._group.paragraph = {}
        self._flow.in_row = False

    # --------------------------------------------------------------------------- paragraphs

    def _end_paragraph(self) -> None:
        self._decode()
        self._opened = False
        if self._group.destination is not None:
            self._put(" ")
        elif not self._is_deleted():
            self._write_paragraph(self._flow, self._group)

    def _finish(self, flow: Flow, group: _Group) -> None:
        """End a text whose last paragraph or row may have no end."""
        if flow.has_paragraph:
            self._write_paragraph(flow, group)
        flow.close()

    def _write_paragraph(self, flow: Flow, group: _Group, table: int | None = None) -> None:
        """End a paragraph that is in that many tables. None: as the group says."""
        paragraph = group.paragraph
        if table is None:
            table = paragraph.get("itap") or paragraph.get("intbl") or flow.in_row
        text = whole_characters(flow.line.text())
        mark = None if flow.mark is None else item_mark(flow.mark)
        flow.line, flow.mark, flow.has_note_mark = Line(), None, False
        used = paragraph.get("ls", 0)
        if used and mark is not None:
            self._marked.add(used)
        elif used and used not in self._marked and text.strip():
            mark = self._lists.next(used, paragraph.get("ilvl", 0))
        flow.put(self._block(flow, paragraph, mark, text), table)
        after, flow.after = flow.after, []
        for each in after:
            flow.put(each, table)

    def _block(
        self, flow: Flow, paragraph: dict[str, int], mark: str | None, text: str
    ) -> Block | None:
        """How a paragraph is written; None if it is empty."""
        style = self._styles.get(paragraph.get("s", 0))
        outline = paragraph.get("outlinelevel", style.outline)
        is_heading = outline is not None and outline < _BODY_LEVEL
        if not text.strip() and (is_heading or not mark):
            return partial(Writer.code, text="") if style.code else None
        if outline is not None and is_heading:
            number = mark if mark and mark[0] != "-" else ""
            return partial(Writer.heading, level=outline + 1, text=f"{number} {text}")
        if style.code:
            return partial(Writer.code, text=text)
        is_hanging = paragraph.get("fi", 0) < 0
        if mark is None and is_hanging and (typed := _TYPED_MARK.match(text)):
            mark, text = item_mark(typed[1]), text[typed.end() :]
        used = paragraph.get("ls", 0)
        if not mark and not (mark is None and used in self._marked and flow.in_list):
            flow.end_list()
            return partial(Writer.paragraph, text=text)
        depth = flow.depth(paragraph.get("li", 0), paragraph.get("ilvl", 0) if used else 0)
        return partial(Writer.item, depth=depth, mark=mark or "", text=text)

    def _item_text(self) -> None:
        flow = self._flow

        def end(mark: str) -> None:
            flow.mark = mark

        if self._group.destination is not None:
            self._skip_group()
        else:
            self._collect(end)

    # ------------------------------------------------------------------------------- tables

    def _begin_row(self) -> None:
        self._row = RowShape()
        if self._group.destination is None:
            self._flow.in_row = True

    def _begin_inner_row(self) -> None:
        """Read the shape of a row of a table in a table, which stands at the row's end."""
        outer = self._row

        def end() -> None:
            self._row = outer

        self._become(NOTHING)
        self._group.ends.append(end)

    def _row_start(self, value: int | None) -> None:
        self._row.places[0] = value or 0

    def _cell_end(self, value: int | None) -> None:
        self._row.places.append(value or 0)

    def _merge(self, kind: str) -> None:
        self._row.merged[len(self._row.places) - 1] = kind

    def _end_cell(self, is_inner: bool = False) -> None:
        if self._group.destination is not None:
            return
        self._decode()
        table = max(2, self._group.paragraph.get("itap", 0)) if is_inner else 1
        if self._flow.has_paragraph:
            self._write_paragraph(self._flow, self._group, table)
        self._flow.end_cell(table)

    def _end_row(self) -> None:
        if self._group.destination is not None:
            return
        self._decode()
        if self._flow.line.text().strip():
            self._end_cell()
        self._flow.line = Line()
        self._flow.end_row(1, self._row)
        self._flow.in_row = False

    def _end_inner_row(self) -> None:
        if self._group.destination in (None, NOTHING):
            self._flow.end_row(2, self._row)

    # ------------------------------------------------------------------------------- fields

    def _begin_field(self) -> None:
        self._fields.append(_Field(len(self._shown)))
        self._group.ends.append(self._end_field)

    def _field_code(self) -> None:
        if not self._fields:
            self._skip_group()
            return
        current = self._fields[-1]

        def end(code: str) -> None:
            current.code = code.strip()

        self._collect(end)

    def _field_result(self) -> None:
        if self._fields:
            current = self._fields[-1]
            is_page = self._flow.is_margin and current.kind in _PAGE_FIELDS
            if is_page or current.form_text() is not None:
                self._skip_group()

    def _end_field(self) -> None:
        current = self._fields.pop()
        shown = "".join(self._shown[current.start : current.start + _MAX_SHOWN])
        own = current.form_text()
        if own is None:
            own = current.text(shown)
            self._unknown_boxes += current.kind == "FORMCHECKBOX" and not shown.strip()
        if own:
            self._write(own)
        if not self._fields:
            self._shown.clear()

    def _form(self, value: int | None, name: str) -> None:
        """Set a property of a form's field."""
        if self._fields:
            self._fields[-1].form[name] = value or 0

    def _form_entry(self) -> None:
        if self._fields:
            self._collect(self._fields[-1].entries.append)

    # ----------------------------------------------------------------------- notes, margins

    def _note_mark(self) -> None:
        if self._group.destination is None and not self._group.look.get("deleted"):
            self._flow.has_note_mark = True

    def _endnote(self) -> None:
        self._flow.is_endnote = True

    def _note(self) -> None:
        outer = self._flow

        def end(flow: Flow, blocks: list[Block]) -> None:
            text = written(self._writer, blocks).strip()
            mark = "" if outer.has_note_mark else outer.line.take_raised().strip()
            outer.has_note_mark = False
            if mark:
                text = text.removeprefix(mark).lstrip().removeprefix(mark)
            else:
                kind = "endnote" if flow.is_endnote else "footnote"
                self._counts[kind] += 1
                mark = formatted(self._counts[kind], self._note_formats[kind])
            outer.add_note(f"[^{mark}]", text)

        self._apart(end)

    def _first_note(self, value: int | None, kind: str) -> None:
        self._counts[kind] = self._first_notes[kind] = max(1, value or 1) - 1

    def _restart_notes(self, kind: str) -> None:
        self._restarting.add(kind)
        self._counts[kind] = self._first_notes[kind]

    def _continue_notes(self, kind: str) -> None:
        self._restarting.discard(kind)

    def _end_section(self) -> None:
        self._end_paragraph()
        for kind in self._restarting:
            self._flow.put(Writer.end_section, 0)
            self._counts[kind] = self._first_notes[kind]

    def _note_format(self, kind: str, numbers: str) -> None:
        self._note_formats[kind] = numbers

    def _comment_author(self) -> None:
        def end(name: str) -> None:
            self._author = " ".join(name.split())

        self._collect(end)

    def _comment(self) -> None:
        outer = self._flow

        def end(_: Flow, blocks: list[Block]) -> None:
            self._counts["comment"] += 1
            text = written(self._writer, blocks).strip()
            author, self._author = self._author, ""
            shown = f"{author}: {text}" if author else text
            outer.add_note(f"[Comment {self._counts['comment']}]", shown)

        self._apart(end)

    def _margin(self, kind: str) -> None:
        def end(_: Flow, blocks: list[Block]) -> None:
            self._margins.add(kind, written(self._writer, blocks))

        self._apart(end, is_margin=True)

    # ------------------------------------------------------------ boxes, pictures, formulas

    def _box(self) -> None:
        outer = self._flow
        self._apart(lambda _, blocks: outer.after.extend(blocks))

    def _property_name(self) -> None:
        def end(name: str) -> None:
            self._property = name.strip()

        self._collect(end)

    def _property_value(self) -> None:
        template = _SHOWN_PROPERTIES.get(self._property)

        def end(text: str) -> None:
            if template and (line := " ".join(text.split())):
                self._show(template.format(line))

        if template is None:
            self._skip_group()
        else:
            self._collect(end)

    def _object_data(self) -> None:
        self._embedded += 1
        self._skip_group()

    def _alternatives(self) -> None:
        self._is_alternative = True

    def _formula(self) -> None:
        if self._group.destination is None or isinstance(self._group.destination, Collected):
            formula = Formula()
            self._become(formula)
            self._group.ends.append(lambda: self._write(formula.text()))


_SKIPPED = frozenset(
    b"aftncn aftnsep aftnsepc atndate atnicn atnid atnparent atnref atntime bkmkend bkmkstart"
    b" colorschememapping colortbl datafield datastore fchars ffdeftext ffentrymcr ffexitmcr"
    b" ffformat ffhelptext ffname ffstattext filetbl ftncn ftnsep ftnsepc generator info keycode"
    b" latentstyles lchars mmathPict mmathPr nonesttables nonshppict objalias objclass objname"
    b" objsect objtime panose private revtbl rsidtbl rxe shprslt tc tcn themedata txe xe"
    b" xmlnstbl".split()
)
"""Groups without text of the document."""
_TRANSPARENT = frozenset(b"do formfield moMathPara picprop result shp shpinst shppict ud".split())
"""Groups that are read like the text around them, also if they may be skipped."""
_ESCAPED = {b"~": "\xa0", b"_": "\u2011", b"\t": "\t"}
_SPECIAL = {
    b"line": "\n", b"lbr": "\n", b"page": "\n", b"column": "\n", b"tab": "\t",
    b"emdash": "—", b"endash": "–", b"bullet": "•", b"lquote": "‘", b"rquote": "’",
    b"ldblquote": "“", b"rdblquote": "”", b"emspace": " ", b"enspace": " ", b"qmspace": " ",
    b"zwj": "\u200d", b"zwnj": "\u200c", b"ltrmark": "\u200e", b"rtlmark": "\u200f",
}  # fmt: skip
_NUMBERS = {
    b"ar": "decimal", b"alc": "lowerLetter", b"auc": "upperLetter", b"rlc": "lowerRoman",
    b"ruc": "upperRoman",
}  # fmt: skip
_NOTES = [
    (prefix, kind)
    for kind, prefixes in {"footnote": (b"", b"s"), "endnote": (b"a", b"sa")}.items()
    for prefix in prefixes
]
"""How the words for notes of the document and of a section begin."""
_R = _Reader
_SETTINGS: dict[bytes, Callable[[_Reader, int | None], None]] = {
    b"u": _R._unicode, b"bin": _R._binary, b"uc": _R._fallback,
    b"f": _R._use_font, b"deff": _R._default_font, b"ansicpg": _R._encoding,
    b"v": partial(_R._look, name="hidden"), b"super": partial(_R._look, name="raised"),
    b"up": partial(_R._look, name="raised", least=_MIN_RAISED),
    **dict.fromkeys((b"deleted", b"mvf"), partial(_R._look, name="deleted")),
    **dict.fromkeys((b"revised", b"mvt"), partial(_R._look, name="revised")),
    **{
        name.encode(): partial(_R._paragraph, name=name)
        for name in ("s", "outlinelevel", "itap", "ls", "ilvl", "li", "fi")
    },
    **{
        name.encode(): partial(_R._form, name=name) for name in ("fftype", "ffres", "ffdefres")
    },
    b"trleft": _R._row_start, b"cellx": _R._cell_end,
    b"ftnstart": partial(_R._first_note, kind="footnote"),
    b"aftnstart": partial(_R._first_note, kind="endnote"),
}  # fmt: skip
"""What is done at words with a number."""
_ACTIONS: dict[bytes, Callable[[_Reader], None]] = {
    **{word: partial(_R._special, text=text) for word, text in _SPECIAL.items()},
    b"rtf": _R._begin_file, b"upr": _R._alternatives,
    b"par": _R._end_paragraph, b"sect": _R._end_section,
    b"pard": _R._default_paragraph, b"plain": _R._plain,
    **dict.fromkeys((b"sub", b"nosupersub", b"dn"), lambda reader: reader._look(0, "raised")),
    b"mac": lambda reader: reader._fonts.set_encoding("mac_roman"),
    b"pc": lambda reader: reader._fonts.set_encoding("cp437"),
    b"pca": lambda reader: reader._fonts.set_encoding("cp850"),
    b"fonttbl": lambda reader: reader._become(reader._fonts),
    b"stylesheet": lambda reader: reader._become(reader._styles),
    **dict.fromkeys(
        (b"listtable", b"listoverridetable"), lambda reader: reader._become(reader._lists)
    ),
    b"leveltext": lambda reader: reader._collect(reader._lists.pattern),
    b"listtext": _R._item_text, b"pntext": _R._item_text,
    b"intbl": lambda reader: reader._paragraph(1, "intbl"),
    b"trowd": _R._begin_row, b"nesttableprops": _R._begin_inner_row,
    b"clmrg": partial(_R._merge, kind="clmrg"), b"clvmrg": partial(_R._merge, kind="clvmrg"),
    b"cell": _R._end_cell, b"nestcell": partial(_R._end_cell, is_inner=True),
    b"row": _R._end_row, b"nestrow": _R._end_inner_row,
    b"field": _R._begin_field, b"fldinst": _R._field_code, b"fldrslt": _R._field_result,
    b"ffl": _R._form_entry,
    b"chftn": _R._note_mark, b"footnote": _R._note, b"ftnalt": _R._endnote,
    **{
        prefix + b"ftnn" + code: partial(_R._note_format, kind=kind, numbers=numbers)
        for prefix, kind in _NOTES for code, numbers in _NUMBERS.items()
    },
    **{prefix + b"ftnrestart": partial(_R._restart_notes, kind=kind) for prefix, kind in _NOTES},
    **{prefix + b"ftnrstcont": partial(_R._continue_notes, kind=kind) for prefix, kind in _NOTES},
    b"atnauthor": _R._comment_author, b"annotation": _R._comment,
    **{
        kind.encode() + pages: partial(_R._margin, kind=kind)
        for kind in ("header", "footer") for pages in (b"", b"l", b"r", b"f")
    },
    b"shptxt": _R._box, b"dptxbxtext": _R._box, b"sn": _R._property_name, b"sv": _R._property_value,
    b"pict": lambda reader: reader._become(NOTHING), b"objdata": _R._object_data,
    b"moMath": _R._formula,
}  # fmt: skip
"""What is done at other words."""

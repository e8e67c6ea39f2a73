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
from app.ingest.fields import PAGE_FIELDS, field_kind, field_text
from app.ingest.list_numbers import formatted
from app.ingest.markdown import Line, Writer
from app.ingest.parts import Part, changes_said
from app.ingest.rtf_flow import Block, Flow, RowShape, written
from app.ingest.rtf_head import (
    NO_FONT,
    NOTHING,
    Destination,
    Fonts,
    Formula,
    Lists,
    Styles,
    item_mark,
)
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
_COLOURS = re.compile(rb"\{\\colortbl([^{}]*+)")
_COLOUR = re.compile(rb"\\(?:red|green|blue)(\d{1,3})")
_GROUND = re.compile(
    rb"\\(?:cb|highlight|chcbpat|cbpat|clcbpat|trcbpat|shading|clshdng)[1-9]|\\shp\b"
)


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
    ends: list[Callable[[], object]] = field(default_factory=list)
    """What to do at the end of the group, the last first."""

    def end(self) -> None:
        while self.ends:
            self.ends.pop()()


def _white_colours(data: bytes) -> Iterator[int]:
    """Yield the numbers of the colours that are white, if nothing in the file has a background."""
    table = _COLOURS.search(data)
    if table is not None and _GROUND.search(data) is None:
        for number, colour in enumerate(table[1].split(b";")):
            parts = _COLOUR.findall(colour)
            if len(parts) == 3 and min(map(int, parts)) >= 0xF0:
                yield number


@dataclass(slots=True)
class _Field:
    start: int
    """How many pieces of text were shown before it."""
    code: str = ""
    form: dict[str, int] = field(default_factory=dict)
    """Properties of a form's field, by the words for them."""
    entries: list[str] = field(default_factory=list)

    def form_text(self) -> str | None:
        """What a form's box or choice shows; None for others."""
        result = self.form.get("ffres", _UNDEFINED)
        number = self.form.get("ffdefres", 0) if result == _UNDEFINED else result
        if self.form.get("fftype") == _BOX:
            return markdown.TICKS[number == 1]
        if self.form.get("fftype") == _CHOICE:
            return self.entries[number] if 0 <= number < len(self.entries) else ""
        return None


@dataclass(slots=True)
class _Notes:
    """Counts footnotes or endnotes."""

    format: str
    first: int = 1
    restarts: bool = False
    """Whether they are counted in each section."""
    counted: int = 0
    in_section: int = 0
    """How many the section has so far."""


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
        self._bytes = bytearray()
        """Bytes that are not decoded yet, because a character may have two."""
        self._to_skip = 0
        self._white = {*_white_colours(data)}
        """Numbers of the colours that are not seen."""
        self._fonts, self._styles, self._lists = Fonts(), Styles(), Lists()
        self._marked: set[int] = set()
        """Lists whose marks the file gives."""
        self._writer = Writer()
        self._flow = Flow(lambda block: block(self._writer))
        self._flows = 1
        self._row = RowShape()
        self._fields = [_Field(0)]
        """The fields that have not ended, below one that stands for none."""
        self._shown: list[str] = []
        """Texts since the outermost field began."""
        self._property = ""
        """The name of a property of a shape."""
        self._author = ""
        self._margins = markdown.Margins()
        self._notes = {"footnote": _Notes("decimal"), "endnote": _Notes("lowerRoman")}
        self._comments = 0
        self._change = (0, 0)
        self._changes = 0
        self._said: Counter[str] = Counter()
        self._too_deep = False

    def text(self) -> str:
        while (token := _TOKEN.match(self._data, self._at)) is not None:
            self._check()
            self._at = token.end()
            word, number, code, sign, brace, plain = token.groups()
            if word is not None:
                self._control(word, None if number is None else int(number))
            elif plain is not None:
                self._add(plain)
            elif brace is not None:
                self._begin() if brace == b"{" else self._end()
            elif code is not None:
                self._add(bytes([int(code, 16)]))
            elif sign is not None:
                self._control(sign, None)
        while self._outer:
            self._end()
        self._decode()
        self._group.end()
        self._finish(self._flow, self._group)
        return whole_characters(self._margins.around(self._writer.text()))

    def said(self) -> Iterator[tuple[str, str]]:
        """What a reader must know of the text."""
        if self._changes:
            yield changes_said(self._changes)
        for name, unread, advice in (
            ("form field", "of unknown state", "save the original as DOCX or PDF"),
            ("embedded file", "that cannot be read", "save each as a file of its own"),
        ):
            if number := self._said[name]:
                yield f"has {formatting.plural(number, name)} {unread}", advice
        if self._too_deep:
            yield "is nested too deeply to be read completely", "save it as DOCX or PDF"

    # ------------------------------------------------------------------------------- groups

    def _begin(self) -> None:
        self._decode()
        self._star, self._to_skip, self._opened = False, 0, True
        group = self._group
        self._outer.append(group)
        self._group = _Group(group.destination, group.fallback, group.look, group.paragraph)
        if len(self._outer) > _MAX_GROUPS:
            self._too_deep = True
            self._skip_group()

    def _begin_file(self) -> None:
        """The group of the whole file is the outermost one."""
        self._opened = False
        if len(self._outer) == 1:
            self._outer.clear()

    def _end(self) -> None:
        self._decode()
        self._star, self._to_skip, self._opened = False, 0, False
        if self._outer:
            inner, self._group = self._group, self._outer.pop()
            inner.end()
        elif self._at > self._last_word:
            self._at = len(self._data)  # bytes after the end

    def _skip_group(self) -> None:
        """Go to the end of the innermost group."""
        depth = 0
        while (token := _SKIPPED_TOKEN.match(self._data, self._at)) is not None:
            self._check()
            if token[2] == b"}" and depth == 0:
                break
            self._at = token.end() + int(token[1] or 0)
            depth += (token[2] == b"{") - (token[2] == b"}")

    def _become(self, destination: Destination | None) -> None:
        """Put what is in this group there."""
        self._decode()
        self._group.destination = destination

    def _begin_alternative(self) -> None:
        """Read the newer form of text whose older one was ignored."""
        if len(self._outer) > 1:
            self._become(self._outer[-2].destination)

    def _collect(self, then: Callable[[str], object]) -> None:
        """Give the text of this group to a function, at its end."""
        collected = Destination()
        self._become(collected)
        self._group.look = {"font": self._font}
        self._group.ends.append(lambda: then(collected.text()))

    def _apart(self, then: Callable[[Flow, Flow], None], is_margin: bool = False) -> None:
        """Read this group as a text of its own. Then call a function with the text around it and
        with the new one, whose blocks are in `blocks`."""
        group, outer = self._group, self._flow
        if self._flows > _MAX_FLOWS or group.destination is not None or group.look.get("deleted"):
            self._too_deep = self._too_deep or self._flows > _MAX_FLOWS
            self._skip_group()
            return
        self._decode()
        group.look, group.paragraph = {"font": self._font}, {}
        self._flow = inner = Flow(is_margin=is_margin or outer.is_margin)
        self._flows += 1

        def end() -> None:
            self._finish(inner, group)
            self._flow = outer
            self._flows -= 1
            then(outer, inner)

        group.ends.append(end)

    # ----------------------------------------------------------------------- words and text

    def _control(self, word: bytes, value: int | None) -> None:
        star, self._star = self._star, False
        destination = self._group.destination
        if destination is not None:
            self._decode()
            if destination.word(word, value or 0):
                return
        if (known := _PROPERTIES.get(word)) is not None:
            part, name, meaning = known
            self._set(part, name, meaning(value))
        elif (setting := _SETTINGS.get(word)) is not None:
            setting(self, value or 0)
        elif (action := _ACTIONS.get(word)) is not None:
            action(self)
        elif (action := _IN_TEXT.get(word)) is not None:
            if destination is None:
                action(self)
        elif not self._opened or word in _TRANSPARENT:
            pass
        elif star or word in _SKIPPED:
            self._skip_group()
        elif isinstance(destination, Formula) and word[:1] == b"m":
            self._opened = False
            destination.begin(word[1:].decode())
            self._group.ends.append(destination.end)

    def _special(self, text: str) -> None:
        """Add a character that has a word, unless it is in place of a Unicode character."""
        self._opened = False
        if self._to_skip:
            self._to_skip -= 1
        else:
            self._write(text)

    def _unicode(self, value: int) -> None:
        self._write(self._fonts.character(value % 0x10000, self._font))
        self._to_skip = self._group.fallback

    def _binary(self, value: int) -> None:
        self._at += max(0, value)
        self._to_skip = max(0, self._to_skip - 1)

    def _add(self, data: bytes) -> None:
        """Add text that is not decoded."""
        self._opened = self._opened and data.isspace()
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
        kind = next((each for each in ("hidden", "struck", "raised") if look.get(each)), "")
        if look.get("tiny") or look.get("colour") in self._white:
            kind = "hidden"
        self._flow.line.add(text, kind)
        if len(self._fields) > 1:
            self._shown.append(text[:_MAX_SHOWN])

    def _is_deleted(self) -> bool:
        """Whether what is here is deleted. Counts changes."""
        look = self._group.look
        change = look.get("deleted", 0), look.get("revised", 0)
        if change != self._change:
            self._change = change
            self._changes += any(change)
        return bool(change[0])

    @property
    def _font(self) -> int:
        return self._group.look.get("font", NO_FONT)

    def _set(self, part: str, name: str, value: int) -> None:
        """Set a property of characters (in `look`) or paragraphs."""
        before = getattr(self._group, part)
        if before.get(name) != value:
            self._decode()
            setattr(self._group, part, {**before, name: value})

    def _plain(self) -> None:
        self._decode()
        self._group.look = {}

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
        elif used and used not in self._marked:
            mark = self._lists.counters.next(str(used), paragraph.get("ilvl", 0))
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
        if not mark and not (mark is None and used in self._marked and flow.indents):
            flow.indents.clear()
            return partial(Writer.paragraph, text=text)
        depth = flow.depth(paragraph.get("li", 0), paragraph.get("ilvl", 0) if used else 0)
        return partial(Writer.item, depth=depth, mark=mark or "", text=text)

    # ------------------------------------------------------------------------------- tables

    def _begin_row(self) -> None:
        self._row = RowShape()
        self._flow.in_row = self._flow.in_row or self._group.destination is None

    def _begin_inner_row(self) -> None:
        """Read the shape of a row of a table in a table, which stands at the row's end."""
        self._become(NOTHING)
        self._group.ends.append(partial(setattr, self, "_row", self._row))

    def _end_cell(self, is_inner: bool = False) -> None:
        self._decode()
        table = max(2, self._group.paragraph.get("itap", 0)) if is_inner else 1
        if self._flow.has_paragraph:
            self._write_paragraph(self._flow, self._group, table)
        self._flow.end_cell(table)

    def _end_row(self) -> None:
        self._decode()
        if self._flow.line.text().strip():
            self._end_cell()
        self._flow.line = Line()
        self._flow.end_row(1, self._row)
        self._flow.in_row = False

    # ------------------------------------------------------------------------------- fields

    def _begin_field(self) -> None:
        self._fields.append(_Field(len(self._shown)))
        self._group.ends.append(self._end_field)

    def _field_result(self) -> None:
        current = self._fields[-1]
        is_page = self._flow.is_margin and field_kind(current.code) in PAGE_FIELDS
        if is_page or current.form_text() is not None:
            self._skip_group()

    def _end_field(self) -> None:
        current = self._fields.pop()
        shown = "".join(self._shown[current.start : current.start + _MAX_SHOWN])
        own = current.form_text()
        if own is None:
            own = field_text(current.code, shown)
            is_box = field_kind(current.code) == "FORMCHECKBOX"
            self._said["form field"] += is_box and not shown.strip()
        if own:
            self._write(own)
        if len(self._fields) == 1:
            self._shown.clear()

    def _form(self, value: int, name: str) -> None:
        self._fields[-1].form[name] = value

    # ----------------------------------------------------------------------- notes, margins

    def _note_mark(self) -> None:
        self._flow.has_note_mark = not self._group.look.get("deleted")

    def _note(self, outer: Flow, note: Flow) -> None:
        text = written(self._writer, note.blocks).strip()
        mark = "" if outer.has_note_mark else outer.line.take_raised().strip()
        outer.has_note_mark = False
        if mark:
            text = text.removeprefix(mark).lstrip().removeprefix(mark)
        else:
            notes = self._notes["endnote" if note.is_endnote else "footnote"]
            if notes.restarts and not notes.in_section:
                self._writer.end_section()
                notes.counted = 0
            mark = formatted(notes.first + notes.counted, notes.format)
            notes.in_section += 1
            notes.counted += 1
        outer.add_note(f"[^{mark}]", text)

    def _comment(self, outer: Flow, comment: Flow) -> None:
        self._comments += 1
        author, self._author = " ".join(self._author.split()), ""
        texts = filter(None, (author, written(self._writer, comment.blocks).strip()))
        outer.add_note(f"[Comment {self._comments}]", ": ".join(texts))

    def _margin(self, kind: str) -> None:
        def end(_: Flow, margin: Flow) -> None:
            self._margins.add(kind, written(self._writer, margin.blocks))

        self._apart(end, is_margin=True)

    def _set_note(self, kind: str, name: str, value: str | int) -> None:
        setattr(self._notes[kind], name, value)

    def _end_section(self) -> None:
        self._end_paragraph()
        for notes in self._notes.values():
            notes.in_section = 0

    # ------------------------------------------------------------ boxes, pictures, formulas

    def _box(self, outer: Flow, box: Flow) -> None:
        outer.after += box.blocks

    def _property_value(self) -> None:
        template = _SHOWN_PROPERTIES.get(self._property.strip())
        if template is None:
            self._skip_group()
        else:
            self._collect(partial(self._show_property, template=template))

    def _show_property(self, text: str, template: str) -> None:
        if line := " ".join(text.split()):
            self._show(template.format(line))

    def _object_data(self) -> None:
        self._said["embedded file"] += 1
        self._skip_group()

    def _formula(self) -> None:
        if self._group.destination is None or type(self._group.destination) is Destination:
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
_TRANSPARENT = frozenset(b"do formfield moMathPara picprop result shp shpinst shppict".split())
"""Groups that are read like the text around them, also if they may be skipped."""
_SPECIAL = {
    b"line": "\n", b"lbr": "\n", b"page": "\n", b"column": "\n", b"tab": "\t",
    b"emdash": "—", b"endash": "–", b"bullet": "•", b"lquote": "‘", b"rquote": "’",
    b"ldblquote": "“", b"rdblquote": "”", b"emspace": " ", b"enspace": " ", b"qmspace": " ",
    b"zwj": "\u200d", b"zwnj": "\u200c", b"ltrmark": "\u200e", b"rtlmark": "\u200f",
    b"~": "\xa0", b"_": "\u2011", b"\t": "\t",
}  # fmt: skip
_NOTE_WORDS: dict[bytes, tuple[str, str | bool]] = {
    b"nar": ("format", "decimal"), b"nalc": ("format", "lowerLetter"),
    b"nauc": ("format", "upperLetter"), b"nrlc": ("format", "lowerRoman"),
    b"nruc": ("format", "upperRoman"), b"restart": ("restarts", True),
    b"rstcont": ("restarts", False),
}  # fmt: skip
"""How words for notes end, and what they set."""
_NOTES = ((b"", "footnote"), (b"s", "footnote"), (b"a", "endnote"), (b"sa", "endnote"))
"""How the words for notes of the document and of a section begin."""


def _number(value: int | None) -> int:
    return value or 0


def _is_on(value: int | None, least: int = 1) -> int:
    return value is None or value >= least


def _off(_: int | None) -> int:
    return False


_PROPERTIES: dict[bytes, tuple[str, str, Callable[[int | None], int]]] = {
    b"v": ("look", "hidden", _is_on), b"f": ("look", "font", _number),
    **dict.fromkeys((b"deleted", b"mvf"), ("look", "deleted", _is_on)),
    **dict.fromkeys((b"revised", b"mvt"), ("look", "revised", _is_on)),
    b"super": ("look", "raised", _is_on),
    b"fs": ("look", "tiny", lambda value: markdown.is_tiny(24 if value is None else value / 2)),
    b"cf": ("look", "colour", _number),
    **dict.fromkeys((b"strike", b"striked"), ("look", "struck", _is_on)),
    b"up": ("look", "raised", partial(_is_on, least=_MIN_RAISED)),
    **dict.fromkeys((b"sub", b"nosupersub", b"dn"), ("look", "raised", _off)),
    b"intbl": ("paragraph", "intbl", _is_on),
    **{
        name.encode(): ("paragraph", name, _number)
        for name in ("s", "outlinelevel", "itap", "ls", "ilvl", "li", "fi")
    },
}  # fmt: skip
"""Words that set a property of characters or paragraphs."""
_R = _Reader
_SETTINGS: dict[bytes, Callable[[_Reader, int], object]] = {
    b"u": _R._unicode, b"bin": _R._binary,
    b"uc": lambda reader, value: setattr(reader._group, "fallback", max(0, value)),
    b"deff": lambda reader, value: reader._fonts.set_default(value),
    b"ansicpg": lambda reader, value: reader._fonts.set_encoding(f"cp{value}"),
    **{
        name.encode(): partial(_R._form, name=name) for name in ("fftype", "ffres", "ffdefres")
    },
    b"trleft": lambda reader, value: reader._row.begin(value),
    b"cellx": lambda reader, value: reader._row.places.append(value),
    b"ftnstart": lambda reader, value: reader._set_note("footnote", "first", max(1, value)),
    b"aftnstart": lambda reader, value: reader._set_note("endnote", "first", max(1, value)),
}  # fmt: skip
"""Other words with a number."""
_ACTIONS: dict[bytes, Callable[[_Reader], object]] = {
    **{word: partial(_R._special, text=text) for word, text in _SPECIAL.items()},
    **{sign: partial(_R._add, data=sign) for sign in (b"\\", b"{", b"}")},
    b"*": lambda reader: setattr(reader, "_star", reader._opened),
    b"rtf": _R._begin_file, b"ud": _R._begin_alternative, b"sect": _R._end_section,
    **dict.fromkeys((b"par", b"\r", b"\n"), _R._end_paragraph),
    b"pard": _R._default_paragraph, b"plain": _R._plain,
    b"mac": lambda reader: reader._fonts.set_encoding("mac_roman"),
    b"pc": lambda reader: reader._fonts.set_encoding("cp437"),
    b"pca": lambda reader: reader._fonts.set_encoding("cp850"),
    b"fonttbl": lambda reader: reader._become(reader._fonts),
    b"stylesheet": lambda reader: reader._become(reader._styles),
    b"listtable": lambda reader: reader._become(reader._lists),
    b"listoverridetable": lambda reader: reader._become(reader._lists),
    b"leveltext": lambda reader: reader._collect(reader._lists.pattern),
    b"trowd": _R._begin_row, b"nesttableprops": _R._begin_inner_row,
    b"clmrg": lambda reader: reader._row.merge("clmrg"),
    b"clvmrg": lambda reader: reader._row.merge("clvmrg"),
    b"nestrow": lambda reader: reader._flow.end_row(2, reader._row),
    b"field": _R._begin_field, b"fldrslt": _R._field_result,
    b"fldinst": lambda reader: reader._collect(partial(setattr, reader._fields[-1], "code")),
    b"ffl": lambda reader: reader._collect(reader._fields[-1].entries.append),
    b"footnote": lambda reader: reader._apart(reader._note),
    b"ftnalt": lambda reader: setattr(reader._flow, "is_endnote", True),
    **{
        prefix + b"ftn" + word: partial(_R._set_note, kind=kind, name=name, value=value)
        for prefix, kind in _NOTES for word, (name, value) in _NOTE_WORDS.items()
    },
    b"annotation": lambda reader: reader._apart(reader._comment),
    **{
        kind.encode() + pages: partial(_R._margin, kind=kind)
        for kind in ("header", "footer") for pages in (b"", b"l", b"r", b"f")
    },
    **dict.fromkeys((b"shptxt", b"dptxbxtext"), lambda reader: reader._apart(reader._box)),
    b"atnauthor": lambda reader: reader._collect(partial(setattr, reader, "_author")),
    b"sn": lambda reader: reader._collect(partial(setattr, reader, "_property")),
    b"sv": _R._property_value,
    **dict.fromkeys((b"pict", b"upr"), lambda reader: reader._become(NOTHING)),
    b"objdata": _R._object_data,
    b"moMath": _R._formula,
}  # fmt: skip
"""What is done at other words."""
_IN_TEXT: dict[bytes, Callable[[_Reader], object]] = {
    **dict.fromkeys(
        (b"listtext", b"pntext"),
        lambda reader: reader._collect(partial(setattr, reader._flow, "mark")),
    ),
    b"cell": _R._end_cell, b"nestcell": partial(_R._end_cell, is_inner=True),
    b"row": _R._end_row, b"chftn": _R._note_mark,
}  # fmt: skip
"""What is done at words that have a meaning only in the text of the document."""

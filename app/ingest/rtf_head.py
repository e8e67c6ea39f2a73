"""The parts of Rich Text that are not its text: fonts, styles and lists, and formulas."""

from __future__ import annotations

import codecs
from contextlib import suppress
from dataclasses import dataclass, replace
from xml.etree.ElementTree import Element, SubElement

from app.ingest import markdown
from app.ingest.formulas import linear
from app.ingest.list_numbers import LEVELS, TICKED, Counters, Level, SharedList
from app.ingest.symbols import symbol

_CHARACTER_SETS = {
    77: "mac_roman", 128: "cp932", 129: "cp949", 130: "johab", 134: "gb18030", 136: "big5",
    161: "cp1253", 162: "cp1254", 163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257",
    204: "cp1251", 222: "cp874", 238: "cp1250", 254: "cp437",
}  # fmt: skip
"""Encodings by the number of a font's character set."""
_SIGNS = 2
"""The character set of fonts whose letters are signs."""
_SIGN_FONTS = ("symbol", "wingdings", "wingdings 2")
_FORMATS = {
    1: "upperRoman", 2: "lowerRoman", 3: "upperLetter", 4: "lowerLetter", 5: "ordinal",
    6: "cardinalText", 7: "ordinalText", 10: "ideographDigital", 11: "japaneseCounting",
    12: "aiueo", 13: "iroha", 18: "decimalEnclosedCircle", 22: "decimalZero", 23: "bullet",
    39: "chineseCountingThousand", 45: "hebrew2", 46: "arabicAlpha", 58: "russianLower",
    59: "russianUpper", 255: "none",
}  # fmt: skip
_MAX_BASES = 50
"""Styles are based on each other up to this depth."""


class Destination:
    """Keeps what is in a group that is no text of the document."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def put(self, text: str) -> None:
        """Add text."""
        self._pieces.append(text)

    def text(self) -> str:
        return "".join(self._pieces)

    def word(self, word: bytes, value: int) -> bool:
        """Read a word. Returns whether it has a meaning of its own here."""
        return False


class _Nothing(Destination):
    def put(self, text: str) -> None:
        """Ignore it."""


NOTHING = _Nothing()


class Formula(Destination):
    """A formula, whose parts are groups in each other."""

    def __init__(self) -> None:
        super().__init__()
        self._open = [Element("oMath")]

    def begin(self, name: str) -> None:
        around = self._open[-1]
        self._open.append(SubElement(around, name))
        if around.tag.endswith("Pr"):
            self._open[-1].set("val", "")

    def end(self) -> None:
        self._open.pop()

    def put(self, text: str) -> None:
        part = self._open[-1]
        if "val" in part.attrib:
            part.set("val", (part.attrib["val"] + text)[:20])
        else:
            SubElement(part, "t").text = text

    def text(self) -> str:
        return linear(self._open[0])


class _Named(Destination):
    """Descriptions that end with a name and a semicolon."""

    def put(self, text: str) -> None:
        super().put(text)
        if ";" in text:
            self._define(self.text().partition(";")[0].strip())
            self._pieces.clear()

    def _define(self, name: str) -> None:
        raise NotImplementedError


@dataclass(slots=True)
class _Font:
    name: str = ""
    encoding: str = ""
    """Empty: the document's."""
    has_signs: bool = False


_UNKNOWN = _Font()
NO_FONT = -1
"""The number of the document's font."""


class Fonts(_Named):
    """Decodes text by the fonts in which it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self._encoding = "cp1252"
        self._default = NO_FONT
        self._fonts: dict[int, _Font] = {}
        self._font = _Font()
        """The one that is being read."""

    def set_encoding(self, name: str) -> None:
        """Set the encoding of the document."""
        self._encoding = _encoding(name) or self._encoding

    def set_default(self, number: int) -> None:
        self._default = number

    def word(self, word: bytes, value: int) -> bool:
        if word == b"f":
            self._font = self._fonts.setdefault(value, _Font())
        elif word == b"fcharset":
            self._font.encoding = _CHARACTER_SETS.get(value, "")
            self._font.has_signs = value == _SIGNS
        elif word == b"cpg":
            self._font.encoding = _encoding(f"cp{value}") or self._font.encoding
        else:
            return False
        return True

    def _define(self, name: str) -> None:
        self._font.name = name.lower()
        self._font.has_signs = self._font.has_signs or self._font.name in _SIGN_FONTS

    def decoded(self, data: bytes | bytearray, number: int) -> str:
        """What a font shows for bytes."""
        font = self._used(number)
        if font.name in _SIGN_FONTS:
            return "".join(symbol(font.name, each) if each > 0x20 else chr(each) for each in data)
        if font.encoding:
            with suppress(UnicodeDecodeError):
                return data.decode(font.encoding)
        return data.decode(self._encoding, "backslashreplace")

    def character(self, code: int, number: int) -> str:
        """What a font shows for a Unicode character."""
        font = self._used(number)
        is_sign = font.has_signs and 0xF000 <= code < 0xF100
        return symbol(font.name, code) if is_sign else chr(code)

    def _used(self, number: int) -> _Font:
        return self._fonts.get(self._default if number == NO_FONT else number, _UNKNOWN)


def _encoding(name: str) -> str:
    """Python's name of an encoding; empty if there is none."""
    with suppress(LookupError):
        return codecs.lookup(name).name
    return ""


@dataclass(frozen=True, slots=True)
class Style:
    """What a style of paragraphs, and those that it is based on, say."""

    outline: int | None = None
    """The level of headings, from 0."""
    code: bool = False
    based: int | None = None


class Styles(_Named):
    """The styles of paragraphs."""

    def __init__(self) -> None:
        super().__init__()
        self._words: dict[bytes, int] = {}
        """Properties of the style that is being read."""
        self._own: dict[int, Style] = {}
        self._found: dict[int, Style] = {}

    def word(self, word: bytes, value: int) -> bool:
        self._words[word] = value
        return False

    def _define(self, name: str) -> None:
        words, self._words = self._words, {}
        if not words.keys() & {b"cs", b"ds", b"ts"}:  # of characters, sections or tables
            outline = words.get(b"outlinelevel")
            if outline is None:
                level = 1 if name.lower() == "title" else markdown.heading_level(name)
                outline = level and level - 1
            code = markdown.is_code_style(name)
            self._own[words.get(b"s", 0)] = Style(outline, code, words.get(b"sbasedon"))

    def get(self, number: int) -> Style:
        if number not in self._found:
            outline, code = None, False
            each = self._own.get(number)
            for _ in range(_MAX_BASES):
                if each is None:
                    break
                outline = each.outline if outline is None else outline
                code = code or each.code
                each = None if each.based is None else self._own.get(each.based)
            self._found[number] = Style(outline, code)
        return self._found[number]


def item_mark(shown: str) -> str:
    """The mark of an item that is shown like this: a number, or `-`; empty if there is none."""
    sign = shown.strip()
    if sign in TICKED:
        return f"- {sign}"
    is_bullet = len(sign) == 1 and not sign.isalnum()
    return "-" if is_bullet or sign == "o" else sign


class Lists(Destination):
    """The lists that a file defines. They are counted for files that do not contain the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.counters = Counters()
        self._lists: dict[int, SharedList] = {}
        self._is_override = False
        self._id = 0
        self._levels: dict[int, Level] = {}
        """Levels of the list or override that is being read."""
        self._starts: dict[int, int] = {}
        """Numbers at which an override begins levels."""
        self._level = -1

    def word(self, word: bytes, value: int) -> bool:
        if word in (b"list", b"listoverride"):
            self._is_override = word == b"listoverride"
            self._levels, self._starts, self._level = {}, {}, -1
        elif word == b"listid":
            self._id = value
            if not self._is_override:
                self._lists[value] = SharedList(self._levels)
        elif word == b"ls":
            if self._id in self._lists:
                self.counters.add(str(value), self._lists[self._id], self._levels, self._starts)
        elif word in (b"listlevel", b"lfolevel"):
            # An override may have a level inside.
            self._level += not self._is_override or word == b"lfolevel"
            if word == b"listlevel" and self._level < LEVELS:
                self._levels[self._level] = Level()
        elif word in (b"levelnfc", b"levelnfcn"):
            self._change(format=_FORMATS.get(value, "decimal"))
        elif word == b"levelstartat":
            if self._level in self._levels:
                self._change(start=value)
            else:
                self._starts[self._level] = value
        else:
            return False
        return True

    def pattern(self, text: str) -> None:
        """What a level shows: its length, and characters; the first ones stand for levels."""
        length = ord(text[0]) if text else 0
        shown = [f"%{ord(each) + 1}" if ord(each) < LEVELS else each for each in text[1:]]
        self._change(pattern="".join(shown[:length]))

    def _change(self, **properties: str | int) -> None:
        if self._level in self._levels:
            level = self._levels[self._level]
            self._levels[self._level] = replace(level, **properties)  # type: ignore[arg-type]

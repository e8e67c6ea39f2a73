"""The head of Rich Text: fonts, styles and lists."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from app.ingest.list_numbers import LEVELS, TICKED, Level, ListCounter
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
_HEADING = re.compile(r"heading ([1-9])(?:,.*)?", re.IGNORECASE)
_CODE = re.compile(r"(?:source ?code|code|html preformatted|preformatted text|macro text)\b", re.I)

_FORMATS = {
    1: "upperRoman", 2: "lowerRoman", 3: "upperLetter", 4: "lowerLetter", 5: "ordinal",
    6: "cardinalText", 7: "ordinalText", 10: "ideographDigital", 11: "japaneseCounting",
    12: "aiueo", 13: "iroha", 18: "decimalEnclosedCircle", 22: "decimalZero", 23: "bullet",
    39: "chineseCountingThousand", 45: "hebrew2", 46: "arabicAlpha", 58: "russianLower",
    59: "russianUpper", 255: "none",
}  # fmt: skip


@dataclass(slots=True)
class _Font:
    name: str = ""
    encoding: str = ""
    """Empty: the document's."""
    has_signs: bool = False


_NO_FONT = _Font()


class Fonts:
    """Decodes text by the fonts in which it is shown."""

    WORDS: ClassVar = frozenset([b"f", b"fcharset", b"cpg"])

    def __init__(self) -> None:
        self._encoding = "cp1252"
        self._default: int | None = None
        self._fonts: dict[int, _Font] = {}
        self._font = _Font()
        """The one that is being read."""

    def set_encoding(self, name: str) -> None:
        """Set the encoding of the document."""
        self._encoding = _encoding(name) or self._encoding

    def set_default(self, number: int) -> None:
        self._default = number

    def word(self, word: bytes, value: int) -> None:
        """Read a word of the table of fonts."""
        if word == b"f":
            self._font = self._fonts.setdefault(value, _Font())
        elif word == b"fcharset":
            self._font.encoding = _CHARACTER_SETS.get(value, "")
            self._font.has_signs = value == _SIGNS
        else:
            self._font.encoding = _encoding(f"cp{value}") or self._font.encoding

    def define(self, name: str) -> None:
        """End the description of a font."""
        self._font.name = name.lower()
        self._font.has_signs = self._font.has_signs or self._font.name in _SIGN_FONTS

    def decoded(self, data: bytes | bytearray, number: int | None) -> str:
        """What a font shows for bytes. None: the document's font."""
        font = self._used(number)
        if font.name in _SIGN_FONTS:
            return "".join(symbol(font.name, each) if each > 0x20 else chr(each) for each in data)
        if font.encoding:
            with suppress(UnicodeDecodeError):
                return data.decode(font.encoding)
        return data.decode(self._encoding, "backslashreplace")

    def character(self, code: int, number: int | None) -> str:
        """What a font shows for a Unicode character."""
        font = self._used(number)
        is_sign = font.has_signs and 0xF000 <= code < 0xF100
        return symbol(font.name, code) if is_sign else chr(code)

    def _used(self, number: int | None) -> _Font:
        number = self._default if number is None else number
        return _NO_FONT if number is None else self._fonts.get(number, _NO_FONT)


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


class Styles:
    """The styles of paragraphs."""

    def __init__(self) -> None:
        self._listed: dict[int, tuple[str, int, int | None]] = {}
        """The name, the style it is based on, and the outline level of each."""
        self._found: dict[int, Style] = {}

    def add(self, number: int, name: str, based: int, outline: int | None) -> None:
        self._listed[number] = name, based, outline

    def get(self, number: int) -> Style:
        chain: dict[int, None] = {}
        each = number
        while each in self._listed and each not in self._found and each not in chain:
            chain[each] = None
            each = self._listed[each][1]
        for each in reversed(chain):
            name, based, outline = self._listed[each]
            self._found[each] = _style(name, outline, self._found.get(based, Style()))
        return self._found.get(number, Style())


def _style(name: str, outline: int | None, base: Style) -> Style:
    if outline is None:
        heading = _HEADING.fullmatch(name)
        is_title = name.lower() == "title"
        outline = int(heading[1]) - 1 if heading else 0 if is_title else base.outline
    return Style(outline, base.code or _CODE.match(name) is not None)


def item_mark(shown: str) -> str:
    """The mark of an item that is shown like this: a number, or `-`; empty if there is none."""
    sign = shown.strip()
    if sign in TICKED:
        return f"- {sign}"
    is_bullet = len(sign) == 1 and not sign.isalnum()
    return "-" if is_bullet or sign == "o" else sign


class Lists:
    """The lists that a file defines. They are counted for files that do not contain the numbers."""

    WORDS: ClassVar = frozenset(
        b"levelnfc levelnfcn levelstartat lfolevel list listid listlevel listoverride ls".split()
    )

    def __init__(self) -> None:
        self._levels: list[Level] = []
        """Of the list that is being read."""
        self._lists: dict[int, list[Level]] = {}
        self._used: dict[int, tuple[int, dict[int, int]]] = {}
        """For each list as paragraphs name it: the list, and numbers at which levels begin."""
        self._is_override = False
        self._starts: dict[int, int] = {}
        self._level = -1
        self._id = 0
        self._counters: dict[int, ListCounter] = {}
        self._begun: set[int] = set()

    def word(self, word: bytes, number: int) -> None:
        """Read a word of the table of lists, or of the table of overrides."""
        if word == b"list":
            self._levels, self._is_override = [], False
        elif word == b"listoverride":
            self._starts, self._level, self._is_override = {}, -1, True
        elif word == b"listid":
            self._id = number
            if not self._is_override:
                self._lists[number] = self._levels
        elif word == b"ls":
            self._used[number] = self._id, self._starts
        elif word == b"lfolevel":
            self._level += 1
        elif self._is_override:
            if word == b"levelstartat":
                self._starts[self._level] = number
        elif word == b"listlevel":
            self._levels.append(Level())
        elif self._levels:
            if word in (b"levelnfc", b"levelnfcn"):
                shown = _FORMATS.get(number, "decimal")
                self._levels[-1] = replace(self._levels[-1], format=shown)
            elif word == b"levelstartat":
                self._levels[-1] = replace(self._levels[-1], start=number)

    def pattern(self, text: str) -> None:
        """What a level shows: its length, and characters; the first ones stand for levels."""
        if self._levels and not self._is_override:
            shown = (f"%{ord(each) + 1}" if ord(each) < LEVELS else each for each in text[1:])
            length = ord(text[0]) if text else 0
            pattern = "".join(list(shown)[:length])
            self._levels[-1] = replace(self._levels[-1], pattern=pattern)

    def next(self, number: int, level: int) -> str | None:
        """The mark of the next item, as `item_mark` returns it. None: there is no such list."""
        id, starts = self._used.get(number, (0, {}))
        levels = self._lists.get(id)
        if not levels or not 0 <= level < len(levels):
            return None
        counter = self._counters.setdefault(id, ListCounter())
        if number not in self._begun:
            self._begun.add(number)
            for each, start in starts.items():
                counter.set(each, start)
        return counter.next(level, dict(enumerate(levels[:LEVELS])))

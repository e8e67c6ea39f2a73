"""Extracts the text of files in Rich Text Format."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from app.ingest.text import whole_characters

MARK = b"{\\rtf"
_TOKEN = re.compile(
    rb"\\([a-zA-Z]{1,32})(-?[0-9]{1,9})? ?|\\'([0-9a-fA-F]{2})|\\(.)"
    rb"|([{}])|([\r\n]+)|([^\\{}\r\n]+)",
    re.DOTALL,
)
# Groups that contain no text of the document.
_SKIPPED = frozenset(
    b"fonttbl colortbl stylesheet listtable listoverridetable rsidtbl generator info pict object"
    b" themedata colorschememapping datastore latentstyles fldinst xmlnstbl filetbl revtbl fchars"
    b" bkmkstart bkmkend shppict nonshppict lchars panose".split()
)
_SYMBOLS = {
    b"par": "\n", b"line": "\n", b"sect": "\n\n", b"page": "\n\n", b"row": "\n", b"nestrow": "\n",
    b"cell": " | ", b"nestcell": " | ", b"tab": "\t", b"emdash": "—", b"endash": "–",
    b"bullet": "•", b"lquote": "‘", b"rquote": "’", b"ldblquote": "“", b"rdblquote": "”",
    b"emspace": " ", b"enspace": " ", b"qmspace": " ", b"zwj": "\u200d", b"zwnj": "\u200c",
    b"ltrmark": "\u200e", b"rtlmark": "\u200f",
}  # fmt: skip
_ESCAPED = {b"~": "\xa0", b"_": "\u2011", b"\n": "\n", b"\r": "\n", b"\t": "\t"}
# Encodings by the number of a font's character set.
_CHARACTER_SETS = {
    77: "mac_roman", 128: "cp932", 129: "cp949", 134: "gb18030", 136: "big5", 161: "cp1253",
    162: "cp1254", 163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251",
    222: "cp874", 238: "cp1250",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Group:
    """State within a pair of braces."""

    skipped: bool = False
    encoding: str = ""
    """The encoding of the font; empty: the document's."""
    fallback: int = 1
    """Number of fallback characters after a Unicode character, for programs that cannot show it."""
    font_table: bool = False


def rtf_text(data: bytes, check: Callable[[], None] = lambda: None) -> str:
    """Extract the text. `check` is called regularly, and may raise."""
    return _RtfReader().text(data, check)


class _RtfReader:
    def __init__(self) -> None:
        self._group = _Group()
        self._outer: list[_Group] = []
        self._encoding = "cp1252"
        self._fonts: dict[int, str] = {}
        self._font = 0
        self._bytes = bytearray()
        """Bytes that are not decoded yet, because a character may have two."""
        self._pieces: list[str] = []
        self._to_skip = 0
        self._star = False

    def text(self, data: bytes, check: Callable[[], None]) -> str:
        at = 0
        while (token := _TOKEN.match(data, at)) is not None:
            check()
            at = token.end()
            word, number, code, symbol, brace, _, plain = token.groups()
            if word is not None:
                value = None if number is None else int(number)
                if word == b"bin":
                    at += max(0, value or 0)
                else:
                    self._control(word, value)
            elif code is not None:
                self._add(bytes([int(code, 16)]))
            elif plain is not None:
                self._add(plain)
            elif brace is not None:
                self._brace(brace)
            elif symbol is not None:
                self._escape(symbol)
        self._decode()
        text = "".join(self._pieces).replace(" | \n", "\n")
        return whole_characters(text)  # characters beyond U+FFFF are written as surrogate pairs

    def _brace(self, brace: bytes) -> None:
        self._decode()
        self._star, self._to_skip = False, 0
        if brace == b"{":
            self._outer.append(self._group)
        elif self._outer:
            self._group = self._outer.pop()

    def _escape(self, symbol: bytes) -> None:
        if symbol == b"*":
            self._star = True
        elif symbol in b"\\{}":
            self._add(symbol)
        elif symbol in _ESCAPED:
            self._write(_ESCAPED[symbol])

    def _control(self, word: bytes, value: int | None) -> None:
        star, self._star = self._star, False
        if word == b"u":
            self._unicode(value or 0)
        elif word in _SYMBOLS:
            if self._to_skip:
                self._to_skip -= 1
            else:
                self._write(_SYMBOLS[word])
        elif word == b"fonttbl":
            self._change(skipped=True, font_table=True)
        elif word in _SKIPPED or star:
            self._change(skipped=True)
        elif word == b"uc":
            self._change(fallback=max(0, value or 0))
        elif word in (b"ansicpg", b"mac", b"pc", b"pca"):
            known = {b"mac": "mac_roman", b"pc": "cp437", b"pca": "cp850"}
            with suppress(LookupError):
                self._encoding = codecs.lookup(known.get(word, f"cp{value}")).name
        elif word == b"f":
            self._use_font(value or 0)
        elif word == b"plain":
            self._change(encoding="")
        elif word == b"fcharset" and self._group.font_table:
            self._fonts[self._font] = _CHARACTER_SETS.get(value or 0, "")

    def _use_font(self, font: int) -> None:
        if self._group.font_table:
            self._font = font
        else:
            self._change(encoding=self._fonts.get(font, ""))

    def _change(self, **changes: object) -> None:
        self._decode()
        self._group = replace(self._group, **changes)  # type: ignore[arg-type]

    def _unicode(self, value: int) -> None:
        self._write(chr(value % 65536))
        self._to_skip = self._group.fallback

    def _add(self, data: bytes) -> None:
        skipped = min(self._to_skip, len(data))
        self._to_skip -= skipped
        if not self._group.skipped:
            self._bytes += data[skipped:]

    def _write(self, text: str) -> None:
        self._decode()
        self._to_skip = 0
        if not self._group.skipped:
            self._pieces.append(text)

    def _decode(self) -> None:
        if self._bytes:
            encoding = self._group.encoding or self._encoding
            self._pieces.append(self._bytes.decode(encoding, "backslashreplace"))
            self._bytes.clear()

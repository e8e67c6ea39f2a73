"""Decodes files: detects whether a file is text, and its encoding."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from dataclasses import dataclass, replace

from app.ingest.legacy_encoding import guess_encoding
from app.ingest.records import Rejected, SkipReason
from app.ingest.safe_open import HEAD

# UTF-32 first, because its little-endian mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DECLARED = re.compile(rb"(?:charset|coding)\s{0,3}[=:]\s{0,3}[\"']?([\w.-]{2,40})", re.I)
_DECLARED_WITHIN = 1024
_LEGACY = re.compile(r"(cp|iso8859_|koi8_|mac_|shift_jis|euc_|gb|big5|hz|johab|tis_620)\w*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ISO_2022_JP = re.compile(rb"\x1b\$[@B]")
_SAMPLE = 1 << 15
# All control characters except those that text files use: tab, line ends, form feed, vertical tab,
# backspace and escape.
_BINARY_BYTES = bytes(set(range(0x20)) - set(b"\t\n\r\f\v\b\x1b")) + b"\x7f"
_MAX_BINARY_SHARE = 0.01
_MAX_WRONG_SHARE = 0.01
_WIDE = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded text, without its byte order mark."""

    text: str
    encoding: str
    """Python's name of the encoding; or `pdf`, `rtf` or `mail`, which may have several
    encodings."""
    lossy: bool = False
    """Whether some bytes could not be decoded. They are written as `\\xff`."""
    guessed: bool = False
    """Whether the encoding was guessed from the frequency of characters."""
    missing: tuple[Rejected, ...] = ()
    """Pages that are not in the text."""
    recognised: int = 0
    """Number of pages whose text was recognised in pictures."""


def is_binary(head: bytes) -> bool:
    """Whether a file that begins with `head` is certainly not text."""
    return b"\0" in head and wide_encoding(head) is None


def decode(data: bytes) -> Decoded:
    """Decode a file. Raises Rejected if it is empty, binary or in an unknown encoding."""
    decoded = _decode(data)
    if not decoded.text.strip():
        raise Rejected(SkipReason.EMPTY)
    return decoded


def _decode(data: bytes) -> Decoded:
    wide = wide_encoding(data[:HEAD])
    if wide is not None and not wide.startswith("utf-8"):
        return _decode_wide(data, wide)
    return _decode_bytes(data.removeprefix(codecs.BOM_UTF8))


def decode_like(data: bytes, head: bytes) -> Decoded:
    """Decode some lines of a file that begins with `head`, as a file that consists of both. Raises
    Rejected."""
    wide = wide_encoding(head)
    if wide is not None and not wide.startswith("utf-8"):
        return _decode_wide(data, wide)
    if b"\0" in data:
        raise Rejected(SkipReason.BINARY)
    found = _decode_bytes((head[: head.rfind(b"\n") + 1] + data).removeprefix(codecs.BOM_UTF8))
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return replace(found, text=data.decode(found.encoding), lossy=False)
    except UnicodeDecodeError:
        return replace(found, text=data.decode(found.encoding, "backslashreplace"), lossy=True)


def wide_encoding(head: bytes) -> str | None:
    """The encoding of the byte order mark; or UTF-16 without a mark, which is recognised because
    every other byte is NUL in mostly Latin text."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    even, odd = head[0:4096:2].count(0), head[1:4096:2].count(0)
    half = min(len(head), 4096) // 2
    if half >= 8 and max(even, odd) > 0.4 * half and min(even, odd) == 0:
        return "utf-16-le" if odd else "utf-16-be"
    return None


def _decode_wide(data: bytes, encoding: str) -> Decoded:
    text = data.decode(encoding, "replace").removeprefix("\ufeff")
    wrong = text.count("\ufffd") - data.count("\ufffd".encode(encoding))
    if _WIDE.search(text) or not _may_be_wrong(wrong, len(text)):
        raise Rejected(SkipReason.BINARY)
    if wrong:
        text = data.decode(encoding, "backslashreplace").removeprefix("\ufeff")
    return Decoded(text, encoding, lossy=wrong > 0)


def _may_be_wrong(wrong: int, characters: int) -> bool:
    """Whether this many invalid characters are acceptable in a UTF-16 or UTF-32 text."""
    return 2 * wrong <= characters and wrong <= max(1, _MAX_WRONG_SHARE * characters)


def _decode_bytes(data: bytes) -> Decoded:
    if b"\0" in data:
        raise Rejected(SkipReason.BINARY)
    if _ISO_2022_JP.search(data) and data.isascii():
        with suppress(UnicodeDecodeError):
            return Decoded(data.decode("iso2022_jp"), "iso2022_jp")
    try:
        return Decoded(data.decode(), "utf-8")
    except UnicodeDecodeError as error:
        sample = _sample(data, error.start)
    if len(sample) - len(sample.translate(None, _BINARY_BYTES)) > _MAX_BINARY_SHARE * len(sample):
        raise Rejected(SkipReason.BINARY)
    if _is_mostly_utf8(data):
        return Decoded(data.decode("utf-8", "backslashreplace"), "utf-8", lossy=True)
    if (declared := _as_declared(data)) is not None:
        return declared
    encoding = guess_encoding(sample)
    if encoding is None:
        raise Rejected(SkipReason.ENCODING)
    try:
        return Decoded(data.decode(encoding), encoding, guessed=True)
    except UnicodeDecodeError:
        text = data.decode(encoding, "backslashreplace")
        return Decoded(text, encoding, lossy=True, guessed=True)


def whole_characters(text: str) -> str:
    """Replace surrogate pairs by their characters, and lone surrogates, which can neither be
    encoded nor stored, by U+FFFD."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def declared_encoding(name: str) -> str | None:
    """Python's name of a text encoding that a file declares. None for codecs that are not text
    encodings, such as `punycode` (whose decoder takes quadratic time) and `unicode_escape`."""
    with suppress(LookupError, ValueError):
        found = codecs.lookup(name).name.replace("-", "_")
        if found in ("iso8859_1", "latin_1"):  # browsers use Windows-1252 for it
            return "cp1252"
        if _LEGACY.fullmatch(found) or found.startswith(("ascii", "utf_", "iso2022")):
            return found
    return None


def _as_declared(data: bytes) -> Decoded | None:
    """Decode a text that declares its encoding in its first lines, as web pages and source files
    do."""
    for hit in _DECLARED.finditer(data[:_DECLARED_WITHIN]):
        with suppress(UnicodeDecodeError):
            encoding = declared_encoding(hit[1].decode("ascii").lower().replace("latin-", "latin"))
            if encoding is not None and _LEGACY.fullmatch(encoding):
                return Decoded(data.decode(encoding), encoding)
    return None


def _sample(data: bytes, fault: int) -> bytes:
    """Lines from the start of the file and around the first byte that is not UTF-8 (at `fault`).
    They suffice to detect the encoding quickly."""
    start = max(fault - _SAMPLE, 0)
    around = data[start : fault + _SAMPLE]
    end = around.rfind(b"\n") + 1
    if fault + _SAMPLE < len(data) and end > fault - start:
        around = around[:end]
    if start == 0:
        return around
    begin = around.find(b"\n", 0, fault - start) + 1
    return data[: data.rfind(b"\n", 0, _SAMPLE) + 1] + around[begin:]


def _is_mostly_utf8(data: bytes) -> bool:
    """Whether there are at least as many valid UTF-8 sequences beyond ASCII as invalid ones. In
    other encodings, hardly any sequence happens to be valid."""
    text = data.decode("utf-8", "replace")
    beyond_ascii = len(text) - len(text.encode("ascii", "ignore"))
    wrong = text.count("\ufffd") - data.count("\ufffd".encode())
    return beyond_ascii - wrong >= wrong

"""Decodes files: detects the encoding, and whether a file is text at all."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from charset_normalizer import from_bytes

from app.ingest.records import Reason, Rejected
from app.ingest.safe_open import HEAD

# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Encodings that text files still use. With all of Python's, charset-normalizer mistakes a short
# German text for Urdu.
_LEGACY = [
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874"),
    *("koi8_r", "koi8_u", "mac_roman", "cp437", "cp850"),
    *("cp932", "euc_jp", "iso2022_jp", "gb18030", "big5", "cp949"),
]
_USUAL = "cp1252"
_CLOSE = 0.02
_SAMPLE = 1 << 15
# All control characters but those that text files use: tab, line ends, form feed, backspace,
# escape.
_BINARY_BYTES = bytes(set(range(0x20)) - set(b"\t\n\r\f\v\b\x1b")) + b"\x7f"
_MAX_BINARY_SHARE = 0.01
_WIDE = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A text without its byte order mark. `lossy`: some bytes could not be decoded and are written
    as `\\xff`."""

    text: str
    encoding: str
    lossy: bool = False


def is_binary(head: bytes) -> bool:
    """Whether a file that begins with `head` is certainly not text."""
    return b"\0" in head and _wide_encoding(head) is None


def decode(data: bytes) -> Decoded:
    """The text of a file. Raises Rejected when it is empty, binary or in an unknown encoding."""
    wide = _wide_encoding(data[:HEAD])
    if wide is not None and not wide.startswith("utf-8"):
        decoded = _decode_wide(data, wide)
    else:
        decoded = _decode_bytes(data.removeprefix(codecs.BOM_UTF8))
    if not decoded.text.strip():
        raise Rejected(Reason.EMPTY)
    return decoded


def _wide_encoding(head: bytes) -> str | None:
    """The encoding of the byte order mark, or UTF-16 without a mark: in mostly Latin text, every
    other byte is then NUL."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    even, odd = head[0:4096:2].count(0), head[1:4096:2].count(0)
    half = min(len(head), 4096) // 2
    if half >= 8 and max(even, odd) > 0.4 * half and min(even, odd) == 0:
        return "utf-16-le" if odd else "utf-16-be"
    return None


def _decode_wide(data: bytes, encoding: str) -> Decoded:
    try:
        text = data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise Rejected(Reason.BINARY) from None
    if _WIDE.search(text):
        raise Rejected(Reason.BINARY)
    return Decoded(text, encoding)


def _decode_bytes(data: bytes) -> Decoded:
    if b"\0" in data:
        raise Rejected(Reason.BINARY)
    try:
        return Decoded(data.decode(), "utf-8")
    except UnicodeDecodeError as error:
        sample = _sample(data, error.start)
    if len(sample) - len(sample.translate(None, _BINARY_BYTES)) > _MAX_BINARY_SHARE * len(sample):
        raise Rejected(Reason.BINARY)
    if _is_mostly_utf8(sample):
        return Decoded(data.decode("utf-8", "backslashreplace"), "utf-8", lossy=True)
    encoding = _legacy_encoding(sample)
    if encoding is None:
        raise Rejected(Reason.ENCODING)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise Rejected(Reason.ENCODING) from None
    return Decoded(text, encoding)


def _sample(data: bytes, fault: int) -> bytes:
    """Lines from the start of the file and from around the first byte that is not UTF-8 (at
    `fault`): enough to detect the encoding quickly."""
    start = max(fault - _SAMPLE, 0)
    around = data[start : fault + _SAMPLE]
    end = around.rfind(b"\n") + 1
    if fault + _SAMPLE < len(data) and end > fault - start:
        around = around[:end]
    if start == 0:
        return around
    begin = around.find(b"\n", 0, fault - start) + 1
    return data[: data.rfind(b"\n", 0, _SAMPLE) + 1] + around[begin:]


def _is_mostly_utf8(sample: bytes) -> bool:
    """Whether there are ten times as many valid non-ASCII characters as invalid bytes."""
    text = sample.decode("utf-8", "surrogateescape")
    wrong = sum("\udc80" <= character <= "\udcff" for character in text)
    right = sum(character > "\x7f" for character in text) - wrong
    return right >= 10 * wrong


def _legacy_encoding(sample: bytes) -> str | None:
    matches = from_bytes(sample, cp_isolation=_LEGACY)
    best = matches.best()
    if best is None:
        return None
    # Prefer Western European where Central European, Baltic or Turkish fit no better.
    for match in matches:
        alike = match.chaos <= best.chaos + _CLOSE and match.coherence >= best.coherence - _CLOSE
        if alike and _USUAL in match.could_be_from_charset:
            return _USUAL
    return best.encoding

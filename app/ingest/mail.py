"""The text of mails: the head, the body, and the texts attached."""

from __future__ import annotations

import email.feedparser
import email.header
import email.message
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from app.ingest.text import Decoded, declared_encoding, decode
from app.ingest.web_page import page_text

_HEAD = ("From", "To", "Cc", "Date", "Subject")
_NEXT_IN_MBOX = re.compile(
    rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\r\n]*+\r?\n(?=>?[!-9;-~]{1,100}+:)"
)
_BYTE_COUNT = re.compile(rb"\s*[0-9]{1,12}\s*\n")
_CONTENT_HEADER = re.compile(rb"^content-[a-z-]{1,40}:[^\n]*(?:\n[ \t][^\n]*)*", re.I | re.M)
_MAX_HEADER = 8_192
_PIECE = 1 << 14
"""Bytes that are parsed before the next check."""
MAX_DEPTH = 20
"""How deeply mails and their parts may be nested."""


@dataclass(slots=True)
class Mail:
    """The text of a mail, or of several in one file."""

    text: str = ""
    unread: list[str] = field(default_factory=list)
    """Names of attachments that are no text."""
    doubts: list[Decoded] = field(default_factory=list)
    """Parts whose encoding was guessed, or that have bad bytes."""


def read_mail(data: bytes, check: Callable[[], None]) -> Mail | None:
    """None if it cannot be parsed. Raises what `check` raises."""
    if any(len(hit[0]) > _MAX_HEADER for hit in _CONTENT_HEADER.finditer(data)):
        return None  # Python's parser of parameters takes time with the square of their length
    mail, starts, ends = Mail(), [0], [len(data)]
    if data.startswith(b"From ") and (marks := [*_NEXT_IN_MBOX.finditer(data)]):
        starts = [mark.end() for mark in marks]
        ends = [*(mark.start() for mark in marks[1:]), len(data)]
    elif (count := _BYTE_COUNT.match(data)) is not None:  # as Apple's Mail keeps it
        starts = [count.end()]
    texts = []
    for start, end in zip(starts, ends, strict=True):
        check()
        try:
            message = _parsed(data, start, end, check)
            texts.append("".join(_mail(message, mail, 0)).strip("\n") + "\n")
        except (RecursionError, AssertionError, LookupError, ValueError, TypeError, AttributeError):
            return None
    mail.text = "\n".join(texts).replace("\r\n", "\n")
    return mail


def _parsed(data: bytes, start: int, end: int, check: Callable[[], None]) -> email.message.Message:
    """The mail from `start` to `end`. In parts within parts, each line takes time with their
    number, so `check` is called meanwhile."""
    parser = email.feedparser.BytesFeedParser()
    for at in range(start, end, _PIECE):
        check()
        parser.feed(data[at : min(at + _PIECE, end)])
    return parser.close()


def _mail(message: email.message.Message, mail: Mail, depth: int) -> Iterator[str]:
    head: dict[str, str] = {}
    for name, value in message.raw_items():
        head.setdefault(name.lower(), str(value))
    for name in _HEAD:
        if text := _header(head.get(name.lower())):
            yield f"{name}: {text}\n"
    yield "\n"
    yield from _part(message, mail, depth)


def _part(part: email.message.Message, mail: Mail, depth: int) -> Iterator[str]:
    """The texts of a part and of those within it."""
    kind, name = part.get_content_type(), _header(part.get_filename())
    inner = part.get_payload()
    attached = part.get_content_disposition() == "attachment"
    if depth > MAX_DEPTH:
        mail.unread.append(name or "a part nested too deeply")
    elif kind == "message/rfc822" and isinstance(inner, list):
        yield "\n[Attached mail]\n"
        for each in _messages(inner):
            yield from _mail(each, mail, depth + 1)
    elif isinstance(inner, list):
        parts = _messages(inner)
        for each in _chosen(parts) if kind == "multipart/alternative" else parts:
            yield from _part(each, mail, depth + 1)
    elif kind in ("text/plain", "text/html") or (part.get_content_maintype() == "text" and name):
        if attached and name:
            yield f"\n[Attachment {name}]\n"
        decoded = _decoded(part)
        if decoded.lossy or decoded.guessed:
            mail.doubts.append(decoded)
        text = page_text(decoded.text) if kind == "text/html" else decoded.text
        yield text.rstrip("\n") + "\n"
    elif name or attached:
        mail.unread.append(name or kind)
        yield f"\n[Attachment {name or kind}, not read]\n"


def _messages(parts: list[Any]) -> list[email.message.Message]:
    return [part for part in parts if isinstance(part, email.message.Message)]


def _chosen(parts: list[email.message.Message]) -> list[email.message.Message]:
    """The plain form of a text that is sent in several, or else the form with the most text."""
    for wanted in ("text/plain", "text/html"):
        for part in parts:
            if part.get_content_type() == wanted and _decoded(part).text.strip():
                return [part]
    return parts[-1:]


def _decoded(part: email.message.Message) -> Decoded:
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes) or not data.strip():
        return Decoded("", "")
    charset = part.get_content_charset()
    with suppress(LookupError, UnicodeDecodeError):
        if charset is not None and (encoding := declared_encoding(charset)) is not None:
            return Decoded(data.decode(encoding), encoding)
    with suppress(Exception):
        return decode(data)
    return Decoded(data.decode("utf-8", "backslashreplace"), "utf-8", lossy=True)


def _header(value: object) -> str:
    """A header on one line, with its words decoded; empty if there is none."""
    text = "" if value is None else str(value)[:_MAX_HEADER]
    with suppress(Exception):  # bytes beyond ASCII, as newer mails have them, come as surrogates
        text = text if text.isascii() else decode(text.encode("ascii", "surrogateescape")).text
    with suppress(Exception):  # whatever a malformed word raises
        text = str(email.header.make_header(email.header.decode_header(text)))
    return " ".join(text.split())

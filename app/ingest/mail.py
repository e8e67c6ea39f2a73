"""Extracts the text of mails: headers, body, attached texts, invitations and reports."""

from __future__ import annotations

import base64
import email.feedparser
import email.header
import email.message
import email.parser
import quopri
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from app.ingest import markdown
from app.ingest.calendar_text import calendar_events
from app.ingest.text import Decoded, declared_encoding, decode
from app.ingest.web_page import mail_text, page_text

_HEAD = ("From", "To", "Cc", "Date", "Subject")
_NEXT_IN_MBOX = re.compile(
    rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\r\n]*+\r?\n(?=>?[!-9;-~]{1,100}+:)"
)
_QUOTED_IN_MBOX = re.compile(rb"^>(?=>*+From )", re.MULTILINE)
_BYTE_COUNT = re.compile(rb"\s*[0-9]{1,12}\s*\n")
_CONTENT_HEADER = re.compile(rb"^content-[a-z-]{1,40}:[^\n]*(?:\n[ \t][^\n]*)*", re.I | re.M)
_NEEDS_SPACE = re.compile(r" (?= |>|From )")
_SIGNATURE = "-- "
_ADDRESS = re.compile(r"https?://\S+")
_WORD = re.compile(r"[^\W_]+")
_MARKDOWN = (".md", ".markdown")
_CALENDARS = ("text/calendar", "text/x-vcalendar", "application/ics")
_MAILS = ("message/rfc822", "message/global", "message/news", "message/partial")
_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "quoted-printable": quopri.decodestring,
    "base64": base64.b64decode,
}
_OTHER_FORMS = ("text/x-amp-html", "text/watch-html")
"""Forms of a mail for certain programs, which say the same as the others."""
_ENOUGH_WORDS = 0.75
"""Words of a plain text, as a share of those of the longest form, with which it is preferred."""
_MAX_INVITATIONS = 10
"""A calendar of more events is no invitation, whose description the mail may repeat."""
_MAX_HEADER = 8_192
_PIECE = 1 << 14
"""Bytes that are parsed between two checks."""
MAX_DEPTH = 20
"""Maximum nesting of mails and their parts."""


@dataclass(slots=True)
class Mail:
    """The text of one or more mails in a file."""

    text: str = ""
    unread: list[str] = field(default_factory=list)
    """Names of attachments that are not text."""
    doubts: list[Decoded] = field(default_factory=list)
    """Parts whose encoding was guessed, or that have invalid bytes."""


def read_mail(data: bytes, check: Callable[[], None]) -> Mail | None:
    """Extract the text of a mail or mailbox; None if it cannot be parsed. Raises what `check`
    raises."""
    if any(len(hit[0]) > _MAX_HEADER for hit in _CONTENT_HEADER.finditer(data)):
        return None  # Python's parser of parameters takes quadratic time
    starts, ends = [0], [len(data)]
    is_mailbox = data.startswith(b"From ")
    if is_mailbox and (marks := [*_NEXT_IN_MBOX.finditer(data)]):
        starts = [mark.end() for mark in marks]
        ends = [*(mark.start() for mark in marks[1:]), len(data)]
    elif (count := _BYTE_COUNT.match(data)) is not None:  # the format of Apple Mail
        starts = [count.end()]
    mail, texts = Mail(), []
    for start, end in zip(starts, ends, strict=True):
        check()
        source = data[start:end]
        if is_mailbox:
            source = _QUOTED_IN_MBOX.sub(b"", source)
        try:
            message = _parsed(source, check)
            texts.append(_Reader(mail, check).mail(message, 0).strip("\n") + "\n")
        except (RecursionError, AssertionError, LookupError, ValueError, TypeError, AttributeError):
            return None
    mail.text = "\n".join(texts).replace("\r\n", "\n")
    return mail


class _Message(email.message.Message):
    """A mail, or a part of one. Each line is compared with the boundaries of all parts around it,
    so those that are nested too deeply are not divided."""

    depth = 0

    def attach(self, payload: Any) -> None:
        payload.depth = self.depth + 1
        super().attach(payload)

    def get_boundary(self, failobj: Any = None) -> Any:
        return failobj if self.depth > MAX_DEPTH else super().get_boundary(failobj)


def _parsed(data: bytes, check: Callable[[], None]) -> email.message.Message:
    parser = email.feedparser.BytesFeedParser(_Message)
    for at in range(0, len(data), _PIECE):
        check()
        parser.feed(data[at : at + _PIECE])
    return parser.close()


@dataclass(frozen=True, slots=True)
class _Piece:
    """The text of a part of a mail."""

    text: str
    is_own: bool = False
    """Whether it is the mail's own text, not something attached to it."""
    end: str = ""
    """What ends here if the mail's own text goes on."""
    details: str = ""
    """What follows, unless the mail's own text says it."""
    unread: str = ""
    doubt: Decoded | None = None


_TOO_DEEP = _Piece("\n[A part nested too deeply, not read]\n", unread="a part nested too deeply")


class _Reader:
    """Reads a mail and those that are attached to it."""

    def __init__(self, mail: Mail, check: Callable[[], None]) -> None:
        self._mail, self._check = mail, check
        self._events: set[str] = set()

    def mail(self, message: email.message.Message, depth: int) -> str:
        pieces = self._part(message, depth)
        own = " ".join(" ".join(piece.text for piece in pieces if piece.is_own).split())
        texts = [_head(message), "\n"]
        ended = ""
        for piece in pieces:
            if piece.is_own and ended and piece.text.strip():
                texts.append(f"\n[End of {ended}]\n")
                ended = ""
            texts.append(piece.text)
            if piece.details and " ".join(piece.details.split()) not in own:
                texts.append(f"{piece.details}\n")
            ended = piece.end or ended
            if piece.unread:
                self._mail.unread.append(piece.unread)
            if piece.doubt is not None:
                self._mail.doubts.append(piece.doubt)
        return "".join(texts)

    def _part(self, part: email.message.Message, depth: int, related: bool = False) -> list[_Piece]:
        """The texts of a part and of the parts inside it. `related`: it belongs to a page, such as
        its pictures."""
        self._check()
        kind, name = part.get_content_type(), _header(part.get_filename())
        inner, has_parts = _inside(part), part.is_multipart()
        if depth > MAX_DEPTH:
            return [_unread(name)] if name else [_TOO_DEEP]
        if kind == "message/external-body":
            return [_unread(name or "a file that is kept elsewhere")]
        if kind in _MAILS:
            return self._attached_mail(part, name, depth)
        if kind == "text/rfc822-headers":
            head = _head(email.parser.HeaderParser().parsestr(_decoded(part).text.lstrip()))
            return [_Piece(f"\n[Headers of the returned mail]\n{head}", end="the returned mail")]
        if kind.startswith("message/") and has_parts:
            return [_Piece(f"\n[Report]\n{_fields(inner)}", end="the report")]
        if kind == "multipart/alternative" and has_parts:
            return self._chosen(inner, depth)
        if has_parts:
            is_page = kind == "multipart/related"
            return [
                piece
                for at, each in enumerate(inner)
                for piece in self._part(each, depth + 1, is_page and at > 0)
            ]
        if kind in _CALENDARS or name.lower().endswith(".ics"):
            return self._calendar(part, name)
        is_attached = part.get_content_disposition() == "attachment"
        shown = name or (kind if is_attached else "")
        is_text = kind.startswith(("text/", "multipart/"))
        if related and not name and kind not in ("text/plain", "text/html"):
            is_text = False  # a style sheet
        if is_text:
            return [self._text(part, kind, shown if depth else "")]
        return [_unread(name or kind)] if shown or not related else []

    def _attached_mail(self, part: email.message.Message, name: str, depth: int) -> list[_Piece]:
        messages = _inside(part)
        encoding = str(part.get("Content-Transfer-Encoding", "")).strip().lower()
        is_plain = encoding == "base64" and messages and messages[0].keys()
        if messages and encoding in _DECODERS and not is_plain:
            source = b""
            with suppress(ValueError):
                source = _DECODERS[encoding](messages[0].as_bytes()).lstrip()
            messages = [_parsed(source, self._check)] if source else []
        if not messages:
            return [_unread(name or "a mail")]
        texts = [self.mail(each, depth + 1) for each in messages]
        return [_Piece(f"\n[Attached mail]\n{''.join(texts)}", end="the attached mail")]

    def _chosen(self, parts: list[email.message.Message], depth: int) -> list[_Piece]:
        """The form of a text that says most. A plain one is preferred if it says nearly as much. An
        attachment may be inside another form."""
        main = [part for part in parts if part.get_content_type() not in _OTHER_FORMS]
        forms = [self._part(part, depth + 1) for part in main or parts]
        sizes = [sum(_words(piece.text) for piece in form if piece.is_own) for form in forms]
        chosen = max(range(len(forms)), key=sizes.__getitem__, default=0)
        for at, part in enumerate(main):
            is_plain = part.get_content_type() == "text/plain"
            if is_plain and sizes[at] and sizes[at] >= _ENOUGH_WORDS * max(sizes):
                chosen = at
                break
        return [
            piece
            for at, form in enumerate(forms)
            for piece in form
            if at == chosen or not piece.is_own
        ]

    def _calendar(self, part: email.message.Message, name: str) -> list[_Piece]:
        """The events of a calendar. Many mails have the same one twice, as text and as file."""
        events = dict(calendar_events(_decoded(part).text))
        if not events:
            return [self._text(part, "text/calendar", name or "calendar.ics")]
        new = {event: details for event, details in events.items() if event not in self._events}
        self._events |= new.keys()
        if len(events) > _MAX_INVITATIONS:
            new = {f"{event}\n{details}": "" for event, details in new.items()}
        return [
            _Piece(f"\n{event}\n", end="the event", details=details)
            for event, details in new.items()
        ]

    def _text(self, part: email.message.Message, kind: str, name: str) -> _Piece:
        decoded = _decoded(part)
        text = decoded.text
        is_page = part.get("Content-Location") is not None
        if kind == "text/html":
            text = page_text(text, self._check) if name or is_page else mail_text(text, self._check)
        elif name:
            text = text if name.lower().endswith(_MARKDOWN) else markdown.plain(text)
        else:
            if str(part.get_param("format", "")).lower() == "flowed":
                is_spaced = str(part.get_param("delsp", "")).lower() == "yes"
                lines = text.replace("\r\n", "\n").split("\n")
                text = "\n".join(_unwrapped(lines, is_spaced))
            text = markdown.visible(text)
        shown = text.rstrip("\n") + "\n"
        doubt = decoded if decoded.lossy or decoded.guessed else None
        if name:
            return _Piece(f"\n[Attachment {name}]\n{shown}", end=name, doubt=doubt)
        return _Piece(shown, is_own=True, doubt=doubt)


def _unread(name: str) -> _Piece:
    return _Piece(f"\n[Attachment {name}, not read]\n", unread=name)


def _head(message: email.message.Message) -> str:
    """The headers that mail programs show."""
    head: dict[str, str] = {}
    for name, value in message.raw_items():
        head.setdefault(name.lower(), str(value))
    shown = ((name, _header(head.get(name.lower()))) for name in _HEAD)
    return "".join(f"{name}: {text}\n" for name, text in shown if text)


def _fields(blocks: Iterable[email.message.Message]) -> str:
    """All headers of the blocks of a report."""
    texts = (
        "".join(f"{name}: {_header(value)}\n" for name, value in block.raw_items())
        for block in blocks
    )
    return "\n".join(filter(None, texts))


def _inside(part: email.message.Message) -> list[email.message.Message]:
    """The parts of a part, or the mail that is attached."""
    inner: Any = part.get_payload()
    return inner if isinstance(inner, list) else []


def _words(text: str) -> int:
    """Number of words of a text, without those of addresses."""
    return len(_WORD.findall(_ADDRESS.sub("", text)))


def _unwrapped(lines: Iterable[str], is_spaced: bool) -> Iterator[str]:
    """Join the lines of paragraphs (`format=flowed`): each but the last ends with a space, which is
    not part of the text if `is_spaced` (`delsp=yes`)."""
    paragraph: list[str] = []
    depth, is_open = 0, False
    for line in lines:
        text = line.lstrip(">")
        quotes = len(line) - len(text)
        text = text.removeprefix(" ") if quotes or _NEEDS_SPACE.match(text) else text
        if paragraph and not (is_open and quotes == depth and text != _SIGNATURE):
            yield _quoted("".join(paragraph), depth)
            paragraph = []
        is_open, depth = text.endswith(" ") and text != _SIGNATURE, quotes
        paragraph.append(text[:-1] if is_open and is_spaced else text)
    yield _quoted("".join(paragraph), depth)


def _quoted(text: str, depth: int) -> str:
    return f"{'>' * depth} {text}" if depth else text


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
    """A decoded header on one line; an empty string if there is none."""
    text = "" if value is None else str(value)[:_MAX_HEADER]
    with suppress(Exception):  # newer mails have bytes beyond ASCII, which appear as surrogates
        text = text if text.isascii() else decode(text.encode("ascii", "surrogateescape")).text
    with suppress(Exception):  # malformed words may raise anything
        text = str(email.header.make_header(email.header.decode_header(text)))
    return " ".join(text.split())

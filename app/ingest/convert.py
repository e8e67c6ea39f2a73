"""Converts files without parts to what a program would show: Rich Text, mail, web pages and
text formats such as notebooks. Other files are their own text."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from app.ingest.kinds import TEXT_FORMATS, Kind
from app.ingest.records import Rejected, SkipReason
from app.ingest.text import Decoded, declared_encoding, decode
from app.ingest.web_page import page_text
from app.util import formatting

if TYPE_CHECKING:
    from app.ingest.mail import Mail

_MAX_NAMES = 5
"""Maximum number of a mail's attachments to list by name."""


def converted(kind: Kind, suffix: str, data: bytes, check: Callable[[], None]) -> Decoded:
    """The text of a file; `suffix` is the end of its name. `check` is called regularly, and may
    raise. Raises Rejected."""
    # Imported where they are used: this also runs in a process for one file.
    content = data.removeprefix(codecs.BOM_UTF8)
    if kind is Kind.RTF:
        from app.ingest import rtf

        part = rtf.read_rtf(content.lstrip(), check)
        missing = tuple(Rejected(SkipReason.PARTLY, *each) for each in part.said)
        return Decoded(part.text, "rtf", missing=missing)
    if kind is Kind.WEB_ARCHIVE:
        return _web_archive(data, check)
    if kind is Kind.MAIL:
        from app.ingest.mail import read_mail

        if (mail := read_mail(content, check)) is not None:
            return _decoded_mail(mail)
    decoded = decode(data)
    if kind is Kind.PAGE:
        return replace(decoded, text=page_text(decoded.text, check))
    if kind is Kind.TEXT_FORMAT:
        text_of = resolve_name(TEXT_FORMATS[suffix])
        if (text := text_of(decoded.text)) is not None:
            return replace(decoded, text=text)
    return decoded


def _decoded_mail(mail: Mail) -> Decoded:
    from app.ingest.filenames import printable

    missing: tuple[Rejected, ...] = ()
    if mail.unread:
        number = formatting.plural(len(mail.unread), "attachment")
        names = ", ".join(printable(each) for each in mail.unread[:_MAX_NAMES])
        more = ", …" if len(mail.unread) > _MAX_NAMES else ""
        detail = f"has {number} that cannot be read ({names}{more})"
        missing = (Rejected(SkipReason.ATTACHED, detail),)
    lossy = any(each.lossy for each in mail.doubts)
    guess = next((each.encoding for each in mail.doubts if each.guessed), None)
    encoding = guess or next((each.encoding for each in mail.doubts), "mail")
    return Decoded(mail.text, encoding, lossy, guess is not None, missing)


def _web_archive(data: bytes, check: Callable[[], None]) -> Decoded:
    """The main page of a file that Safari saved."""
    import plistlib

    try:
        main = plistlib.loads(data)["WebMainResource"]
        content, kind = main["WebResourceData"], main.get("WebResourceMIMEType", "text/html")
        if not isinstance(content, bytes) or not str(kind).startswith("text/"):
            raise ValueError(kind)
        encoding = declared_encoding(str(main.get("WebResourceTextEncodingName", "")))
        decoded = decode(content)
        if encoding is not None:
            decoded = Decoded(content.decode(encoding), encoding)
    except Rejected:
        raise
    except Exception:  # a damaged file may raise anything
        detail, advice = "is a web archive that is damaged", "save the page as HTML"
        raise Rejected(SkipReason.DOCUMENT, detail, advice) from None
    return replace(decoded, text=page_text(decoded.text, check))

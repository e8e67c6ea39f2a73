"""The text of one file: opened, checked by its first bytes, read and decoded."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from app.ingest import rtf
from app.ingest.budget import ReadBudget
from app.ingest.filenames import is_private_key, printable
from app.ingest.limits import Limits
from app.ingest.mail import Mail, read_mail
from app.ingest.notebook import notebook_text
from app.ingest.pdf import is_pdf, pdf_text
from app.ingest.records import FileRead, Reason, Rejected
from app.ingest.safe_open import read_file
from app.ingest.text import Decoded, decode, is_binary, whole_characters
from app.ingest.web_page import is_page, page_text
from app.util import formatting

_MAILS = frozenset({".eml", ".emlx", ".mbox", ".mht", ".mhtml"})
_PAGES = frozenset({".html", ".htm", ".xhtml"})
_MAX_NAMES = 5
"""Attachments that are listed by name."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """`size` is in bytes of the file."""

    decoded: Decoded
    size: int


def read_content(
    name: str,
    parent: int | None,
    limits: Limits,
    budget: ReadBudget,
    max_bytes: int,
    include_private: bool,
) -> FileContent:
    """The text of a file of at most `max_bytes`: `name` in the open folder `parent`, or a path.

    `include_private`: also read private keys. Raises Rejected, LimitReached and Cancelled.
    """

    def size_limit(head: bytes) -> int:
        if is_pdf(head):
            return limits.pdf_bytes
        if is_binary(head):
            raise Rejected(Reason.BINARY)
        if not include_private and is_private_key(head):
            raise Rejected(Reason.PRIVATE, "is a private key")
        return max_bytes

    data = read_file(name, parent, size_limit, budget)
    return FileContent(text_of(name, data, limits, budget), len(data))


def text_of(name: str, data: bytes, limits: Limits, budget: ReadBudget) -> Decoded:
    """The text of a file. What a program would show of a PDF file, a web page, a notebook, a mail
    or Rich Text; of all others what they hold. Raises like `read_content`."""
    decoded = _decoded(name, data, limits, budget)
    if not decoded.text.strip():
        raise Rejected(Reason.EMPTY)
    return replace(decoded, text=whole_characters(decoded.text))


def _decoded(name: str, data: bytes, limits: Limits, budget: ReadBudget) -> Decoded:
    suffix = os.path.splitext(name)[1].lower()
    if is_pdf(data):
        return pdf_text(data, limits, budget)
    if data.lstrip().startswith(rtf.MARK):
        return Decoded(rtf.rtf_text(data, budget.check), "rtf")
    if suffix in _MAILS and (mail := read_mail(data, budget.check)) is not None:
        return _decoded_mail(mail)
    decoded = decode(data)
    if suffix in _PAGES or (not suffix and is_page(decoded.text)):
        return replace(decoded, text=page_text(decoded.text, budget.check))
    if suffix == ".ipynb" and (text := notebook_text(decoded.text)) is not None:
        return replace(decoded, text=text)
    return decoded


def _decoded_mail(mail: Mail) -> Decoded:
    missing: tuple[Rejected, ...] = ()
    if mail.unread:
        number = formatting.plural(len(mail.unread), "attachment")
        names = ", ".join(printable(each) for each in mail.unread[:_MAX_NAMES])
        more = ", …" if len(mail.unread) > _MAX_NAMES else ""
        detail = f"has {number} that cannot be read ({names}{more})"
        missing = (Rejected(Reason.ATTACHED, detail),)
    lossy = any(each.lossy for each in mail.doubts)
    guess = next((each.encoding for each in mail.doubts if each.guessed), None)
    encoding = guess or next((each.encoding for each in mail.doubts), "mail")
    return Decoded(mail.text, encoding, lossy, guess is not None, missing)


def file_read(path: str, content: FileContent) -> FileRead:
    decoded = content.decoded
    return FileRead(path, content.size, decoded.encoding, decoded.lossy, decoded.guessed)

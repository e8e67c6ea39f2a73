"""Finds out what a file is: by its content, and by its name only where the content does not tell.

Web programs export pages as `.xls` and `.doc`, and documents on standard input have no name.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Container
from enum import StrEnum

from app.ingest.parts import OLE
from app.ingest.records import Rejected, SkipReason
from app.ingest.safe_open import HEAD
from app.ingest.text import is_binary, wide_encoding
from app.ingest.web_page import is_page


class Kind(StrEnum):
    PDF = "pdf"
    ARCHIVE = "archive"
    """A zip archive of XML files, as office documents and e-books are, or an encrypted one."""
    FLAT = "flat"
    """An OpenDocument file that is a single XML file."""
    WORKBOOK_XML = "workbook"
    """An Excel workbook that is a single XML file."""
    RTF = "rtf"
    MAIL = "mail"
    """Also pages that are saved as mails (MHTML)."""
    PAGE = "page"
    WEB_ARCHIVE = "web archive"
    """A page that Safari saved."""
    TEXT_FORMAT = "text format"
    """One of `TEXT_FORMATS`."""
    TEXT = "text"

    @property
    def has_parts(self) -> bool:
        """Whether it is read in pages, slides, sheets or sections."""
        return self in (Kind.PDF, Kind.ARCHIVE, Kind.FLAT, Kind.WORKBOOK_XML)


TEXT_FORMATS = {".ipynb": "app.ingest.notebook:notebook_text"}
"""By the end of a name: the function that makes what a program would show of the content, or None
if the content is something else."""
SUFFIXES = {
    ".pdf": "a PDF",
    **dict.fromkeys((".docx", ".docm", ".dotx", ".dotm"), "a Word"),
    **dict.fromkeys((".xlsx", ".xlsm", ".xltx", ".xltm"), "an Excel"),
    **dict.fromkeys((".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm"), "a PowerPoint"),
    **dict.fromkeys((".odt", ".ods", ".odp", ".odg", ".ott", ".ots", ".otp"), "an OpenDocument"),
    **dict.fromkeys((".fodt", ".fods", ".fodp", ".fodg"), "an OpenDocument"),
    ".epub": "an EPUB",
}
"""Kinds of documents by the ends of their names."""
_OLD = {
    **dict.fromkeys((".doc", ".dot"), "DOCX"),
    **dict.fromkeys((".xls", ".xlt", ".xla", ".xlw"), "XLSX"),
    **dict.fromkeys((".ppt", ".pps", ".pot"), "PPTX"),
}
"""What to save files in an old Office format as."""
_STREAMS = {
    "WordDocument": "DOCX",
    "Workbook": "XLSX",
    "Book": "XLSX",
    "PowerPoint Document": "PPTX",
}
"""The same by the names of the streams in them."""
_APPLE = {".pages": "Word", ".numbers": "Excel", ".key": "PowerPoint"}
"""What Apple's programs export their documents as, beside PDF."""
_REFUSED = frozenset({".xlsb", ".msg", ".webarchive", ".xps", ".oxps", ".vsdx", *_APPLE})
_MAILS = frozenset({".eml", ".emlx", ".mbox", ".mht", ".mhtml"})
_PAGES = frozenset({".html", ".htm", ".xhtml"})
_BY_CONTENT = frozenset({"", ".rtf", ".csv", ".tsv", *SUFFIXES, *_OLD, *_MAILS, *_PAGES})
"""Files whose content tells whether they are web pages or mails."""

_PDF, _ZIP, _RTF, _PROPERTY_LIST = b"%PDF-", b"PK\x03\x04", b"{\\rtf", b"bplist00"
_INSIDE = re.compile(
    rb"PK\x03\x04.{26}(?:\[Content_Types\]\.xml|_rels/\.rels"
    rb"|mimetypeapplication/(?:epub\+zip|vnd\.oasis\.opendocument))",
    re.DOTALL,
)
"""First members of most documents; an archive of another name without them is none."""
_MARKUP = re.compile(
    r"(?:\s|<\?xml[^>]{0,200}\?>|<!--(?:[^-]|-(?!->)){0,2000}-->)*+"
    r"<(?:!doctype\s+html|(?:html|head|meta|title|style|body|table|div|p|h[1-6]|center|font|span|b)"
    r"\b)",
    re.IGNORECASE,
)
"""The beginning of a web page, or of a part of one."""
_MIME = re.compile(
    r"^(?:mime-version:|content-type:[ \t]*multipart/)", re.IGNORECASE | re.MULTILINE
)
_HEADERS = re.compile(r"(?:[!-9;-~]{1,60}+:[^\n]*+\n(?:[ \t][^\n]*+\n)*+)++\r?\n")
_ROOT = re.compile(
    r"(?:\s|<\?[^>]{0,300}\?>|<!--(?:[^-]|-(?!->)){0,2000}-->"
    r"|<!DOCTYPE[^>\[]{0,300}(?:\[[^\]]{0,2000}\]\s?)?>)*+"
    r"<(?:[\w.-]{1,40}+:)?([\w.-]{1,40}+)\s([^>]*+)"
)
"""The first element of an XML file, and its attributes."""
_ROOTS = (
    ("document", "urn:oasis:names:tc:opendocument:xmlns:office:", Kind.FLAT),
    ("Workbook", "urn:schemas-microsoft-com:office:spreadsheet", Kind.WORKBOOK_XML),
    ("wordDocument", "http://schemas.microsoft.com/office/word/", None),
    ("package", "http://schemas.microsoft.com/office/2006/xmlPackage", None),
)
"""Names of first elements, what is in their attributes, and the kind; None: not read."""
_POINTERS = (
    (b"version https://git-lfs.github.com/spec/", "Git LFS", "run `git lfs pull`"),
    (b"/annex/objects/", "git-annex", "run `git annex get`"),
)
_MAX_POINTER = 1024
_MAGIC = (
    (60, b"BOOKMOBI", "is a Kindle book", "convert it to EPUB"),
    (0, b"AT&TFORM", "is a DjVu file", "convert it to PDF"),
    (0, b"\xffWPC", "is a WordPerfect file", "save it as DOCX"),
)
"""Offsets and first bytes of files that other programs convert."""
_REFUSED_ARCHIVES = {
    "binary workbook": ("is a binary Excel workbook", "save it as XLSX"),
    "apple": ("is a document of Pages, Numbers or Keynote", "export it as PDF or {}"),
    "xps": ("is an XPS file", "save it as PDF"),
    "visio": ("is a Visio drawing", "save it as PDF"),
}
"""Archives of XML files that cannot be read: what they are, and what to do."""


def suffix_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def is_document(name: str, head: bytes, alone: bool = True) -> bool:
    """Whether a file that begins with `head` is a document, or may be one, which `kind_of` finds
    out from the whole file. `alone`: it is not one of many in a folder."""
    suffix = suffix_of(name)
    if head.startswith((_ZIP, OLE)):
        known = suffix in SUFFIXES or suffix in _OLD or suffix in _REFUSED
        return alone or not suffix or known or _INSIDE.match(head) is not None
    if head.startswith(_PROPERTY_LIST):
        return suffix == ".webarchive"
    return begins_as_pdf(head) or (suffix in _OLD and is_binary(head))


def begins_as_pdf(head: bytes) -> bool:
    """Whether a file that begins with `head` is a PDF. A byte order mark and white space may stand
    before it."""
    return head[:1024].removeprefix(codecs.BOM_UTF8).lstrip().startswith(_PDF)


def kind_of(name: str, data: bytes) -> Kind:
    """The kind of a file. Raises Rejected for files that cannot be read, but that another program
    can make readable."""
    suffix, begins = suffix_of(name), _beginning(data)
    _refuse(suffix, data)
    if begins_as_pdf(data):
        return Kind.PDF
    if data.startswith((_ZIP, OLE)):
        return Kind.ARCHIVE
    if data.startswith(_PROPERTY_LIST) and suffix == ".webarchive":
        return Kind.WEB_ARCHIVE
    if begins.startswith(_RTF.decode()):
        return Kind.RTF
    if (kind := _kind_of_xml(begins)) is not None:
        return kind
    if suffix in _BY_CONTENT and _is_mail(begins):
        return Kind.MAIL
    if suffix in _PAGES or _is_named_page(suffix, begins):
        return Kind.PAGE
    if suffix in _MAILS:
        return Kind.MAIL
    return Kind.TEXT_FORMAT if suffix in TEXT_FORMATS else Kind.TEXT


def _is_named_page(suffix: str, text: str) -> bool:
    """Whether a file is a web page although its name does not say so. One that is named like a
    document may be a part of a page."""
    if suffix in SUFFIXES or suffix in _OLD:
        return _MARKUP.match(text) is not None
    return suffix in _BY_CONTENT and is_page(text)


def refusal_of_head(head: bytes) -> Rejected | None:
    """The refusal of a file that begins with `head`, if that tells: of a small one that stands in a
    repository for a large one, and of formats that other programs convert."""
    for begins, program, command in _POINTERS:
        if len(head) <= _MAX_POINTER and head.startswith(begins):
            detail = f"is a {program} pointer, not the file itself"
            return Rejected(SkipReason.POINTER, detail, f"{command}, then add it again")
    for offset, magic, detail, advice in _MAGIC:
        if head.startswith(magic, offset):
            return Rejected(SkipReason.DOCUMENT, detail, advice)
    return None


def refused_archive(kind: str, suffix: str) -> Rejected:
    """The refusal of an archive of XML files, by its kind (see `office.REFUSED`)."""
    detail, advice = _REFUSED_ARCHIVES[kind]
    advice = advice.format(_APPLE.get(suffix, "for Office"))
    return Rejected(SkipReason.DOCUMENT, detail, advice)


def apple_bundle(name: str, entries: Container[str]) -> Rejected | None:
    """The refusal of a folder that is a document of Pages, Numbers or Keynote."""
    suffix = suffix_of(name)
    is_one = suffix in _APPLE and any(
        each in entries
        for each in ("Index", "Index.zip", "index.xml", "index.xml.gz", "index.apxl.gz")
    )
    return refused_archive("apple", suffix) if is_one else None


def _refuse(suffix: str, data: bytes) -> None:
    if (rejected := refusal_of_head(data)) is not None:
        raise rejected
    if data.startswith(OLE):
        if "EncryptedPackage".encode("utf-16-le") in data:
            return
        if "__substg1.0_".encode("utf-16-le") in data:
            detail = "is an Outlook message"
            raise Rejected(SkipReason.DOCUMENT, detail, "save it as HTML or text in Outlook")
        inside = (new for name, new in _STREAMS.items() if f"{name}\0".encode("utf-16-le") in data)
        raise _old(_OLD.get(suffix) or next(inside, ""))
    if suffix in _OLD and is_binary(data[:HEAD]) and not data.startswith((_ZIP, _PDF)):
        raise _old(_OLD[suffix])


def _old(new: str) -> Rejected:
    if not new:
        return Rejected(SkipReason.BINARY)
    detail = "is in an old Office format, which is not supported"
    return Rejected(SkipReason.DOCUMENT, detail, f"save it as {new}")


def _kind_of_xml(begins: str) -> Kind | None:
    root = _ROOT.match(begins)
    if root is None:
        return None
    for name, inside, kind in _ROOTS:
        if root[1] == name and inside in root[2]:
            if kind is None:
                detail = "is a Word document that was saved as XML"
                raise Rejected(SkipReason.DOCUMENT, detail, "save it as DOCX")
            return kind
    return None


def _beginning(data: bytes) -> str:
    head = data[:HEAD]
    return head.decode(wide_encoding(head) or "latin-1", "replace").lstrip("\ufeff \t\r\n")


def _is_mail(begins: str) -> bool:
    head = _HEADERS.match(begins.replace("\r\n", "\n"))
    return head is not None and _MIME.search(head[0]) is not None

"""Reads office documents and e-books, in the process of `document_worker.py`.

They are zip archives of XML files, each read by a module of its own. Links and external files are
never followed, and macros are never opened. Files that declare XML entities are refused.
"""

from __future__ import annotations

from app.ingest.archive import Archive
from app.ingest.book import Book
from app.ingest.opendocument import OpenDocument
from app.ingest.parts import OLE, Unknown, WithPassword
from app.ingest.sheets import Workbook
from app.ingest.slides import Slides
from app.ingest.word import WordDocument

_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")


def open_document(data: bytes) -> WordDocument | Workbook | Slides | OpenDocument | Book:
    """Open a document of any kind here. Raises WithPassword, TooLarge, Unknown, and anything for
    a damaged one."""
    if data.startswith(OLE):
        raise WithPassword if _ENCRYPTED in data else Unknown
    archive = Archive(data)
    for beginning, kind in (
        ("word/", WordDocument),
        ("xl/", Workbook),
        ("ppt/presentation.xml", Slides),
        ("META-INF/container.xml", Book),
        ("content.xml", OpenDocument),
    ):
        if any(name.startswith(beginning) for name in archive.names):
            if kind is not Book:
                archive.refuse_entities()
            return kind(archive)
    raise Unknown

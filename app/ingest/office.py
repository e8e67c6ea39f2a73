"""Reads office documents and e-books, in the process of `document_worker.py`.

They are zip archives of XML files, each read by a module of its own. Links and external files are
never followed, and macros are never opened. Files that declare XML entities are refused.
"""

from __future__ import annotations

from app.ingest.archive import Archive
from app.ingest.parts import OLE, Parts, Refused, Unknown, WithPassword

_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
REFUSED = {
    "binary workbook": {"xl/workbook.bin"},
    "apple": {
        *("Index/Document.iwa", "Index/Presentation.iwa", "Index.zip", "index.apxl"),
        "buildVersionHistory.plist",
    },
    "xps": {"FixedDocSeq.fdseq", "FixedDocumentSequence.fdseq"},
    "visio": {"visio/document.xml"},
}
"""Archives that are not read, by one of their members."""


def open_document(data: bytes) -> Parts:
    """Open a document of any kind here. Raises WithPassword, TooLarge, Refused, Unknown, and
    anything for a damaged one."""
    if data.startswith(OLE):
        raise WithPassword if _ENCRYPTED in data else Unknown
    archive = Archive(data)
    for refused, members in REFUSED.items():
        if not archive.names.isdisjoint(members):
            raise Refused(refused)
    kinds = ("word/", "xl/", "ppt/presentation.xml", "META-INF/container.xml", "content.xml")
    found = (each for each in kinds if any(name.startswith(each) for name in archive.names))
    kind = next(found, "")
    if kind != "META-INF/container.xml":  # pages of books declare their kind
        archive.refuse_entities()
    # Only the reader that is needed is imported, because each file is read in a new process.
    if kind == "word/":
        from app.ingest.word import WordDocument

        return WordDocument(archive)
    if kind == "xl/":
        from app.ingest.sheets import Workbook

        return Workbook(archive)
    if kind == "ppt/presentation.xml":
        from app.ingest.slides import Slides

        return Slides(archive)
    if kind == "META-INF/container.xml":
        from app.ingest.book import Book

        return Book(archive)
    if kind == "content.xml":
        from app.ingest.opendocument import OpenDocument

        return OpenDocument(archive)
    raise Unknown

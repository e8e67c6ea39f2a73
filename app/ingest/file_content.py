"""The content of one file: opened, judged by how it begins, read and decoded."""

from __future__ import annotations

from dataclasses import dataclass

from app.ingest.budget import ReadBudget
from app.ingest.filenames import is_private_key
from app.ingest.limits import Limits
from app.ingest.pdf import check_can_read, is_pdf, pdf_text
from app.ingest.records import Reason, Rejected
from app.ingest.safe_open import read_file
from app.ingest.text import Decoded, decode, is_binary


@dataclass(frozen=True, slots=True)
class FileContent:
    """`size`: bytes of the file."""

    decoded: Decoded
    size: int


def read_content(
    name: str, parent: int | None, limits: Limits, watch: ReadBudget, most: int, private: bool
) -> FileContent:
    """The text of a file of at most `most` bytes, inside an open folder or by its path.

    `private` tells whether a private key may be read. Raises Refusal, Cut and Cancelled.
    """

    def judge(head: bytes) -> int:
        if is_pdf(head):
            check_can_read()
            return limits.pdf_bytes
        if is_binary(head):
            raise Rejected(Reason.BINARY)
        if not private and is_private_key(head):
            raise Rejected(Reason.PRIVATE, "is a private key")
        return most

    data = read_file(name, parent, judge, watch)
    decoded = pdf_text(data, limits, watch) if is_pdf(data) else decode(data)
    return FileContent(decoded, len(data))

"""The text of one file: opened, checked by its first bytes, read and decoded."""

from __future__ import annotations

from dataclasses import dataclass

from app.ingest.budget import ReadBudget
from app.ingest.filenames import is_private_key
from app.ingest.limits import Limits
from app.ingest.pdf import is_pdf, pdf_text
from app.ingest.records import FileRead, Reason, Rejected
from app.ingest.safe_open import read_file
from app.ingest.text import Decoded, decode, is_binary


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
    decoded = pdf_text(data, limits, budget) if is_pdf(data) else decode(data)
    return FileContent(decoded, len(data))


def file_read(path: str, content: FileContent) -> FileRead:
    decoded = content.decoded
    return FileRead(path, content.size, decoded.encoding, decoded.lossy, decoded.guessed)

"""Stores documents in a folder of gzip files named by the SHA-256 of their content.

Documents are files, not rows, because they are large and never change: the database stays small, so
that checking and backing it up is fast, and damage to it affects no document. A file is complete
and on disk before a message refers to it. Files without references are deleted at the next start.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from app.store.database import folder_error
from app.store.records import AttachmentRecord, StoreError
from app.util.atomic_files import make_folder, sync_path
from app.util.regular_files import create_private, open_file

WRITERS = 16
"""Threads that write documents."""
CHUNK_BYTES = 1 << 20
"""Bytes read at a time."""
_GZIP_LEVEL = 4
"""Compression level, 1 to 9. Level 4 takes a third of the time of 6, and files are 7 % larger."""


class DocumentFiles:
    def __init__(self, folder: Path, limit: int) -> None:
        """`limit` is the maximum size of a document in bytes."""
        self._folder = folder
        self.limit = limit

    def add(self, documents: Sequence[tuple[str, bytes]]) -> tuple[AttachmentRecord, ...]:
        """Store documents, given by name and content, durably. Raises StoreError if one is too
        large or the disk is full.

        An existing file is written again, which repairs a damaged one. There may be thousands, so
        several are written at a time, which the disk can sync together, and the disk's own cache
        is flushed once for all of them.
        """
        try:
            make_folder(self._folder)
            with ThreadPoolExecutor(WRITERS, thread_name_prefix="attachments") as writers:
                written = tuple(writers.map(self._write, documents))
            for folder in {self._path(each.sha256).parent for each in written}:
                sync_path(folder)
        except OSError as error:
            raise folder_error(self._folder, error) from error
        return written

    def _write(self, document: tuple[str, bytes]) -> AttachmentRecord:
        name, content = document
        if len(content) > self.limit:
            raise StoreError(
                f"The document '{name}' is larger than {_megabytes(self.limit)}",
                "attach a part of it, or raise the limit in the settings",
            )
        attachment = AttachmentRecord(hashlib.sha256(content).hexdigest(), name, len(content))
        path = self._path(attachment.sha256)
        make_folder(path.parent)
        aside = self._folder / f"unfinished-{uuid4().hex}"
        try:
            with create_private(aside) as file:
                file.write(gzip.compress(content, _GZIP_LEVEL, mtime=0))
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        return attachment

    def iter_bytes(self, attachment: AttachmentRecord) -> Iterator[bytes]:
        """Yield the original bytes, up to CHUNK_BYTES at a time. Raises StoreError if the file is
        missing or damaged. The last chunk is yielded only after the checksum was verified."""
        digest, last = hashlib.sha256(), b""
        try:
            with open_file(self._path(attachment.sha256)) as packed, gzip.open(packed) as file:
                while piece := file.read(CHUNK_BYTES):
                    digest.update(piece)
                    if last:
                        yield last
                    last = piece
        except FileNotFoundError:
            raise _unreadable(attachment, "missing") from None
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise _unreadable(attachment, "damaged") from None
        except OSError as error:
            raise _unreadable(attachment, f"unreadable, {error.strerror}") from error
        if digest.hexdigest() != attachment.sha256:
            raise _unreadable(attachment, "damaged")
        if last:
            yield last

    def iter_text(self, attachment: AttachmentRecord) -> Iterator[str]:
        """Yield the text in pieces, without a byte order mark. Raises StoreError, as
        `iter_bytes`."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        for piece in self.iter_bytes(attachment):
            yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)

    def copy_from(self, other: DocumentFiles, sha256: str) -> None:
        """Copy a document from another folder. Raises OSError."""
        path = self._path(sha256)
        make_folder(path.parent)
        shutil.copyfile(other._path(sha256), path)

    def has(self, sha256: str) -> bool:
        return self._path(sha256).is_file()

    def delete_unused(self, used: set[str]) -> None:
        """Delete documents that are not in `used`, and unfinished files. Raises OSError."""
        if not self._folder.is_dir():
            return
        for path in self._folder.rglob("*"):
            unused = path.suffix == ".gz" and path.stem not in used
            if unused or path.name.startswith("unfinished-"):
                os.unlink(path)

    def _path(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / f"{sha256}.gz"


def _unreadable(attachment: AttachmentRecord, how: str) -> StoreError:
    return StoreError(
        f"The document '{attachment.name}' cannot be read (its file is {how})",
        "attach it again",
    )


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MB" if size >= 2**20 else f"{size:,} bytes"

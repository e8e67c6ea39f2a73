"""Files, folders and standard input become documents. UTF-8 text only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from app.engine.messages import Document
from app.errors import UserError

MAX_BYTES = 64 * 1024 * 1024
"""The most that one call reads, over all documents."""

STDIN = "-"
_BOM = b"\xef\xbb\xbf"


class IngestError(UserError):
    """What was given cannot be read as text."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something inside a folder that was not read. `reason` is a few words."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was read, in the order given (folders sorted by name), and what was left out."""

    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...]

    @property
    def characters(self) -> int:
        return sum(len(document.text) for document in self.documents)


def read(paths: Sequence[str], stdin: BinaryIO | None = None) -> Gathered:
    """Read files, folders (recursively, without `.git` and symbolic links) and `-`, standard input.

    A document is named by its file's name, below a folder by its path from that folder's name on.
    Inside a folder, what is no text is skipped and listed. IngestError, in one sentence, when
    something named directly is missing, empty or no text, a folder holds no text at all, or
    everything together is larger than MAX_BYTES.
    """
    if paths.count(STDIN) > 1:
        raise IngestError("Standard input can be read only once", "give '-' once")
    documents: list[Document] = []
    skipped: list[Skipped] = []
    left = MAX_BYTES
    for path in paths:
        for name, data in _sources(path, stdin, skipped, left):
            left -= len(data)
            if left < 0:
                raise IngestError(
                    f"What was given is larger than {_megabytes(MAX_BYTES)}",
                    "give fewer or smaller files",
                )
            documents.append(Document(name=name, text=data.removeprefix(_BOM).decode()))
    return Gathered(tuple(documents), tuple(skipped))


def _sources(
    path: str, stdin: BinaryIO | None, skipped: list[Skipped], limit: int
) -> Iterator[tuple[str, bytes]]:
    """Names and checked contents, at most `limit` + 1 bytes each, of what one path stands for."""
    if path == STDIN:
        yield "standard input", _read_stdin(stdin, limit)
        return
    mode = _mode(path)
    if stat.S_ISDIR(mode):
        found = False
        for name, data in _read_folder(Path(path), skipped, limit):
            found = True
            yield name, data
        if not found:
            raise IngestError(f"The folder {path!r} holds no text files", "give another one")
    elif stat.S_ISREG(mode):
        yield _printable(Path(path).name), _read_file(path, limit)
    else:
        raise IngestError(
            f"{path!r} is neither a file nor a folder",
            "give a file, or pipe the text to standard input and give '-'",
        )


def _mode(path: str) -> int:
    if not path:
        raise IngestError("The name of the file is empty", "give a file, a folder or '-'")
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise IngestError(
            f"There is no file or folder {path!r}", "check the name and the current folder"
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _read_stdin(stdin: BinaryIO | None, limit: int) -> bytes:
    if stdin is None:
        raise IngestError("There is no standard input here", "give a file instead of '-'")
    data = stdin.read(limit + 1)
    _check_named("Standard input", data, limit)
    return data


def _read_file(path: str, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    _check_named(repr(path), data, limit)
    return data


def _check_named(what: str, data: bytes, limit: int) -> None:
    fault = _fault(data, limit)
    if fault is not None:
        raise IngestError(f"{what} {fault}", "give UTF-8 text")


def _read_folder(folder: Path, skipped: list[Skipped], limit: int) -> Iterator[tuple[str, bytes]]:
    """The text files below `folder`, sorted by their paths."""
    root = folder.resolve().name or "root"
    # Depth first, last in first out: a folder's entries go on in reverse, so they come off sorted.
    waiting = [(folder, root)]
    while waiting:
        path, name = waiting.pop()
        try:
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode) or path is folder:
                entries = sorted(entry for entry in os.listdir(path) if entry != ".git")
                waiting += [(path / entry, f"{name}/{entry}") for entry in reversed(entries)]
                continue
            fault = _kind_fault(mode)
            if fault is None:
                with path.open("rb") as file:
                    data = file.read(limit + 1)
                fault = _fault(data, limit)
        except OSError as error:
            fault = f"cannot be read ({error.strerror})"
        if fault is None:
            limit -= len(data)
            yield _printable(name), data
        else:
            skipped.append(Skipped(_printable(name), fault))


def _kind_fault(mode: int) -> str | None:
    if stat.S_ISLNK(mode):
        return "is a symbolic link"
    return None if stat.S_ISREG(mode) else "is not a regular file"


def _fault(data: bytes, limit: int) -> str | None:
    """Why these bytes are no document, as the end of a sentence. Above `limit` they were cut."""
    if not data.removeprefix(_BOM).strip():
        return "is empty"
    if b"\0" in data:
        return "is a binary file"
    if len(data) > limit:
        return None
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"is not UTF-8 text (from byte {error.start + 1:,} on)"
    return None


def _unreadable(path: str, error: OSError) -> IngestError:
    return IngestError(f"{path!r} cannot be read ({error.strerror})", "check its permissions")


def _printable(name: str) -> str:
    """File names are bytes; those that are no UTF-8 show as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _megabytes(size: int) -> str:
    return f"{size // 1024**2} MB"

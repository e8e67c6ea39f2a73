"""Finds out whether attached files have changed since they were read. Waits for the disk."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.parts import parse_ranges
from app.ingest.records import Changes, LimitReached, Rejected
from app.ingest.walk import Walk
from app.protocol.prompt import Document, Origin
from app.util.regular_files import PIECE, open_file


class FileState(StrEnum):
    SAME = "same"
    CHANGED = "changed"
    GONE = "gone"


WALK_SECONDS = 60.0
"""Maximum time for looking for new files in a folder."""
CLOCK_LAG = 100_000_000
"""How far the clock of a file system may be behind, in nanoseconds."""


def file_state(origin: Origin) -> FileState:
    """Whether a file is as it was read. Its content is compared only if its time has changed, but
    not its size. A file that cannot be reached counts as the same."""
    try:
        info = os.stat(origin.path)
        if (info.st_size, info.st_mtime_ns) == (origin.size, origin.modified):
            return FileState.SAME
        if not stat.S_ISREG(info.st_mode):
            return FileState.GONE
        if info.st_size == origin.size:
            digest = _digest(origin.path, info.st_size, info.st_mtime_ns)
            return FileState.SAME if digest == origin.sha256 else FileState.CHANGED
    except (FileNotFoundError, NotADirectoryError):
        return FileState.GONE if origin.sha256 else FileState.SAME
    except OSError:
        return FileState.SAME
    return FileState.CHANGED


@lru_cache(maxsize=1024)
def _digest(path: str, size: int, modified: int) -> str:
    """The SHA-256 of a file that has this size and time of modification. Raises OSError."""
    digest = hashlib.sha256()
    with open_file(Path(path)) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def find_changes(
    documents: Iterable[Document], new_files: ReadLimits | None = None
) -> list[Changes]:
    """The single files and the folders of these documents that have changed, without those that are
    searched for each question. With the limits for `new_files`, folders are searched for files that
    were added since they were read."""
    known = [each for each in documents if each.origin and not each.is_searched]
    folders = [each for each in known if each.name.endswith("/")]
    files: dict[int, list[Document]] = {id(each): [] for each in folders}
    found = []
    for each in known:
        folder = next((folder for folder in folders if _is_in(each, folder)), None)
        if folder is not None:
            files[id(folder)].append(each)
        elif not each.name.endswith("/"):
            found.append(_changes(read_again_path(each), each.name, [each]))
    for folder in folders:
        assert folder.origin is not None
        new = () if new_files is None else _new(folder, files[id(folder)], new_files)
        found.append(_changes(folder.origin.path, folder.name, files[id(folder)], new))
    return [each for each in found if each.changed or each.new or each.gone]


def read_again_path(document: Document) -> str:
    """What to read for a newer version of a document, such as `/files/report.pdf#5-10`."""
    origin = document.origin
    assert origin is not None
    return f"{origin.path}#{origin.part}" if origin.part else origin.path


def follows_end(path: str) -> bool:
    """Whether a path names a part that goes up to the end of a file, as `server.log#-500` does."""
    file, _, part = path.rpartition("#")
    ranges = parse_ranges(part) if file else None
    return ranges is not None and any(last is None for _, last in ranges)


def _is_in(document: Document, folder: Document) -> bool:
    assert document.origin is not None
    assert folder.origin is not None
    path, name = document.origin.path, document.name
    in_folder = path.startswith(folder.origin.path.rstrip("/") + "/")
    return document is not folder and in_folder and name.startswith(folder.name)


def _changes(
    path: str, name: str, documents: Sequence[Document], new: Sequence[tuple[str, int]] = ()
) -> Changes:
    changed, gone = [], []
    last = max((modified for _, modified in new), default=0)
    for origin in (each.origin for each in documents):
        assert origin is not None
        state = file_state(origin)
        if state is FileState.CHANGED:
            changed.append(origin.path)
            with suppress(OSError):
                last = max(last, os.stat(origin.path).st_mtime_ns)
        elif state is FileState.GONE:
            gone.append(origin.path)
    return Changes(path, name, tuple(changed), tuple(each for each, _ in new), tuple(gone), last)


def _new(
    folder: Document, documents: Sequence[Document], limits: ReadLimits
) -> list[tuple[str, int]]:
    """Paths of files that were added to a folder since it was read, with the times at which they
    changed. Files that were skipped then are older."""
    assert folder.origin is not None
    known = {each.origin.path for each in documents if each.origin is not None}
    return [
        (path, changed)
        for path, changed in _walked(folder.origin.path, limits)
        if path not in known and changed > folder.origin.modified - CLOCK_LAG
    ]


def _walked(top: str, limits: ReadLimits) -> Iterator[tuple[str, int]]:
    """Files below a folder that may be read, as far as the limits allow, with the times at which
    they changed or were moved there, in nanoseconds."""
    budget = ReadBudget(seconds=WALK_SECONDS)
    walk = Walk(Path(top), limits, budget, lambda path, rejected: None)
    with suppress(Rejected, LimitReached):
        for found in walk.files():
            with suppress(OSError):
                info = os.stat(found.name, dir_fd=found.folder, follow_symlinks=False)
                yield os.path.join(top, found.path), max(info.st_mtime_ns, info.st_ctime_ns)

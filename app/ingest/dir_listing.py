"""What lies in one folder, for choosing from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.ingest.budget import ReadBudget
from app.ingest.filenames import is_private, is_private_folder
from app.ingest.git import repository
from app.ingest.ignore import IgnoreFiles, IgnoreRules, NoIgnore
from app.ingest.records import REASON_TEXTS, IngestError, LimitReached, Reason, Rejected
from app.ingest.safe_open import open_folder
from app.ingest.walk import VERSION_CONTROL


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a folder, or a link to one. `left_out` says in a word or two why reading the
    folder it lies in would leave it out."""

    name: str
    is_folder: bool
    skip_reason: str = ""


@dataclass(frozen=True, slots=True)
class DirListing:
    """`more`: there is more in the folder than was looked at."""

    entries: tuple[Entry, ...]
    truncated: bool = False


def list_folder(
    path: str, most: int, seconds: float, cancelled: Callable[[], bool] | None = None
) -> DirListing:
    """The first `most` entries of a folder that the system gives in `seconds`, sorted by name.

    Devices, FIFOs and the like are left out, and so is what version control keeps for itself.
    Whether git ignores an entry is told by the .gitignore files. IngestError when there is no such
    folder, or it cannot be read; Cancelled.
    """
    watch = ReadBudget(seconds, None, cancelled)
    try:
        descriptor = open_folder(path)
    except Rejected as refused:
        if refused.reason is Reason.CHANGED:
            raise IngestError(f"There is no folder {path!r}", "check the name") from None
        raise IngestError(f"The folder {path!r} {refused.detail}", refused.advice) from None
    try:
        entries, more = _entries(descriptor, most, _rules(descriptor, path, watch), watch)
    except (Rejected, OSError):
        raise IngestError(f"The folder {path!r} cannot be read", "check its permissions") from None
    finally:
        os.close(descriptor)
    return DirListing(tuple(sorted(entries, key=lambda entry: entry.name.lower())), more)


def _rules(descriptor: int, path: str, watch: ReadBudget) -> IgnoreRules:
    folder = Path(path).resolve()
    top, rules = repository(folder), IgnoreFiles(watch, lambda path, refused: None)
    try:
        return (rules if top is None else rules.with_parents(top, folder)).in_folder(descriptor, "")
    except LimitReached:
        return NoIgnore()


def _entries(
    descriptor: int, most: int, rules: IgnoreRules, watch: ReadBudget
) -> tuple[list[Entry], bool]:
    entries: list[Entry] = []
    with os.scandir(descriptor) as found:
        for looked_at, each in enumerate(found):
            try:
                watch.check()
                if looked_at == most:
                    return entries, True
                if (entry := _entry(each, rules)) is not None:
                    entries.append(entry)
            except LimitReached:
                return entries, True
    return entries, False


def _entry(found: os.DirEntry[str], rules: IgnoreRules) -> Entry | None:
    try:
        is_folder = found.is_dir()
        if found.name in VERSION_CONTROL or not (is_folder or found.is_file()):
            return None
    except OSError:  # a link that leads in a circle, or nowhere one may look
        return None
    private = is_private_folder(found.name) if is_folder else is_private(found.name)
    reason = Reason.PRIVATE if private else None
    if reason is None and rules.ignores(found.name, is_folder):
        reason = Reason.IGNORED
    return Entry(found.name, is_folder, "" if reason is None else REASON_TEXTS[reason][0])

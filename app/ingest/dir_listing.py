"""Lists one folder, for completing a path."""

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
    """A file or folder, or a link to one. `skip_reason`: why it would be skipped when its folder is
    read, in one or two words, or empty."""

    name: str
    is_folder: bool
    skip_reason: str = ""


@dataclass(frozen=True, slots=True)
class DirListing:
    """`truncated`: the folder has more entries than these."""

    entries: tuple[Entry, ...]
    truncated: bool = False


def list_folder(
    path: str, max_entries: int, seconds: float, cancelled: Callable[[], bool] | None = None
) -> DirListing:
    """Up to `max_entries` of a folder that can be listed in `seconds`, sorted by name, without
    devices, FIFOs and the folders of version control.

    Whether git ignores an entry is read from the .gitignore files. Raises IngestError when the
    folder is missing or unreadable, and Cancelled.
    """
    budget = ReadBudget(seconds, None, cancelled)
    try:
        descriptor = open_folder(path)
    except Rejected as rejected:
        if rejected.reason is Reason.CHANGED:
            raise IngestError(f"There is no folder {path!r}", "check the name") from None
        raise IngestError(f"The folder {path!r} {rejected.detail}", rejected.advice) from None
    try:
        entries, more = _entries(descriptor, max_entries, _rules(descriptor, path, budget), budget)
    except (Rejected, OSError):
        raise IngestError(f"The folder {path!r} cannot be read", "check its permissions") from None
    finally:
        os.close(descriptor)
    return DirListing(tuple(sorted(entries, key=lambda entry: entry.name.lower())), more)


def _rules(descriptor: int, path: str, budget: ReadBudget) -> IgnoreRules:
    folder = Path(path).resolve()
    top, rules = repository(folder), IgnoreFiles(budget, lambda path, rejected: None)
    try:
        return (rules if top is None else rules.with_parents(top, folder)).in_folder(descriptor, "")
    except LimitReached:
        return NoIgnore()


def _entries(
    descriptor: int, max_entries: int, rules: IgnoreRules, budget: ReadBudget
) -> tuple[list[Entry], bool]:
    entries: list[Entry] = []
    with os.scandir(descriptor) as found:
        for count, each in enumerate(found):
            try:
                budget.check()
                if count == max_entries:
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
    except OSError:  # a link in a circle, or into a folder without permission
        return None
    private = is_private_folder(found.name) if is_folder else is_private(found.name)
    reason = Reason.PRIVATE if private else None
    if reason is None and rules.ignores(found.name, is_folder):
        reason = Reason.IGNORED
    return Entry(found.name, is_folder, "" if reason is None else REASON_TEXTS[reason][0])

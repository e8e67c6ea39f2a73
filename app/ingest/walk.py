"""Walks through a folder in reading order. Links are not followed, and nothing outside the folder
is reached, even if files are renamed or replaced during the walk."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path

from app.ingest.filenames import (
    is_keynote,
    is_private,
    is_private_folder,
    printable,
    reading_order,
)
from app.ingest.git import GitList, git_files, repository
from app.ingest.ignore import ATTRIBUTES, IgnoreRules, RuleFiles
from app.ingest.kinds import apple_bundle
from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.records import (
    REASON_TEXTS,
    IngestError,
    LimitReached,
    Rejected,
    SkipReason,
    limit_reached,
)
from app.ingest.safe_open import open_folder, rejection_for, stat_entry

# Never listed, because they contain nothing that the user wrote.
VERSION_CONTROL = frozenset({".git", ".hg", ".svn", ".jj"})
# macOS's flag for a file whose content is in iCloud only. Reading it would wait for the network.
_DATALESS = 0x40000000


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A regular file that may be read: its name in `folder` (a descriptor that stays open until the
    walk continues), and its path from the top. `is_written`: a rule says that it is not
    generated."""

    folder: int
    name: str
    path: str
    is_written: bool = False


_Files = Generator[FoundFile, None, None]


class Walk:
    """A walk through a folder."""

    def __init__(
        self,
        top: Path,
        limits: ReadLimits,
        budget: ReadBudget,
        skip: Callable[[str, Rejected], None],
    ) -> None:
        """`top` must be a resolved path. `skip` is called for everything that is skipped, with its
        path from `top`."""
        self._top = top
        self._limits = limits
        self._budget = budget
        self._skip = skip
        self._entries_left = limits.entries
        self._device = 0

    def files(self) -> _Files:
        """Yield the files. Raises Rejected if `top` cannot be opened, LimitReached at a limit, and
        ReadCancelled."""
        descriptor = open_folder(str(self._top))
        self._device = os.fstat(descriptor).st_dev
        attributes = RuleFiles(self._budget, self._skip, ATTRIBUTES)
        if (repository_top := repository(self._top)) is not None:
            attributes = attributes.with_parents(repository_top, self._top)
        yield from self._folder(descriptor, "", 0, IgnoreRules(), attributes)

    def _folder(
        self, descriptor: int, path: str, depth: int, rules: IgnoreRules, attributes: RuleFiles
    ) -> _Files:
        """Walk through a folder, and close its descriptor. `path` ends with '/', or is empty."""
        try:
            names, limit = self._names(descriptor)
            if depth and (rejected := apple_bundle(path[:-1], names)) is not None:
                raise rejected
            if not path or ".git" in names:
                rules = self._rules(path)
            rules = rules.in_folder(descriptor, path)
            if ATTRIBUTES in names:
                attributes = attributes.in_folder(descriptor, path)
            for name in names:
                if name in VERSION_CONTROL:
                    continue
                self._budget.visit(printable(path + name))
                try:
                    found = self._entry(descriptor, name, path, depth, rules)
                    if isinstance(found, FoundFile):
                        yield self._checked(found, attributes)
                    elif found is not None:
                        inner = f"{path}{name}/"
                        yield from self._folder(found, inner, depth + 1, rules, attributes)
                except Rejected as rejected:
                    self._skip(path + name, rejected)
            if limit is not None:
                self._budget.path = printable(path) + "…"
                raise limit
        finally:
            os.close(descriptor)

    def _names(self, descriptor: int) -> tuple[list[str], LimitReached | None]:
        """Sorted names in a folder, and the error to raise after them if the limit on entries is
        reached."""
        max_names, limit = self._entries_left, None
        try:
            with os.scandir(descriptor) as entries:
                names = [entry.name for entry in itertools.islice(entries, max_names + 1)]
        except OSError as error:
            raise rejection_for(error) from None
        if len(names) > max_names:
            del names[max_names:]
            limit = limit_reached(f"{self._limits.entries:,} files and folders")
        self._entries_left -= len(names)
        return sorted(names, key=reading_order), limit

    def _entry(
        self, folder: int, name: str, path: str, depth: int, rules: IgnoreRules
    ) -> FoundFile | int | None:
        """Open an entry. Returns a file to read, or the descriptor of a folder to enter. Raises
        Rejected."""
        info = stat_entry(name, folder)
        if stat.S_ISLNK(info.st_mode):
            raise Rejected(SkipReason.LINK)
        if stat.S_ISDIR(info.st_mode):
            return self._subfolder(folder, name, path, depth, rules)
        if not stat.S_ISREG(info.st_mode):
            raise Rejected(SkipReason.SPECIAL, "is not a regular file", "save its text in a file")
        is_secret = is_private(name) and not is_keynote(name)  # its content tells
        if is_secret and not self._limits.include_private:
            raise Rejected(SkipReason.PRIVATE)
        if rules.ignores(path + name, False):
            raise Rejected(SkipReason.IGNORED)
        if info.st_size == 0:
            raise Rejected(SkipReason.EMPTY)
        if getattr(info, "st_flags", 0) & _DATALESS:
            raise Rejected(SkipReason.UNREADABLE, "is in iCloud only", "download it first")
        return FoundFile(folder, name, path + name)

    def _checked(self, found: FoundFile, attributes: RuleFiles) -> FoundFile:
        """Raises Rejected for a file that is marked as generated."""
        if self._limits.include_ignored:
            return found
        is_generated = attributes.decide(found.path, False)
        if is_generated:
            raise Rejected(SkipReason.GENERATED)
        return replace(found, is_written=is_generated is not None)

    def _subfolder(
        self, folder: int, name: str, path: str, depth: int, rules: IgnoreRules
    ) -> int | None:
        if not self._limits.include_private and is_private_folder(name):
            raise Rejected(SkipReason.PRIVATE)
        too_long = len(os.fsencode(path + name)) > self._limits.path_bytes
        if depth >= self._limits.depth or too_long:
            raise Rejected(SkipReason.TOO_DEEP)
        descriptor = open_folder(name, folder)
        try:
            if os.fstat(descriptor).st_dev != self._device:
                raise Rejected(SkipReason.OUTSIDE)
            if rules.ignores(path + name, True):
                if _is_empty(descriptor):  # git does not list empty folders
                    os.close(descriptor)
                    return None
                raise Rejected(SkipReason.IGNORED)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _rules(self, path: str) -> IgnoreRules:
        """The ignore rules of the top folder, or of a repository."""
        if self._limits.include_ignored:
            return IgnoreRules()
        folder = self._top / path
        files = RuleFiles(self._budget, self._skip)
        top = repository(folder)
        if top is None:
            return files
        listed = git_files(top, folder, self._limits, self._budget)
        if listed:
            return GitList(path, listed)
        # An empty list means that the folder itself is ignored, but the user named it.
        return files if listed is not None else files.with_parents(top, folder)


def _is_empty(descriptor: int) -> bool:
    with os.scandir(descriptor) as entries:
        return next(entries, None) is None


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file or folder, or a link to one. `skip_reason` is one or two words that say why it would
    be skipped when its folder is read; empty if it would not be."""

    name: str
    is_folder: bool
    skip_reason: str = ""


@dataclass(frozen=True, slots=True)
class DirListing:
    """Entries of a folder. `truncated`: the folder has more entries."""

    entries: tuple[FolderEntry, ...]
    truncated: bool = False


def list_folder(
    path: str, max_entries: int, seconds: float, cancelled: Callable[[], bool] | None = None
) -> DirListing:
    """List up to `max_entries` entries of a folder, as many as `seconds` allow, sorted by name,
    without devices, FIFOs and folders of version control.

    Ignored entries are determined from .gitignore files. Raises IngestError if the folder is
    missing or unreadable, and ReadCancelled.
    """
    budget = ReadBudget(None, cancelled, seconds)
    try:
        descriptor = open_folder(path)
    except Rejected as rejected:
        if rejected.reason is SkipReason.CHANGED:
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
    top, rules = repository(folder), RuleFiles(budget, lambda path, rejected: None)
    try:
        return (rules if top is None else rules.with_parents(top, folder)).in_folder(descriptor, "")
    except LimitReached:
        return IgnoreRules()


def _entries(
    descriptor: int, max_entries: int, rules: IgnoreRules, budget: ReadBudget
) -> tuple[list[FolderEntry], bool]:
    entries: list[FolderEntry] = []
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


def _entry(found: os.DirEntry[str], rules: IgnoreRules) -> FolderEntry | None:
    try:
        is_folder = found.is_dir()
        if found.name in VERSION_CONTROL or not (is_folder or found.is_file()):
            return None
    except OSError:  # a circular link, or a link into a folder without permission
        return None
    private = is_private_folder(found.name) if is_folder else is_private(found.name)
    reason = SkipReason.PRIVATE if private else None
    if reason is None and rules.ignores(found.name, is_folder):
        reason = SkipReason.IGNORED
    return FolderEntry(found.name, is_folder, "" if reason is None else REASON_TEXTS[reason][0])

"""Results of reading files and folders, as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from app.errors import UserError
from app.ingest.legacy_encoding import ENCODING_NAMES
from app.protocol.prompt import Document
from app.util import formatting


class IngestError(UserError):
    """An input cannot be read as text. `reason` says why, if it is known."""

    reason: SkipReason | None = None


class ReadCancelled(Exception):
    """The caller cancelled the reading."""


class SkipReason(StrEnum):
    """Why a file or folder was skipped."""

    IGNORED = "ignored"
    PRIVATE = "private"
    LINK = "link"
    SPECIAL = "special"
    OUTSIDE = "outside"
    BINARY = "binary"
    ENCODING = "encoding"
    EMPTY = "empty"
    DOCUMENT = "document"
    NO_PART = "no part"
    CUT = "cut"
    ATTACHED = "attached"
    BAD_PAGES = "unreadable pages"
    PAGES_WITHOUT_TEXT = "pages without text"
    SLIDES_WITHOUT_TEXT = "slides without text"
    BLANK_PAGES = "blank pages"
    SCAN = "scan"
    TOO_LARGE = "too large"
    TOO_MUCH = "too much"
    TOO_DEEP = "too deep"
    TOO_SLOW = "too slow"
    UNREADABLE = "unreadable"
    CHANGED = "changed"
    RULES = "rules"


_BY_NAME = "add it by name to include it"
_OCR = "run text recognition (OCR) on it first"
_PARTS_BY_NAME = "add the parts you need by name"

REASON_TEXTS: dict[SkipReason, tuple[str, str, str]] = {
    SkipReason.IGNORED: ("ignored", "is ignored by git", _BY_NAME),
    SkipReason.PRIVATE: ("private", "may contain passwords or keys", _BY_NAME),
    SkipReason.LINK: ("symbolic link", "is a symbolic link", "add the file it points to"),
    SkipReason.SPECIAL: (
        "not a file",
        "is neither a file nor a folder",
        "use a file, or pipe the text to standard input (`-`)",
    ),
    SkipReason.OUTSIDE: ("other file system", "is on another file system", _BY_NAME),
    SkipReason.BINARY: (
        "binary",
        "is a binary file",
        "only text, PDF and office documents are supported",
    ),
    SkipReason.ENCODING: ("unknown encoding", "has an unknown text encoding", "save it as UTF-8"),
    SkipReason.EMPTY: ("empty", "is empty", "there is nothing to read"),
    SkipReason.DOCUMENT: ("unreadable document", "cannot be read", "save it as text"),
    SkipReason.NO_PART: ("missing part", "has no such part", "attach all of it"),
    SkipReason.CUT: ("cut off", "is not read completely", "save the rest in a file of its own"),
    SkipReason.ATTACHED: (
        "unread attachments",
        "has attachments that cannot be read",
        "save them, and add them by name",
    ),
    SkipReason.BAD_PAGES: ("unreadable pages", "has pages that cannot be read", "save it again"),
    SkipReason.PAGES_WITHOUT_TEXT: ("pages without text", "has pages without text", _OCR),
    SkipReason.SLIDES_WITHOUT_TEXT: ("slides without text", "has slides without text", _OCR),
    SkipReason.BLANK_PAGES: ("blank pages", "has blank pages", "they are blank or damaged"),
    SkipReason.SCAN: ("scanned", "has pictures but no text", _OCR),
    SkipReason.TOO_LARGE: ("too large", "is too large", "use a part of it"),
    SkipReason.TOO_MUCH: ("over the limit", "is over a limit", _PARTS_BY_NAME),
    SkipReason.TOO_DEEP: ("too deep", "is nested too deeply", "add its folder by name"),
    SkipReason.TOO_SLOW: ("timed out", "was not reached in time", _PARTS_BY_NAME),
    SkipReason.UNREADABLE: ("unreadable", "cannot be read", "check its permissions"),
    SkipReason.CHANGED: ("gone", "disappeared while it was read", "try again"),
    SkipReason.RULES: (
        "unused rules",
        "has rules that were not applied",
        "simplify them, or add the files you want by name",
    ),
}
"""For each reason: a label, the rest of a sentence that begins with the path, and advice."""


RECOGNISABLE = frozenset({SkipReason.PAGES_WITHOUT_TEXT, SkipReason.SCAN})
"""Reasons for which text recognition may help."""


class Rejected(Exception):
    """A file or folder cannot be read. `detail` (the rest of a sentence that begins with the path)
    and `advice` replace the texts of the reason."""

    def __init__(
        self,
        reason: SkipReason,
        detail: str = "",
        advice: str = "",
        limit: str = "",
        pages: int = 0,
    ) -> None:
        """`limit` names the limit, such as `5,000 files`, if a limit is the reason. `pages` is the
        number of missing pages of a file that is read otherwise."""
        super().__init__(reason, detail, advice)
        self.reason, self.limit, self.pages = reason, limit, pages
        self.detail = detail or REASON_TEXTS[reason][1]
        self.advice = advice or REASON_TEXTS[reason][2]


class LimitReached(Exception):
    """A limit on the whole input was reached. The files read so far are used, and no others are
    opened."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected)
        self.rejected = rejected


def limit_reached(limit: str) -> LimitReached:
    """An error for a limit, named in a few words, such as `5,000 files`."""
    detail = f"is over the limit of {limit}"
    return LimitReached(Rejected(SkipReason.TOO_MUCH, detail, limit=limit))


@dataclass(frozen=True, slots=True)
class Skipped:
    """A skipped file or folder inside a folder, or skipped pages of a file. `path` begins with the
    folder's name and has no control characters, but is not trusted otherwise."""

    path: str
    reason: SkipReason
    detail: str
    """The rest of a sentence that begins with the path."""
    advice: str
    limit: str = ""
    """The limit, such as `5,000 files`, if everything after this entry was skipped, too."""
    pages: int = 0
    """Number of missing pages, if the rest of the file was read."""

    @property
    def rest(self) -> bool:
        """Whether everything after this entry was skipped, too."""
        return bool(self.limit)

    @property
    def sentence(self) -> str:
        what = f"{self.path} and everything after it" if self.rest else self.path
        return f"{what} {self.detail}: {self.advice}."


def skipped(path: str, rejected: Rejected) -> Skipped:
    """The record of a rejected file or folder. `path`: see Skipped."""
    why = rejected.reason, rejected.detail, rejected.advice
    return Skipped(path, *why, rejected.limit, rejected.pages)


@dataclass(frozen=True, slots=True)
class FileRead:
    """A file that was read."""

    path: str
    """See Skipped."""
    size: int
    """Bytes of the file."""
    encoding: str
    lossy: bool
    guessed: bool
    recognised: int = 0
    """See Decoded."""

    @property
    def doubtful(self) -> bool:
        """Whether the text may differ from what its author wrote."""
        return self.lossy or self.guessed or self.recognised > 0

    @property
    def label(self) -> str:
        """Name of the encoding, for a chip."""
        return ENCODING_NAMES.get(self.encoding, self.encoding)

    @property
    def sentence(self) -> str:
        """A sentence about what may be wrong with the text, and what to do."""
        if self.recognised:
            pages = formatting.plural(self.recognised, "page")
            return f"{self.path} has {pages} read by OCR: names and figures may be wrong."
        if self.guessed:
            advice = "if letters look wrong, save it as UTF-8"
            return f"{self.path} states no encoding and was read as {self.label}: {advice}."
        return f"{self.path} is not entirely valid {self.label}: invalid bytes appear as \\xff."


@dataclass(frozen=True, slots=True)
class ReadResult:
    """An input, which becomes an attachment. For a folder, `tree` lists its files, and `texts` are
    their contents in the same order."""

    name: str
    texts: tuple[Document, ...]
    files: tuple[FileRead, ...]
    skipped: tuple[Skipped, ...] = ()
    tree: Document | None = None

    @property
    def documents(self) -> tuple[Document, ...]:
        return self.texts if self.tree is None else (self.tree, *self.texts)

    @property
    def size(self) -> int:
        """Bytes of the files read."""
        return sum(each.size for each in self.files)

    @property
    def summary(self) -> str:
        """`src: 34 files, 1.2 MB; skipped 12: 9 ignored, 3 binary`"""
        files = formatting.plural(len(self.files), "file")
        text = f"{self.name}: {files}, {formatting.size(self.size)}"
        return f"{text}; skipped {self.skipped_summary}" if self.skipped else text

    @property
    def skipped_summary(self) -> str:
        """`12: 9 ignored, 3 binary`, or empty."""
        counts = Counter[SkipReason]()
        for each in self.skipped:
            counts[each.reason] += 0 if each.rest else max(1, each.pages)
        counts = +counts
        reasons = ", ".join(
            f"{n:,} {REASON_TEXTS[reason][0]}" for reason, n in counts.most_common()
        )
        parts = [f"{counts.total():,}: {reasons}"] if counts else []
        parts += [f"the rest (limit {each.limit})" for each in self.skipped if each.rest]
        return ", and ".join(parts)


@dataclass(frozen=True, slots=True)
class ReadResults:
    """All inputs, in the caller's order."""

    results: tuple[ReadResult, ...]

    @property
    def documents(self) -> tuple[Document, ...]:
        return tuple(document for result in self.results for document in result.documents)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        return tuple(skipped for result in self.results for skipped in result.skipped)

    @property
    def characters(self) -> int:
        return sum(len(document.text) for document in self.documents)


@dataclass(frozen=True, slots=True)
class Changes:
    """Files that are not as they were read, by their absolute paths. `path` is the file or folder
    to read again, `name` that of its (first) document. `modified` is the time of the last change
    (nanoseconds)."""

    path: str
    name: str
    changed: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    modified: int = 0

    @property
    def text(self) -> str:
        """`changed`, `gone`, or for a folder `3 changed, 1 new`."""
        counts = ((self.changed, "changed"), (self.new, "new"), (self.gone, "gone"))
        if not self.name.endswith("/"):
            return "changed" if self.changed else "gone"
        return ", ".join(f"{len(files):,} {word}" for files, word in counts if files)

    @property
    def sentences(self) -> list[str]:
        """One sentence for each file."""
        found = []
        for files, what in (
            (self.changed, "has changed"),
            (self.new, "is new"),
            (self.gone, "is gone"),
        ):
            found += [f"{path.removeprefix(self.path + '/')} {what}." for path in files]
        return found


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Progress of reading."""

    entries: int
    """Files and folders visited."""
    files: int
    """Files read."""
    size: int
    """Bytes of the files read."""
    path: str
    """The last visited path; see Skipped."""
    page: int = 0
    pages: int = 0
    """If the file has pages: `page` of `pages` is being read."""

    @property
    def page_text(self) -> str:
        """`page 41 of 300`, or empty."""
        return f"page {self.page:,} of {self.pages:,}" if self.pages else ""

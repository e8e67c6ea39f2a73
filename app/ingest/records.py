"""The results of reading files and folders, as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from app.errors import UserError
from app.ingest.legacy_encoding import ENCODING_NAMES
from app.protocol.prompt import Document
from app.util import formatting


class IngestError(UserError):
    """An input cannot be read as text."""


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
    PDF = "pdf"
    ATTACHED = "attached"
    BAD_PAGES = "unreadable pages"
    PAGES_WITHOUT_TEXT = "pages without text"
    TOO_LARGE = "too large"
    TOO_MUCH = "too much"
    TOO_DEEP = "too deep"
    TOO_SLOW = "too slow"
    UNREADABLE = "unreadable"
    CHANGED = "changed"
    RULES = "rules"


_BY_NAME = "add it by name to include it"
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
    SkipReason.BINARY: ("binary", "is a binary file", "only text and PDF files are supported"),
    SkipReason.ENCODING: ("unknown encoding", "has an unknown text encoding", "save it as UTF-8"),
    SkipReason.EMPTY: ("empty", "is empty", "there is nothing to read"),
    SkipReason.PDF: ("PDF", "is a PDF file that cannot be read", "save it as text"),
    SkipReason.ATTACHED: (
        "unread attachments",
        "has attachments that cannot be read",
        "save them, and add them by name",
    ),
    SkipReason.BAD_PAGES: ("unreadable pages", "has pages that cannot be read", "save it again"),
    SkipReason.PAGES_WITHOUT_TEXT: (
        "pages without text",
        "has pages without text",
        "run text recognition (OCR) on it first",
    ),
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
"""For each reason: a label, the end of a sentence that begins with the path, and advice."""


class Rejected(Exception):
    """A file or folder cannot be read. `detail` (the end of a sentence) and `advice` replace the
    texts of the reason."""

    def __init__(
        self,
        reason: SkipReason,
        detail: str = "",
        advice: str = "",
        limit: str = "",
        pages: int = 0,
    ) -> None:
        """`limit` is a few words, such as `5,000 files`, if a limit is the reason; `pages` is how
        many are missing of a file that is read otherwise."""
        super().__init__(reason, detail, advice)
        self.reason, self.limit, self.pages = reason, limit, pages
        self.detail = detail or REASON_TEXTS[reason][1]
        self.advice = advice or REASON_TEXTS[reason][2]


class LimitReached(Exception):
    """A limit on the whole input is reached: the files read so far are used, and no more are
    opened."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected)
        self.rejected = rejected


def limit_reached(limit: str) -> LimitReached:
    """`limit` is a few words, such as `5,000 files`."""
    detail = f"is over the limit of {limit}"
    return LimitReached(Rejected(SkipReason.TOO_MUCH, detail, limit=limit))


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or folder inside a folder that was skipped, or pages of a file. `path` begins with the
    folder's name and has no control characters, but is otherwise untrusted."""

    path: str
    reason: SkipReason
    detail: str
    """The end of a sentence that begins with the path."""
    advice: str
    limit: str = ""
    """The limit that was reached, such as `5,000 files`, if everything after it was skipped too."""
    pages: int = 0
    """How many pages of the file are missing, if the rest of it was read."""

    @property
    def rest(self) -> bool:
        """Whether everything after it was skipped too."""
        return bool(self.limit)

    @property
    def sentence(self) -> str:
        what = f"{self.path} and everything after it" if self.rest else self.path
        return f"{what} {self.detail}: {self.advice}."


def skipped(path: str, rejected: Rejected) -> Skipped:
    """`path`: as in Skipped."""
    why = rejected.reason, rejected.detail, rejected.advice
    return Skipped(path, *why, rejected.limit, rejected.pages)


@dataclass(frozen=True, slots=True)
class FileRead:
    """A file that was read."""

    path: str
    """As in Skipped."""
    size: int
    """Bytes of the file."""
    encoding: str
    lossy: bool
    guessed: bool
    """As in Decoded."""

    @property
    def doubtful(self) -> bool:
        """Whether its text may have other characters than its author wrote."""
        return self.lossy or self.guessed

    @property
    def label(self) -> str:
        """The name of the encoding, for a chip."""
        return ENCODING_NAMES.get(self.encoding, self.encoding)

    @property
    def sentence(self) -> str:
        """What is doubtful about its text, and what to do."""
        if self.guessed:
            advice = "if letters look wrong, save it as UTF-8"
            return f"{self.path} does not say its encoding and was read as {self.label}: {advice}."
        return f"{self.path} is not valid {self.label} throughout: bad bytes appear as \\xff."


@dataclass(frozen=True, slots=True)
class ReadResult:
    """One input, which becomes one attachment. For a folder, `tree` lists its files, and `texts`
    are their contents in the same order."""

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
class ReadProgress:
    """How far reading has come."""

    entries: int
    """Files and folders visited."""
    files: int
    """Files read."""
    size: int
    """Bytes of them."""
    path: str
    """The one visited last; as in Skipped."""
    page: int = 0
    pages: int = 0
    """Of that file, if it has pages: `page` of `pages` is read."""

    @property
    def page_text(self) -> str:
        """`page 41 of 300`, or empty."""
        return f"page {self.page:,} of {self.pages:,}" if self.pages else ""

"""What comes out of reading files and folders: plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from app.errors import UserError
from app.protocol.prompt import Document


class IngestError(UserError):
    """What was given cannot be read as text."""


class Cancelled(Exception):
    """Reading was cancelled by whoever asked for it."""


class Reason(StrEnum):
    """Why something was left out."""

    IGNORED = "ignored"
    PRIVATE = "private"
    LINK = "link"
    SPECIAL = "special"
    OUTSIDE = "outside"
    BINARY = "binary"
    ENCODING = "encoding"
    EMPTY = "empty"
    PDF = "pdf"
    TOO_LARGE = "too large"
    TOO_MUCH = "too much"
    TOO_DEEP = "too deep"
    TOO_SLOW = "too slow"
    UNREADABLE = "unreadable"
    CHANGED = "changed"
    RULES = "rules"


REASON_TEXTS: dict[Reason, tuple[str, str, str]] = {
    Reason.IGNORED: ("ignored", "is ignored by git's rules", "name it itself to have it read"),
    Reason.PRIVATE: (
        "private",
        "may hold passwords or keys",
        "name it itself to have it read",
    ),
    Reason.LINK: ("a symbolic link", "is a symbolic link", "name what it points to"),
    Reason.SPECIAL: (
        "no file",
        "is neither a file nor a folder",
        "give a file, or pipe the text to standard input and give '-'",
    ),
    Reason.OUTSIDE: ("elsewhere", "lies on another file system", "name it itself to have it read"),
    Reason.BINARY: ("binary", "is a binary file", "give text"),
    Reason.ENCODING: (
        "in an unknown encoding",
        "is in an encoding that was not recognised",
        "save it as UTF-8",
    ),
    Reason.EMPTY: ("empty", "is empty", "give one that holds text"),
    Reason.PDF: ("PDF", "is a PDF file that cannot be read", "give its text"),
    Reason.TOO_LARGE: ("too large", "is too large", "give a part of it"),
    Reason.TOO_MUCH: ("beyond a limit", "is beyond a limit", "name what you need of it"),
    Reason.TOO_DEEP: ("too deep", "lies too deep in the folder", "name the folder it is in"),
    Reason.TOO_SLOW: ("too slow", "was not reached in time", "name what you need of it"),
    Reason.UNREADABLE: ("unreadable", "cannot be read", "check its permissions"),
    Reason.CHANGED: (
        "changing",
        "was being changed while it was read",
        "try again when that is done",
    ),
    Reason.RULES: (
        "rules not used",
        "has rules that were not used",
        "simplify them, or name what you want read",
    ),
}
"""Of each reason: two or three words, what is wrong as the end of a sentence, and what to do."""


class Rejected(Exception):
    """Something that cannot be taken. `detail`, as the end of a sentence, and `advice` say it more
    precisely than the reason does."""

    def __init__(self, reason: Reason, detail: str = "", advice: str = "") -> None:
        super().__init__(reason, detail, advice)
        self.reason = reason
        self.detail = detail or REASON_TEXTS[reason][1]
        self.advice = advice or REASON_TEXTS[reason][2]


class LimitReached(Exception):
    """A limit of the whole is reached: what was taken stays, and nothing more is looked at."""

    def __init__(self, refusal: Rejected) -> None:
        super().__init__(refusal)
        self.rejected = refusal


def limit_reached(limit: str) -> LimitReached:
    """What to raise at a limit of the whole, which is told in a few words."""
    return LimitReached(Rejected(Reason.TOO_MUCH, f"was left out, beyond the limit of {limit}"))


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something inside a folder that was left out. `path` begins with the folder's name and holds
    no control characters, but is not to be trusted otherwise."""

    path: str
    reason: Reason
    detail: str
    """The end of a sentence that begins with the path."""
    advice: str
    rest: bool = False
    """Whether everything after it was left out too, because a limit was reached."""

    @property
    def sentence(self) -> str:
        what = f"{self.path} and everything after it" if self.rest else self.path
        return f"{what} {self.detail}: {self.advice}."


@dataclass(frozen=True, slots=True)
class FileRead:
    """A file that was read."""

    path: str
    """As of Skipped."""
    size: int
    """Bytes, as the file has them."""
    encoding: str
    """As Python names it; `pdf` for the text of one."""
    lossy: bool
    """Whether the text does not give back the very bytes: some were no characters and are written
    as `\\xff`."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What one thing given became: one attachment. Of a folder `tree` shows what it holds, and
    `texts` are its files in the tree's order."""

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
        """Bytes of the files taken."""
        return sum(each.size for each in self.files)

    @property
    def summary(self) -> str:
        """`src: 34 files, 1.2 MB; left out 12: 9 ignored, 3 binary`"""
        files = "1 file" if len(self.files) == 1 else f"{len(self.files):,} files"
        text = f"{self.name}: {files}, {size_in_words(self.size)}"
        return f"{text}; left out {self.skipped_summary}" if self.skipped else text

    @property
    def skipped_summary(self) -> str:
        """`12: 9 ignored, 3 binary`, or nothing."""
        counts = Counter(each.reason for each in self.skipped if not each.rest)
        reasons = ", ".join(
            f"{n:,} {REASON_TEXTS[reason][0]}" for reason, n in counts.most_common()
        )
        parts = [f"{counts.total():,}: {reasons}"] if counts else []
        if any(each.rest for each in self.skipped):
            parts.append("the rest, beyond a limit")
        return ", and ".join(parts)


@dataclass(frozen=True, slots=True)
class ReadResults:
    """Everything that was read, in the order given."""

    results: tuple[ReadResult, ...]

    @property
    def documents(self) -> tuple[Document, ...]:
        return tuple(document for intake in self.results for document in intake.documents)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        return tuple(skipped for intake in self.results for skipped in intake.skipped)

    @property
    def characters(self) -> int:
        return sum(len(document.text) for document in self.documents)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far reading is."""

    entries: int
    """Files and folders looked at."""
    files: int
    """Files taken."""
    size: int
    """Bytes of them."""
    path: str
    """What was looked at last; as of Skipped."""


def size_in_words(size: int) -> str:
    """Bytes, in decimal units."""
    if size < 1_000:
        return f"{size} bytes"
    if size < 999_500:
        return f"{size / 1_000:.0f} KB"
    return f"{size / 1_000_000:.1f} MB"

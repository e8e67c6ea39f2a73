"""A folder becomes documents: a tree of what it holds, then its files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from app.ingest.budget import ReadBudget
from app.ingest.file_content import FileContent, read_content
from app.ingest.filenames import printable, reading_order
from app.ingest.limits import Limits
from app.ingest.records import (
    REASON_TEXTS,
    FileRead,
    IngestError,
    LimitReached,
    ReadResult,
    Reason,
    Rejected,
    Skipped,
    limit_reached,
    size_in_words,
)
from app.ingest.tree import tree
from app.ingest.walk import FoundFile, Walk
from app.protocol.prompt import Document

_HEADER = "===== {} =====\n"


def read_folder(path: str, left: int, limits: Limits, watch: ReadBudget) -> ReadResult:
    """The files below a folder, at most `left` bytes. What cannot be taken is skipped and listed.

    Every file is a document of its own, so that the models always know which file they read, and
    the `texts` of the result are in the order of its tree. IngestError when nothing is left to be
    read; raises Cancelled.
    """
    reading = _Reading(Path(path).resolve(), left, limits, watch)
    reading.run()
    if not reading.texts:
        raise _nothing(path, reading)
    return ReadResult(
        reading.name,
        tuple(_bundled(reading.texts, limits.documents - 1)),
        tuple(reading.taken),
        tuple(reading.skipped),
        _overview(reading, limits),
    )


class _Reading:
    def __init__(self, top: Path, left: int, limits: Limits, watch: ReadBudget) -> None:
        self.name = printable(top.name or "root")
        self.texts: list[Document] = []
        self.taken: list[FileRead] = []
        self.skipped: list[Skipped] = []
        self._left = left
        self._limits = limits
        self._watch = watch
        self._walk = Walk(top, limits, watch, self._skip)

    def run(self) -> None:
        try:
            with closing(self._walk.files()) as files:
                for found in files:
                    try:
                        self._take(found)
                    except Rejected as refused:
                        self._skip(found.path, refused)
        except LimitReached as cut:
            self._skip(self._watch.path, cut.rejected, rest=True)

    def _take(self, found: FoundFile) -> None:
        limits = self._limits
        if len(self.taken) == limits.files:
            raise limit_reached(f"{limits.files:,} files")
        content = self._read(found)
        if content.size > self._left:
            raise limit_reached(size_in_words(limits.total_bytes))
        self._left -= content.size
        path, decoded = f"{self.name}/{printable(found.path)}", content.decoded
        self.texts.append(Document(path, decoded.text))
        self.taken.append(FileRead(path, content.size, decoded.encoding, decoded.lossy))
        self._watch.add_file(content.size)

    def _read(self, found: FoundFile) -> FileContent:
        limits = self._limits
        most, private = limits.file_bytes, limits.include_private
        return read_content(found.name, found.folder, limits, self._watch, most, private)

    def _skip(self, path: str, refused: Rejected, rest: bool = False) -> None:
        path = f"{self.name}/{printable(path)}"
        self.skipped.append(Skipped(path, refused.reason, refused.detail, refused.advice, rest))


def _overview(reading: _Reading, limits: Limits) -> Document:
    """What is left out is told to the models too, but for what git ignores."""
    top = len(reading.name) + 1
    files = [(each.path[top:], "") for each in reading.taken]
    files += [
        (each.path[top:], f"left out: {REASON_TEXTS[each.reason][0]}")
        for each in reading.skipped
        if each.reason not in (Reason.IGNORED, Reason.RULES) and not each.rest
    ]
    files.sort(key=lambda file: [reading_order(part) for part in file[0].split("/")])
    count = len(reading.taken)
    head = "1 file of it follows." if count == 1 else f"{count:,} files of it follow."
    if any(each.rest for each in reading.skipped):
        head += " It holds more, which was left out."
    drawn = tree(reading.name, files, limits.tree_lines)
    return Document(f"{reading.name}/", f"A folder; {head}\n\n{drawn}")


def _bundled(texts: list[Document], most: int) -> list[Document]:
    """As they are, or with neighbours joined so that at most `most` documents are left."""
    if len(texts) <= most:
        return texts
    together = -(-len(texts) // most)
    return [_joined(texts[at : at + together]) for at in range(0, len(texts), together)]


def _joined(texts: list[Document]) -> Document:
    if len(texts) == 1:
        return texts[0]
    parts = [_HEADER.format(each.name) + each.text.rstrip("\n") + "\n" for each in texts]
    return Document(f"{texts[0].name} to {texts[-1].name}", "\n".join(parts))


def _nothing(path: str, reading: _Reading) -> IngestError:
    problem = f"The folder {path!r} holds no text files that can be read"
    if len(reading.skipped) == 1:
        return IngestError(f"{problem} ({reading.skipped[0].sentence[:-1]})", "give another one")
    left_out = ReadResult("", (), (), tuple(reading.skipped)).skipped_summary
    return IngestError(f"{problem} ({left_out})" if left_out else problem, "give another one")

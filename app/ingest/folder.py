"""Reads a folder as documents: a tree of its files, then the files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from app.ingest.budget import ReadBudget
from app.ingest.file_content import file_read, read_content
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
    skipped,
)
from app.ingest.tree import tree
from app.ingest.walk import FoundFile, Walk
from app.protocol.prompt import Document
from app.util.formatting import size as format_size


def read_folder(path: str, max_bytes: int, limits: Limits, budget: ReadBudget) -> ReadResult:
    """The files below a folder, at most `max_bytes` of them. What cannot be read is skipped and
    listed.

    Every file is a separate document, so that the models always know which file they read; `texts`
    are in the order of the tree. Raises IngestError when there is nothing to read, and Cancelled.
    """
    reader = _FolderReader(Path(path).resolve(), max_bytes, limits, budget)
    reader.run()
    if not reader.texts:
        raise _no_files(path, reader)
    return ReadResult(
        reader.name,
        tuple(reader.texts),
        tuple(reader.files),
        tuple(reader.skipped),
        _overview(reader, limits),
    )


class _FolderReader:
    def __init__(self, top: Path, max_bytes: int, limits: Limits, budget: ReadBudget) -> None:
        self.name = printable(top.name or "root")
        self.texts: list[Document] = []
        self.files: list[FileRead] = []
        self.skipped: list[Skipped] = []
        self._bytes_left = max_bytes
        self._limits = limits
        self._budget = budget
        self._walk = Walk(top, limits, budget, self._skip)

    def run(self) -> None:
        try:
            with closing(self._walk.files()) as files:
                for found in files:
                    try:
                        self._read(found)
                    except Rejected as rejected:
                        self._skip(found.path, rejected)
        except LimitReached as limit:
            self._skip(self._budget.path, limit.rejected)

    def _read(self, found: FoundFile) -> None:
        limits = self._limits
        if len(self.files) == limits.files:
            raise limit_reached(f"{limits.files:,} files")
        content = read_content(
            found.name,
            found.folder,
            limits,
            self._budget,
            limits.file_bytes,
            limits.include_private,
        )
        if content.size > self._bytes_left:
            raise limit_reached(format_size(limits.total_bytes))
        self._bytes_left -= content.size
        path, decoded = f"{self.name}/{printable(found.path)}", content.decoded
        self.texts.append(Document(path, decoded.text))
        self.files.append(file_read(path, content))
        self.skipped += [skipped(path, each) for each in decoded.missing]
        self._budget.add_file(content.size)

    def _skip(self, path: str, rejected: Rejected) -> None:
        self.skipped.append(skipped(f"{self.name}/{printable(path)}", rejected))


def _overview(reader: _FolderReader, limits: Limits) -> Document:
    """The tree for the models. It also lists what was skipped, except what git ignores."""
    top = len(reader.name) + 1
    files = [(each.path[top:], "") for each in reader.files]
    files += [
        (each.path[top:], f"skipped: {REASON_TEXTS[each.reason][0]}")
        for each in reader.skipped
        if each.reason not in (Reason.IGNORED, Reason.RULES) and not each.rest
    ]
    files.sort(key=lambda file: [reading_order(part) for part in file[0].split("/")])
    count = len(reader.files)
    head = "1 file of it follows." if count == 1 else f"{count:,} files of it follow."
    if any(each.rest for each in reader.skipped):
        head += " It contains more files, which were skipped."
    drawn = tree(reader.name, files, limits.tree_lines)
    return Document(f"{reader.name}/", f"A folder; {head}\n\n{drawn}")


def _no_files(path: str, reader: _FolderReader) -> IngestError:
    problem = f"The folder {path!r} has no readable text files"
    advice = "choose another one"
    if len(reader.skipped) == 1:
        return IngestError(f"{problem} ({reader.skipped[0].sentence[:-1]})", advice)
    summary = ReadResult("", (), (), tuple(reader.skipped)).skipped_summary
    return IngestError(f"{problem} (skipped {summary})" if summary else problem, advice)

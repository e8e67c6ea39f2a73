"""Reads files, folders and standard input as documents."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from app.ingest.budget import ReadBudget
from app.ingest.file_content import FileContent, file_read, read_content, text_of
from app.ingest.filenames import printable
from app.ingest.folder import read_folder
from app.ingest.limits import Limits
from app.ingest.records import (
    IngestError,
    LimitReached,
    Progress,
    ReadResult,
    ReadResults,
    Reason,
    Rejected,
    skipped,
)
from app.ingest.safe_open import too_large
from app.protocol.prompt import Document
from app.util.formatting import size as format_size

STDIN = "-"


def read(
    paths: Sequence[str],
    stdin: BinaryIO | None = None,
    limits: Limits | None = None,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> ReadResults:
    """Read files, folders and standard input (`-`).

    A document is named after its file, or by its path from the folder's name on. Paths in `paths`
    are read even if they are links, private or ignored. Inside a folder, links are not followed;
    unreadable, ignored and private files are skipped and listed.

    `progress` is called at most 20 times a second, `cancelled` at every step, both on the calling
    thread. Raises IngestError when a path is missing, empty or not text, when a folder has no
    readable file, or when the input is larger than `limits` allow, and Cancelled.
    """
    if paths.count(STDIN) > 1:
        raise IngestError("Standard input can be read only once", "give `-` only once")
    limits = limits or Limits()
    standard_input = _read_stdin(stdin, limits) if STDIN in paths else None
    budget = ReadBudget(limits.seconds, progress, cancelled)
    bytes_left = limits.total_bytes
    results: list[ReadResult] = []
    for path in paths:
        if standard_input is not None and path == STDIN:
            result = standard_input
        else:
            result = _read_path(path, bytes_left, limits, budget)
        bytes_left -= result.size
        if bytes_left < 0:
            raise IngestError(
                f"The input is larger than {format_size(limits.total_bytes)}",
                "use fewer or smaller files",
            )
        results.append(result)
    return ReadResults(tuple(results))


def _read_path(path: str, bytes_left: int, limits: Limits, budget: ReadBudget) -> ReadResult:
    try:
        mode = file_mode(path)
        if stat.S_ISDIR(mode):
            return read_folder(path, bytes_left, limits, budget)
        if not stat.S_ISREG(mode):
            raise Rejected(Reason.SPECIAL)
        budget.visit(printable(path))
        content = read_content(path, None, limits, budget, limits.total_bytes, include_private=True)
        budget.add_file(content.size)
        return _result(printable(Path(path).name), content)
    except Rejected as rejected:
        raise _error(repr(path), rejected) from None
    except LimitReached as limit:
        raise _error(repr(path), limit.rejected) from None


def file_mode(path: str) -> int:
    """Raises IngestError if there is no such file or folder, or it cannot be reached."""
    if not path:
        raise IngestError("The file name is empty", "give a file, a folder or `-`")
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise IngestError(
            f"There is no file or folder {path!r}", "check the name and the current folder"
        ) from None
    except OSError as error:
        problem = f"{path!r} cannot be read ({error.strerror})"
        raise IngestError(problem, "check its name and permissions") from None


def _read_stdin(stdin: BinaryIO | None, limits: Limits) -> ReadResult:
    if stdin is None:
        raise IngestError("There is no standard input", "give a file instead of `-`")
    data = stdin.read(limits.total_bytes + 1)
    try:
        if len(data) > limits.total_bytes:
            raise too_large(limits.total_bytes)
        decoded = text_of("", data, limits, ReadBudget(limits.seconds))
        return _result("standard input", FileContent(decoded, len(data)))
    except Rejected as rejected:
        raise _error("Standard input", rejected) from None
    except LimitReached as limit:
        raise _error("Standard input", limit.rejected) from None


def _result(name: str, content: FileContent) -> ReadResult:
    document = Document(name, content.decoded.text)
    missing = tuple(skipped(name, each) for each in content.decoded.missing)
    return ReadResult(name, (document,), (file_read(name, content),), missing)


def _error(what: str, rejected: Rejected) -> IngestError:
    return IngestError(f"{what} {rejected.detail}", rejected.advice)

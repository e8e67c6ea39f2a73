"""Files, folders and standard input become documents."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from app.ingest.budget import ReadBudget
from app.ingest.file_content import FileContent, read_content
from app.ingest.filenames import printable
from app.ingest.folder import read_folder
from app.ingest.limits import Limits
from app.ingest.records import (
    FileRead,
    IngestError,
    LimitReached,
    Progress,
    ReadResult,
    ReadResults,
    Reason,
    Rejected,
    size_in_words,
)
from app.ingest.safe_open import too_large
from app.ingest.text import decode
from app.protocol.prompt import Document

STDIN = "-"


def read(
    paths: Sequence[str],
    stdin: BinaryIO | None = None,
    limits: Limits | None = None,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> ReadResults:
    """Read files, folders and `-`, standard input.

    A document is named by its file's name, below a folder by its path from that folder's name on.
    A link named directly is followed, and what is named directly is read though it may be private
    or ignored. Inside a folder no link is followed; what cannot be read, what git ignores and what
    may hold secrets is skipped and listed.

    `progress` is called at most 20 times a second, `cancelled` at every step, both on the thread
    that called. IngestError, in one sentence, when something named directly is missing, empty or no
    text, a folder holds nothing to be read, or all that is named is more than `limits` allow;
    Cancelled when `cancelled` says so.
    """
    if paths.count(STDIN) > 1:
        raise IngestError("Standard input can be read only once", "give '-' once")
    limits = limits or Limits()
    standard_input = _read_stdin(stdin, limits) if STDIN in paths else None
    watch = ReadBudget(limits.seconds, progress, cancelled)
    left = limits.total_bytes
    intakes: list[ReadResult] = []
    for path in paths:
        if standard_input is not None and path == STDIN:
            intake = standard_input
        else:
            intake = _read_path(path, left, limits, watch)
        left -= intake.size
        if left < 0:
            raise IngestError(
                f"What was given is larger than {size_in_words(limits.total_bytes)}",
                "give fewer or smaller files",
            )
        intakes.append(intake)
    return ReadResults(tuple(intakes))


def _read_path(path: str, left: int, limits: Limits, watch: ReadBudget) -> ReadResult:
    try:
        mode = _mode(path)
        if stat.S_ISDIR(mode):
            return read_folder(path, left, limits, watch)
        if not stat.S_ISREG(mode):
            raise Rejected(Reason.SPECIAL)
        watch.visit(printable(path))
        content = read_content(path, None, limits, watch, limits.total_bytes, private=True)
        watch.add_file(content.size)
        return _intake(printable(Path(path).name), content)
    except Rejected as refused:
        raise _error(repr(path), refused) from None
    except LimitReached as cut:
        raise _error(repr(path), cut.rejected) from None


def _mode(path: str) -> int:
    if not path:
        raise IngestError("The name of the file is empty", "give a file, a folder or '-'")
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
        raise IngestError("There is no standard input here", "give a file instead of '-'")
    data = stdin.read(limits.total_bytes + 1)
    try:
        if len(data) > limits.total_bytes:
            raise too_large(limits.total_bytes)
        return _intake("standard input", FileContent(decode(data), len(data)))
    except Rejected as refused:
        raise _error("Standard input", refused) from None


def _intake(name: str, content: FileContent) -> ReadResult:
    decoded = content.decoded
    taken = FileRead(name, content.size, decoded.encoding, decoded.lossy)
    return ReadResult(name, (Document(name, decoded.text),), (taken,))


def _error(what: str, refused: Rejected) -> IngestError:
    return IngestError(f"{what} {refused.detail}", refused.advice)

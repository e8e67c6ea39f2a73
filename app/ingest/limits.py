"""Limits on how much input is read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from app.ingest.records import LimitReached, ReadCancelled, ReadProgress, Rejected, SkipReason

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits for a call of `app.ingest.reader.read`. What exceeds a limit is skipped and
    reported."""

    total_bytes: int = 64 * MIB
    """Bytes of all inputs together, and therefore of a file that is named directly."""
    file_bytes: int = 8 * MIB
    """Bytes of a file inside a folder."""
    document_bytes: int = 64 * MIB
    """Bytes of a PDF, office or EPUB file."""
    files: int = 5_000
    """Files read from a folder."""
    entries: int = 200_000
    """Files and folders visited inside a folder, read or skipped."""
    depth: int = 40
    """Levels of folders."""
    path_bytes: int = 1_024
    """Bytes of a path relative to the folder."""
    tree_lines: int = 300
    """Lines of a folder's tree."""
    git_seconds: float = 10.0
    """Seconds for git to list a repository; after that, .gitignore files are read instead."""
    document_seconds: float = 30.0
    """Seconds of processor time to extract the text of one page, slide, sheet or section of a
    document."""
    document_total_seconds: float = 600.0
    """Seconds of processor time for all of a document."""
    document_parts: int = 20_000
    """Pages, slides, sheets or sections of a document."""
    document_memory: int = 1024 * MIB
    """Bytes of memory for reading one document."""
    ocr: bool = False
    """Recognise the text of PDF pages that are pictures, if a library for it is installed."""
    ocr_seconds: float = 45.0
    """Seconds to recognise the text of one page."""
    ocr_total_seconds: float = 14_400.0
    """Seconds to recognise the text of all pages of a document."""
    ocr_memory: int = 4096 * MIB
    """Bytes of memory for recognising text."""
    include_private: bool = False
    """Also read files that may contain passwords or keys."""
    include_ignored: bool = False
    """Also read files that git ignores."""


PROGRESS_SECONDS = 0.05


class ReadBudget:
    """Counts files and bytes, and checks the limits at every step."""

    def __init__(
        self,
        progress: Callable[[ReadProgress], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        seconds: float = math.inf,
    ) -> None:
        """`seconds`: a limit where nobody sees progress or can cancel."""
        self._progress = progress
        self._cancelled = cancelled
        self._end = time.monotonic() + seconds
        self._reported_at = 0.0
        self.entries = self.files = self.size = 0
        self.path = ""

    def check(self) -> None:
        """Raise ReadCancelled, or LimitReached if the time limit is exceeded."""
        if self._cancelled is not None and self._cancelled():
            raise ReadCancelled
        if time.monotonic() > self._end:
            raise LimitReached(Rejected(SkipReason.TOO_SLOW))

    def visit(self, path: str) -> None:
        """Report progress. Raises as `check` does."""
        self.entries += 1
        self.path = path
        self.check()
        self.show_page(0, 0)

    def show_page(self, page: int, pages: int, unit: str = "page") -> None:
        """Report that `page` of `pages` pages of this file, or of another unit, is being read (0:
        unknown)."""
        now = time.monotonic()
        if self._progress is not None and now - self._reported_at >= PROGRESS_SECONDS:
            self._reported_at = now
            counts = self.entries, self.files, self.size
            self._progress(ReadProgress(*counts, self.path, page, pages, unit))

    def add_file(self, size: int) -> None:
        self.files += 1
        self.size += size

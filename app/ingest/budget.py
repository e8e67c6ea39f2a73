"""Time limit, cancellation and progress of one call."""

from __future__ import annotations

import time
from collections.abc import Callable

from app.ingest.records import Cancelled, LimitReached, Progress, Reason, Rejected

PROGRESS_SECONDS = 0.05


class ReadBudget:
    """Counts files and bytes, and is checked at every step."""

    def __init__(
        self,
        seconds: float,
        progress: Callable[[Progress], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self._seconds = seconds
        self._progress = progress
        self._cancelled = cancelled
        self._end = time.monotonic() + seconds
        self._reported_at = 0.0
        self.entries = self.files = self.size = 0
        self.path = ""
        self._page_at = time.monotonic()

    def check(self) -> None:
        """Raises Cancelled, or LimitReached when the time is up."""
        if self._cancelled is not None and self._cancelled():
            raise Cancelled
        if time.monotonic() > self._end:
            limit = f"{self._seconds:g} seconds"
            detail = f"is past the time limit of {limit}"
            raise LimitReached(Rejected(Reason.TOO_SLOW, detail, limit=limit))

    def time_left(self, seconds: float) -> float:
        """`seconds`, or what is left of the whole time limit if that is less."""
        return min(seconds, self._end - time.monotonic())

    def visit(self, path: str) -> None:
        """Report progress, at most 20 times a second. Raises like `check`."""
        self.entries += 1
        self.path = path
        self._page_at = time.monotonic()
        self.check()
        self._report()

    def show_page(self, page: int, pages: int) -> None:
        """Report that `page` of `pages` of this file is read. What that took does not count towards
        the time limit, which is for what does not get on."""
        now = time.monotonic()
        self._end += now - self._page_at
        self._page_at = now
        self._report(page, pages)

    def _report(self, page: int = 0, pages: int = 0) -> None:
        now = time.monotonic()
        if self._progress is not None and now - self._reported_at >= PROGRESS_SECONDS:
            self._reported_at = now
            counts = self.entries, self.files, self.size
            self._progress(Progress(*counts, self.path, page, pages))

    def add_file(self, size: int) -> None:
        self.files += 1
        self.size += size

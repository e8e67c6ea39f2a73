"""Extracts the text of PDF files.

It runs in a separate process, because a PDF file can keep a parser busy for hours and fill memory.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.ingest import pdf_worker
from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.process import run_bounded
from app.ingest.records import Rejected, SkipReason
from app.ingest.text import Decoded
from app.util import formatting

_MARK = b"%PDF-"
_MARK_WITHIN = 1024
_UNREADABLE = "(This page could not be read.)"
_MAX_RANGES = 6
"""Maximum number of page ranges to list."""
_SECONDS_TO_START = 3.0
_SAVE_AGAIN = "save it again, or convert it to text"
_OCR = "run text recognition (OCR) on it first"


def is_pdf(head: bytes) -> bool:
    """Whether a file that begins with `head` is a PDF file."""
    return head[:_MARK_WITHIN].lstrip().startswith(_MARK)


class _PageProgress:
    """Reports the worker's progress in pages. A call returns whether there were new pages."""

    def __init__(self, file: int, budget: ReadBudget) -> None:
        self._file, self._budget = file, budget
        self._page = 0

    def __call__(self) -> bool:
        page, _, pages = os.pread(self._file, 64, 0).partition(b" ")
        if not pages or int(page) == self._page:
            return False
        self._page = int(page)
        self._budget.show_page(self._page, int(pages))
        return True


def pdf_text(data: bytes, limits: ReadLimits, budget: ReadBudget) -> Decoded:
    """Extract the text of all pages, each after a line such as `[Page 1]`. Pages that cannot be
    read or have no text are reported. The time limit applies to each page. Raises Rejected, and
    what `budget.check` raises."""
    # -P: the current folder may contain a file named pypdf.py.
    command = [sys.executable, "-P", str(Path(pdf_worker.__file__)), str(limits.pdf_memory)]
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as pages:
        file.write(data)
        file.seek(0)
        # The worker stops a page that is too slow. If it cannot, the process is stopped.
        done = run_bounded(
            [*command, str(pages.fileno()), str(limits.pdf_seconds)],
            limits.pdf_seconds + _SECONDS_TO_START,
            limits.total_bytes,
            budget,
            stdin=file,
            pass_fds=(pages.fileno(),),
            progressed=_PageProgress(pages.fileno(), budget),
        )
    if done is None or done[0] == pdf_worker.TOO_SLOW:
        raise Rejected(
            SkipReason.TOO_SLOW,
            f"is a PDF file with a page that took longer than {limits.pdf_seconds:g} seconds",
            "convert it to text first",
        )
    status, written = done
    if status == pdf_worker.PASSWORD:
        raise Rejected(SkipReason.PDF, "is a PDF file with a password", "save a copy without it")
    if status != 0:
        raise Rejected(SkipReason.PDF, "is a damaged PDF file", _SAVE_AGAIN)
    return _decoded([json.loads(line) for line in written.splitlines()])


def _decoded(pages: Sequence[str | None]) -> Decoded:
    """Join pages and report missing ones. An entry of `pages` is None if the page cannot be
    read."""
    unreadable = [number for number, page in enumerate(pages, 1) if page is None]
    empty = [
        number for number, page in enumerate(pages, 1) if page is not None and not page.strip()
    ]
    if pages and len(unreadable) == len(pages):
        raise Rejected(SkipReason.PDF, "is a damaged PDF file", _SAVE_AGAIN)
    if len(unreadable) + len(empty) == len(pages):
        raise Rejected(SkipReason.PDF, "is a PDF file with pictures but no text", _OCR)
    missing = []
    if unreadable:
        detail = f"has {_listed(unreadable, len(pages))} that cannot be read"
        missing.append(Rejected(SkipReason.BAD_PAGES, detail, _SAVE_AGAIN, pages=len(unreadable)))
    if empty:
        detail = f"has {_listed(empty, len(pages))} without text"
        missing.append(Rejected(SkipReason.PAGES_WITHOUT_TEXT, detail, _OCR, pages=len(empty)))
    text = "".join(
        f"[Page {number}]\n{_UNREADABLE if page is None else page}\n\n"
        for number, page in enumerate(pages, 1)
    )
    return Decoded(text, "pdf", missing=tuple(missing))


def _listed(numbers: Sequence[int], total: int) -> str:
    """`2 of 10 pages (3, 7)`, `9 of 10 pages (2-10)`"""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    shown = ["-".join(map(str, each)) for each in ranges[:_MAX_RANGES]]
    more = ["…"] if len(ranges) > _MAX_RANGES else []
    return f"{len(numbers):,} of {formatting.plural(total, 'page')} ({', '.join([*shown, *more])})"

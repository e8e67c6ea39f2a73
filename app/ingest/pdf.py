"""Extracts the text of PDF files.

It runs in a separate process, because a PDF file can keep a parser busy for hours and fill memory.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from app.ingest import pdf_worker
from app.ingest.budget import ReadBudget
from app.ingest.limits import Limits
from app.ingest.process import run_bounded
from app.ingest.records import Reason, Rejected
from app.ingest.text import Decoded

_MARK = b"%PDF-"
_MARK_WITHIN = 1024
_FAULTS = {
    pdf_worker.ENCRYPTED: ("is a PDF file with a password", "save a copy without it"),
    pdf_worker.NO_TEXT: (
        "is a PDF file with pictures and no text",
        "run text recognition (OCR) on it first",
    ),
}


def is_pdf(head: bytes) -> bool:
    """Whether a file that begins with `head` is a PDF file."""
    return head[:_MARK_WITHIN].lstrip().startswith(_MARK)


class _PageProgress:
    """Passes on what the worker writes about its pages. Returns whether there are more."""

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


def pdf_text(data: bytes, limits: Limits, budget: ReadBudget) -> Decoded:
    """The text of all pages, each below a line such as `[Page 1]`. Raises Rejected, and what
    `budget.check` raises. The time limit is for each page."""
    # -P: the current folder may contain a file named pypdf.py.
    command = [sys.executable, "-P", str(Path(pdf_worker.__file__)), str(limits.pdf_memory)]
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as pages:
        file.write(data)
        file.seek(0)
        done = run_bounded(
            [*command, str(pages.fileno())],
            limits.pdf_seconds,
            limits.total_bytes,
            budget,
            stdin=file,
            pass_fds=(pages.fileno(),),
            progressed=_PageProgress(pages.fileno(), budget),
        )
    if done is None:
        raise Rejected(
            Reason.TOO_SLOW,
            f"is a PDF file of which a page took longer than {limits.pdf_seconds:g} seconds",
            "convert it to text first",
        )
    status, written = done
    if status in _FAULTS:
        raise Rejected(Reason.PDF, *_FAULTS[status])
    if status != 0:
        raise Rejected(Reason.PDF, "is a damaged PDF file", "save it again, or convert it to text")
    return Decoded(written.decode("utf-8", "replace"), "pdf")

"""Extracts the text of documents: PDF, Word, Excel, PowerPoint, OpenDocument and EPUB.

It runs in a separate process (`document_worker.py`), which is stopped when a page takes too long.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress, pairwise
from pathlib import Path

from app.ingest import document_worker
from app.ingest.excerpt import check_pages, outline_of
from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.ocr import installed_recogniser
from app.ingest.parts import (
    OLE,
    Part,
    Ranges,
    numbers_in,
    parse_ranges,
    ranges_text,
    runs,
)
from app.ingest.process import run_bounded
from app.ingest.records import Rejected, SkipReason
from app.ingest.text import Decoded
from app.protocol.prompt import Document
from app.util import formatting
from app.util.places import MARK

SUFFIXES = {
    ".pdf": "a PDF",
    **dict.fromkeys((".docx", ".docm", ".dotx", ".dotm"), "a Word"),
    **dict.fromkeys((".xlsx", ".xlsm", ".xltx", ".xltm"), "an Excel"),
    **dict.fromkeys((".pptx", ".pptm", ".ppsx", ".ppsm", ".potx"), "a PowerPoint"),
    **dict.fromkeys((".odt", ".ods", ".odp", ".ott", ".ots", ".otp"), "an OpenDocument"),
    ".epub": "an EPUB",
}
"""Kinds of documents by the ends of their names."""
_OLD = {".doc": "DOCX", ".dot": "DOCX", ".xls": "XLSX", ".ppt": "PPTX", ".pps": "PPTX"}
_PDF, _ZIP = b"%PDF-", b"PK\x03\x04"
_PDF_WITHIN = 1024
_INSIDE = re.compile(
    rb"PK\x03\x04.{26}(?:\[Content_Types\]\.xml|_rels/\.rels"
    rb"|mimetypeapplication/(?:epub\+zip|vnd\.oasis\.opendocument))",
    re.DOTALL,
)
"""First members of documents without a name, such as standard input."""
_MAX_RANGES = 6
"""Maximum number of page ranges to list."""
_MAX_STOPS = 3
"""After this many parts that take too long or crash the process, the rest is not read."""
_SECONDS_TO_START = 3.0
_SAVE_AGAIN = "save it again, or convert it to text"
_NOT_RECOGNISED = "text recognition (OCR) found none"
_AS_PDF = "if it has pictures, save it as PDF, and run text recognition (OCR) on that"


def is_document(name: str, head: bytes) -> bool:
    """Whether a file with this name that begins with `head` is a document that
    `document_text` reads, or explains why not."""
    suffix = os.path.splitext(name)[1].lower()
    if head.startswith(OLE):
        return suffix in SUFFIXES or suffix in _OLD
    if head.startswith(_ZIP):
        return suffix in SUFFIXES or _INSIDE.match(head) is not None
    return begins_as_pdf(head)


def begins_as_pdf(head: bytes) -> bool:
    """Whether a file that begins with `head` is a PDF. A byte order mark and white space may stand
    before it."""
    return head[:_PDF_WITHIN].removeprefix(codecs.BOM_UTF8).lstrip().startswith(_PDF)


class _Progress:
    """Reports the worker's progress in parts. A call returns whether there were new ones."""

    def __init__(self, file: int, budget: ReadBudget) -> None:
        self._file, self._budget = file, budget
        self.done = self.total = 0

    def __call__(self) -> bool:
        done, _, total = os.pread(self._file, 64, 0).partition(b" ")
        self.total = int(total or 0)
        if not total or int(done) == self.done:
            return False
        self.done = int(done)
        self._budget.show_page(self.done, self.total)
        return True


def document_text(
    name: str, data: bytes, limits: ReadLimits, budget: ReadBudget, wanted: str = ""
) -> Decoded:
    """Extract the text of all pages, slides, sheets or sections, each after a line such as
    `[Page 1]`. If pages of a PDF are `wanted`, such as `5-10`, only these are read. Parts that
    cannot be read or have no text are reported, if they are wanted. The time limit applies to each
    part. Raises Rejected, and what `budget.check` raises."""
    suffix = os.path.splitext(name)[1].lower()
    is_pdf = not data.startswith((_ZIP, OLE))
    what = f"is {'a PDF' if is_pdf else SUFFIXES.get(suffix, 'an office')} file"
    if suffix in _OLD and data.startswith(OLE):
        detail = "is in an old Office format, which is not supported"
        raise Rejected(SkipReason.DOCUMENT, detail, f"save it as {_OLD[suffix]}")
    pages = (parse_ranges(wanted) or ()) if is_pdf else ()
    recogniser = installed_recogniser() if limits.ocr and is_pdf else ""
    found = _read_parts(data, limits, budget, pages, recogniser)
    texts = [part for part in found.parts if part is not None]
    if found.status == document_worker.PASSWORD:
        raise Rejected(SkipReason.DOCUMENT, f"{what} with a password", "save a copy without it")
    if found.status == document_worker.TOO_LARGE:
        detail = f"{what} that is too large once it is unpacked"
        raise Rejected(SkipReason.DOCUMENT, detail, "save the part you need in a file of its own")
    if found.status == document_worker.UNKNOWN:
        raise Rejected(SkipReason.BINARY)
    if found.total:
        check_pages(pages, found.total)
    if found.status is None and not texts:
        raise Rejected(
            SkipReason.TOO_SLOW,
            f"{what} with a page that takes too much memory or longer than"
            f" {limits.document_seconds:g} seconds",
            "convert it to text first",
        )
    if (found.status or found.parts) and not texts:
        raise Rejected(SkipReason.DOCUMENT, f"{what} that is damaged", _SAVE_AGAIN)
    if not any(part.text.strip() for part in texts):
        content = "pictures but no text" if is_pdf else "no text"
        if pages:
            listed = ", ".join(ranges_text(runs(found.numbers)))
            what, content = "has pages", f"{content} ({listed})"
        if all(part.blank for part in texts):
            detail = f"{what} whose pages are blank or damaged"
            raise Rejected(SkipReason.DOCUMENT, detail, _SAVE_AGAIN)
        if not is_pdf:
            raise Rejected(SkipReason.DOCUMENT, f"{what} with {content}", _AS_PDF)
        advice = _NOT_RECOGNISED if found.recogniser else ""
        raise Rejected(SkipReason.SCAN, f"{what} with {content}", advice)
    shown = [_shown(*each, found.unit) for each in zip(found.parts, found.numbers, strict=True)]
    if found.embedded:
        embedded = formatting.plural(found.embedded, "embedded file")
        shown[0] = f"[{embedded}, not read]\n{shown[0]}"
    text = "".join(shown)
    if wanted and not pages:
        outline = outline_of(Document(name, text))
        spans = outline.spans(outline.find(wanted)[1], len(text))
        places = pairwise(accumulate(map(len, shown), initial=0))
        found.keep([any(a < end and start < b for a, b in spans) for start, end in places])
    recognised = sum(part is not None and part.recognised for part in found.parts)
    kind = "pdf" if is_pdf else "office"
    return Decoded(text, kind, missing=(*_missing(found),), recognised=recognised)


def page_count(data: bytes, limits: ReadLimits, budget: ReadBudget) -> int:
    """Number of pages of a PDF, of which none is read; 0 if it cannot be opened. Raises what
    `budget.check` raises."""
    return _read_parts(data, limits, budget, ((0, 0),)).total


@dataclass(slots=True)
class _Found:
    """What a worker read."""

    status: int | None = None
    """The worker's exit status if it read no part; None if it took too long."""
    parts: list[Part | None] = field(default_factory=list)
    """None: a part that cannot be read."""
    numbers: list[int] = field(default_factory=list)
    """The number of each part in the document."""
    recogniser: str = ""
    """The package that recognised the text of pictures."""
    embedded: int = 0
    total: int = 0
    """Number of parts of the document."""

    def keep(self, wanted: Sequence[bool]) -> None:
        """Forget the other parts."""
        self.parts = [*compress(self.parts, wanted)]
        self.numbers = [*compress(self.numbers, wanted)]

    @property
    def unit(self) -> str:
        """`page`, `slide`, `sheet` or `section`."""
        return next((part.unit for part in self.parts if part is not None), "page")


def _read_parts(
    data: bytes, limits: ReadLimits, budget: ReadBudget, ranges: Ranges, recogniser: str = ""
) -> _Found:
    """Read all parts, or those in `ranges`. If the worker is stopped or crashes, another one goes
    on after the part at which that happened."""
    found, size = _Found(recogniser=recogniser), 0
    memory = limits.ocr_memory if recogniser else limits.document_memory
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as counts:
        file.write(data)
        progress = _Progress(counts.fileno(), budget)
        for _ in range(_MAX_STOPS):
            file.seek(0)
            # -P: the current folder may contain files named as modules.
            command = [sys.executable, "-P", str(Path(document_worker.__file__))]
            numbers = memory, counts.fileno(), len(found.parts)
            wanted = ",".join(f"{first}-{'' if last is None else last}" for first, last in ranges)
            found.status, written = run_bounded(
                [*command, *map(str, numbers), wanted, recogniser],
                (limits.ocr_seconds if recogniser else limits.document_seconds) + _SECONDS_TO_START,
                limits.total_bytes,
                budget,
                stdin=file,
                pass_fds=(counts.fileno(),),
                progressed=progress,
                memory=memory,
            )
            size += len(written)
            if size > limits.total_bytes:
                detail = f"has more text than {formatting.size(limits.total_bytes)}"
                raise Rejected(SkipReason.TOO_LARGE, detail)
            _add(found, written)
            progress()
            if found.status == 0 or progress.total == 0:
                break
            if len(found.parts) < progress.total:
                found.parts.append(None)
            if len(found.parts) == progress.total:
                break
        else:
            found.parts += [None] * (progress.total - len(found.parts))
    found.numbers = numbers_in(ranges or ((1, None),), found.total)[: len(found.parts)]
    return found


def _add(found: _Found, written: bytes) -> None:
    """Add the parts that a worker wrote. The last line may be incomplete."""
    lines = written.split(b"\n")[:-1]
    if lines:
        found.embedded, found.total = json.loads(lines[0])
    for line in lines[1:]:
        part = json.loads(line)
        found.parts.append(None if part is None else Part(*part))


def _shown(part: Part | None, number: int, unit: str) -> str:
    if part is None:
        return f"[{unit.capitalize()} {number}]\n(This {unit} could not be read.)\n\n"
    text = MARK.sub(r" \g<0>", part.text.rstrip()) + "\n"  # its own lines are no marks
    if part.note:
        text += "\n[More rows or columns, not read]\n"
    return f"{part.mark}\n{text}\n" if part.mark else text


def _missing(found: _Found) -> Iterator[Rejected]:
    """Yield what is missing from the text."""
    parts, unit = found.parts, found.unit
    numbered = [*zip(found.numbers, parts, strict=True)]
    unreadable = [number for number, part in numbered if part is None]
    empty = [number for number, part in numbered if part and not part.text.strip()]
    if unreadable:
        detail = f"has {_listed(unreadable, len(parts), unit)} that cannot be read"
        yield Rejected(SkipReason.BAD_PAGES, detail, _SAVE_AGAIN, pages=len(unreadable))
    if empty and unit in ("page", "slide"):
        detail = f"has {_listed(empty, len(parts), unit)} without text"
        advice = _NOT_RECOGNISED if found.recogniser else ""
        reason = SkipReason.PAGES_WITHOUT_TEXT
        if unit == "slide":
            reason = SkipReason.SLIDES_WITHOUT_TEXT
        elif all(part.blank for part in parts if part and not part.text.strip()):
            reason, advice = SkipReason.BLANK_PAGES, ""
        yield Rejected(reason, detail, advice, pages=len(empty))
    for part in parts:
        if part is not None and part.note:
            detail = f"is not read completely ({part.mark[1:-1]}: {part.note})"
            yield Rejected(SkipReason.CUT, detail)
    if found.embedded:
        count = formatting.plural(found.embedded, "embedded file")
        yield Rejected(SkipReason.ATTACHED, f"has {count} that cannot be read")


def _listed(numbers: Sequence[int], total: int, unit: str) -> str:
    """`2 of 10 pages (3, 7)`, `9 of 10 pages (2-10)`"""
    ranges = ranges_text(runs(numbers))
    shown = ranges[:_MAX_RANGES]
    more = ["…"] if len(ranges) > _MAX_RANGES else []
    return f"{len(numbers):,} of {formatting.plural(total, unit)} ({', '.join([*shown, *more])})"

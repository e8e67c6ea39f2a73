"""Extracts the text of documents: PDF, Word, Excel, PowerPoint, OpenDocument and EPUB, and of other
files that are large.

It runs in a separate process (`document_worker.py`), which is stopped when a page takes too long.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from itertools import accumulate, compress, groupby, pairwise
from pathlib import Path
from typing import IO

from app.ingest import document_worker
from app.ingest.document_worker import Request
from app.ingest.excerpt import Outline, check_pages, outline_of, page_ranges
from app.ingest.kinds import SUFFIXES, Kind, kind_of, refused_archive, suffix_of
from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.markdown import visible
from app.ingest.parts import ALL, Part, Ranges, numbers_in, ranges_text, runs
from app.ingest.process import ProcessLimits, run_bounded
from app.ingest.recognition import installed_recogniser
from app.ingest.records import Rejected, SkipReason
from app.ingest.text import Decoded
from app.protocol.prompt import Document
from app.util import formatting
from app.util.places import escape_marks
from app.util.sanitize import without_hidden

_MAX_RANGES = 6
"""Maximum number of page ranges to list."""
_MAX_UNREAD = 100
"""Maximum number of parts in a row with a line each that they cannot be read."""
_MAX_STOPS = 3
"""After this many parts that take too long or crash the process, the rest is not read."""
_SECONDS_TO_START = 3.0
_CLOCK_FACTOR = 10
"""Maximum time by the clock, as a multiple of processor time: the machine may be busy."""
_TIME_IS_OVER = (-signal.SIGPROF, -signal.SIGXCPU)
_VARIABLES = ("TZ", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
"""The only environment variables that the process gets."""
_PACKAGES = ("site-packages", "dist-packages")
_SAVE_AGAIN = "save it again, or convert it to text"
_NOT_RECOGNISED = "text recognition (OCR) found none"
_AS_PDF = "if it has pictures, save it as PDF, and run text recognition (OCR) on that"


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
    name: str,
    data: bytes,
    limits: ReadLimits,
    budget: ReadBudget,
    wanted: str = "",
    kind: Kind | None = None,
) -> Decoded:
    """Extract the text of all pages, slides, sheets or sections, each after a line such as
    `[Page 1]`. If pages of a PDF are `wanted`, such as `5-10`, only these are read. Parts that
    cannot be read or have no text are reported, if they are wanted. The time limit applies to each
    part. Raises Rejected, and what `budget.check` raises."""
    kind = kind or kind_of(name, data)
    suffix, is_pdf = suffix_of(name), kind is Kind.PDF
    what = f"is {'a PDF' if is_pdf else _described(suffix)} file"
    recogniser = installed_recogniser() if limits.ocr and is_pdf else ""
    found = _read_parts(kind, data, limits, budget, wanted if is_pdf else "", recogniser)
    texts = [part for part in found.parts if part is not None]
    if found.status == document_worker.PASSWORD:
        raise Rejected(SkipReason.DOCUMENT, f"{what} with a password", "save a copy without it")
    if found.status == document_worker.TOO_LARGE:
        detail = f"{what} that is too large once it is unpacked"
        raise Rejected(SkipReason.DOCUMENT, detail, "save the part you need in a file of its own")
    if found.status == document_worker.UNKNOWN:
        raise Rejected(SkipReason.BINARY)
    if found.refused:
        raise refused_archive(found.refused, suffix)
    if found.total:
        check_pages(found.ranges, found.total, found.labels)
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
        if found.ranges:
            listed = ", ".join(found.named(found.numbers))
            what, content = "has pages", f"{content} ({listed})"
        if all(part.blank for part in texts):
            detail = f"{what} whose pages are blank or damaged"
            raise Rejected(SkipReason.DOCUMENT, detail, _SAVE_AGAIN)
        if not is_pdf:
            raise Rejected(SkipReason.DOCUMENT, f"{what} with {content}", _AS_PDF)
        advice = _NOT_RECOGNISED if found.recogniser else ""
        raise Rejected(SkipReason.SCAN, f"{what} with {content}", advice)
    shown = [*_shown_parts(found)]
    if found.embedded:
        embedded = formatting.plural(found.embedded, "embedded file")
        shown[0] = f"[{embedded}, not read]\n{shown[0]}"
    if found.rest:
        shown[-1] += f"[{found.unit.capitalize()}s {found.rest_text}, not read]\n"
    text = "".join(shown)
    if wanted and not found.ranges:
        outline = outline_of(Document(name, text))
        spans = outline.spans(outline.find(wanted)[1], len(text))
        places = pairwise(accumulate(map(len, shown), initial=0))
        found.keep([any(a < end and start < b for a, b in spans) for start, end in places])
    recognised = sum(part is not None and part.recognised for part in found.parts)
    encoding = "pdf" if is_pdf else "office"
    return Decoded(text, encoding, missing=(*_missing(found),), recognised=recognised)


def _described(suffix: str) -> str:
    """`a Word`; `an office` if the name does not tell."""
    return SUFFIXES.get(suffix, "an office") if suffix != ".pdf" else "an office"


def pages_of(data: bytes, limits: ReadLimits, budget: ReadBudget) -> Outline | None:
    """The pages of a PDF, of which none is read; None if it cannot be opened. Raises what
    `budget.check` raises."""
    found = _read_parts(Kind.PDF, data, limits, budget, "0-0")
    return Outline("page", range(1, found.total + 1), labels=found.labels) if found.total else None


def converted_apart(
    kind: Kind, suffix: str, data: bytes, limits: ReadLimits, budget: ReadBudget
) -> Decoded:
    """What `converted` returns, in a process with limits. Raises Rejected, and what `budget.check`
    raises."""
    with _worker(Request(kind=kind.value, suffix=suffix), data, limits, budget) as worker:
        status, written = worker.run()
    if status == 0:
        found = json.loads(written)
        if "rejected" in found:
            raise _rejected(*found["rejected"])
        text, encoding, lossy, guessed = found["decoded"]
        missing = tuple(_rejected(*each) for each in found["missing"])
        return Decoded(text, encoding, lossy, guessed, missing)
    if status is None and len(written) > limits.total_bytes:
        raise too_much_text(limits)
    if status is None or status in _TIME_IS_OVER:
        detail = f"takes too much memory or longer than {limits.document_seconds:g} seconds to read"
        raise Rejected(SkipReason.TOO_SLOW, detail, "convert it to text first")
    raise Rejected(SkipReason.DOCUMENT, "is damaged", _SAVE_AGAIN)


def _rejected(reason: str, detail: str, advice: str, limit: str, pages: int) -> Rejected:
    return Rejected(SkipReason(reason), detail, advice, limit, pages)


def too_much_text(limits: ReadLimits) -> Rejected:
    detail = f"has more text than {formatting.size(limits.total_bytes)}"
    return Rejected(SkipReason.TOO_LARGE, detail)


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
    labels: tuple[str, ...] = ()
    """The labels of all pages, such as `iv`, if these are not their numbers."""
    ranges: Ranges = ()
    """The pages that are wanted; empty: all."""
    refused: str = ""
    """See `office.REFUSED`."""
    rest: tuple[int, int] | None = None
    """The first and the last of the parts after those that were read, if a limit was reached."""

    def keep(self, wanted: Sequence[bool]) -> None:
        """Forget the other parts."""
        self.parts = [*compress(self.parts, wanted)]
        self.numbers = [*compress(self.numbers, wanted)]

    @property
    def unit(self) -> str:
        """`page`, `slide`, `sheet` or `section`."""
        return next((part.unit for part in self.parts if part is not None), "page") or "part"

    def named(self, numbers: Sequence[int]) -> list[str]:
        """`["3", "5-10"]`, or the labels of these pages, such as `["iii", "v to 2"]`."""
        if not self.labels:
            return ranges_text(runs(numbers))
        names = ((self.labels[a - 1], self.labels[b - 1]) for a, b in runs(numbers))
        return [first if first == last else f"{first} to {last}" for first, last in names]

    @property
    def rest_text(self) -> str:
        """`20,001 to 1,000,000`"""
        first, last = self.rest or (0, 0)
        return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _read_parts(
    kind: Kind,
    data: bytes,
    limits: ReadLimits,
    budget: ReadBudget,
    wanted: str,
    recogniser: str = "",
) -> _Found:
    """Read all parts, or the pages that are `wanted`. If the worker is stopped or crashes, another
    one goes on after the part at which that happened."""
    found, size = _Found(recogniser=recogniser), 0
    request = Request(
        kind=kind.value if kind.value in document_worker.FLAT else "",
        wanted=wanted,
        recogniser=recogniser,
    )
    is_over = False
    with _worker(request, data, limits, budget) as worker:
        progress = worker.progress
        for _ in range(_MAX_STOPS):
            status, written = worker.run(len(found.parts))
            size += len(written)
            if size > limits.total_bytes:
                raise too_much_text(limits)
            is_over = status == -signal.SIGXCPU
            found.status = None if status in _TIME_IS_OVER else status
            _add(found, written)
            progress()
            if status == 0 or progress.total == 0 or (is_over and found.parts):
                break
            if len(found.parts) < progress.total:
                found.parts.append(None)
            if len(found.parts) == progress.total:
                break
        else:
            found.parts += [None] * (progress.total - len(found.parts))
    found.ranges = page_ranges(wanted, found.total, found.labels) if found.total else ()
    ranges = found.ranges or ALL
    found.numbers = numbers_in(ranges, found.total, len(found.parts))
    if found.parts and (is_over or len(found.parts) == limits.document_parts):
        last = max(found.total if end is None else min(end, found.total) for _, end in ranges)
        if (first := found.numbers[-1] + 1) <= last:
            found.rest = first, last
    return found


@contextmanager
def _worker(
    request: Request, data: bytes, limits: ReadLimits, budget: ReadBudget
) -> Iterator[_Worker]:
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as counts:
        file.write(data)
        yield _Worker(request, file, counts, limits, budget)


class _Worker:
    """Starts processes that read a file, one after another."""

    def __init__(
        self,
        request: Request,
        file: IO[bytes],
        counts: IO[bytes],
        limits: ReadLimits,
        budget: ReadBudget,
    ) -> None:
        seconds, total = limits.document_seconds, limits.document_total_seconds
        self._memory = limits.document_memory
        if request.recogniser:  # it uses all cores
            cores = os.cpu_count() or 1
            seconds, total = limits.ocr_seconds * cores, limits.ocr_total_seconds * cores
            self._memory = limits.ocr_memory
        self._request = replace(
            request,
            parts=limits.document_parts,
            seconds=seconds,
            seconds_to_start=_SECONDS_TO_START,
            total_seconds=total,
            max_bytes=limits.total_bytes,
            parent=os.getpid(),
            folders=tuple(_package_folders(request.recogniser)),
        )
        self._file, self._counts, self._budget = file, counts.fileno(), budget
        self.progress = _Progress(self._counts, budget)

    def run(self, first: int = 0) -> tuple[int | None, bytes]:
        """Read without the `first` of the parts that are wanted. Returns the exit status, which is
        None if it took too long, too much memory or wrote too much; and what was written."""
        self._file.seek(0)
        request, counts = self._request, self._counts
        script = str(Path(document_worker.__file__))
        # -I, -S: no module is imported from the current folder, or as the environment says.
        command = [sys.executable, "-I", "-S", script, *map(str, (self._memory, counts, first))]
        return run_bounded(
            [*command, json.dumps(asdict(request))],
            ProcessLimits(
                max(request.seconds * _CLOCK_FACTOR, request.seconds + _SECONDS_TO_START),
                request.max_bytes,
                total_seconds=(request.total_seconds + _SECONDS_TO_START) * _CLOCK_FACTOR,
                memory=self._memory,
            ),
            self._budget,
            self.progress,
            stdin=self._file,
            env={each: os.environ[each] for each in _VARIABLES if each in os.environ},
            pass_fds=(counts,),
        )


def _package_folders(recogniser: str) -> list[str]:
    """Folders from which the process may import packages."""
    found = [each for each in sys.path if os.path.basename(each) in _PACKAGES]
    for name in filter(None, ("pypdfium2", recogniser)):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            place = Path(spec.origin).parent
            found.append(str(place.parent if spec.submodule_search_locations else place))
    return [*dict.fromkeys(found)]


def _add(found: _Found, written: bytes) -> None:
    """Add the parts that a worker wrote. The last line may be incomplete."""
    lines = written.split(b"\n")[:-1]
    if found.status == document_worker.REFUSED:
        found.refused = json.loads(lines[0])
        return
    if lines:
        found.embedded, found.total, labels = json.loads(lines[0])
        found.labels = tuple(labels)
    for line in lines[1:]:
        part = json.loads(line)
        found.parts.append(None if part is None else Part(*part))


def _shown_parts(found: _Found) -> Iterator[str]:
    """Yield the text of each part. If many cannot be read, the first one has a line for all."""
    unit, numbered = found.unit, zip(found.numbers, found.parts, strict=True)
    for is_read, run in groupby(numbered, lambda each: each[1] is not None):
        parts = [*run]
        if not is_read and len(parts) > _MAX_UNREAD:
            first, last = parts[0][0], parts[-1][0]
            yield f"[{unit.capitalize()}s {first:,} to {last:,}, not read]\n\n"
            yield from [""] * (len(parts) - 1)
            continue
        for number, part in parts:
            yield _shown(part, number, unit)


def _shown(part: Part | None, number: int, unit: str) -> str:
    if part is None:
        return f"[{unit.capitalize()} {number}]\n(This {unit} could not be read.)\n\n"
    text = part.text.rstrip()
    shown = visible(without_hidden(text)[0])
    if (unmarked := escape_marks(shown)) != shown:
        text = unmarked
    text += "\n"
    if part.note:
        text += "\n[More rows or columns, not read]\n"
    return f"{part.mark}\n{text}\n" if part.mark else text


def _missing(found: _Found) -> Iterator[Rejected]:
    parts, unit = found.parts, found.unit
    numbered = [*zip(found.numbers, parts, strict=True)]
    unreadable = [number for number, part in numbered if part is None]
    empty = [number for number, part in numbered if part and not part.text.strip()]
    if unreadable:
        detail = f"has {_listed(unreadable, found)} that cannot be read"
        yield Rejected(SkipReason.BAD_PAGES, detail, _SAVE_AGAIN, pages=len(unreadable))
    if empty and unit in ("page", "slide"):
        detail = f"has {_listed(empty, found)} without text"
        advice = _NOT_RECOGNISED if found.recogniser else ""
        reason = SkipReason.PAGES_WITHOUT_TEXT
        if unit == "slide":
            reason = SkipReason.SLIDES_WITHOUT_TEXT
        elif all(part.blank for part in parts if part and not part.text.strip()):
            reason, advice = SkipReason.BLANK_PAGES, ""
        yield Rejected(reason, detail, advice, pages=len(empty))
    if found.rest is not None:
        detail = f"is not read completely (without {unit}s {found.rest_text})"
        advice = f"name those you need, as in #{found.rest[0]}-" if unit == "page" else ""
        yield Rejected(SkipReason.CUT, detail, advice)
    for part in parts:
        if part is not None and part.note:
            detail = f"is not read completely ({part.mark[1:-1]}: {part.note})"
            yield Rejected(SkipReason.CUT, detail)
    for part in parts:
        for detail, advice in part.said if part is not None else ():
            yield Rejected(SkipReason.PARTLY, detail, advice)
    if found.embedded:
        count = formatting.plural(found.embedded, "embedded file")
        yield Rejected(SkipReason.ATTACHED, f"has {count} that cannot be read")


def _listed(numbers: Sequence[int], found: _Found) -> str:
    """`2 of 10 pages (3, 7)`, `9 of 10 pages (2-10)`"""
    ranges = found.named(numbers)
    shown = ranges[:_MAX_RANGES]
    more = ["…"] if len(ranges) > _MAX_RANGES else []
    total = formatting.plural(len(found.parts), found.unit)
    return f"{len(numbers):,} of {total} ({', '.join([*shown, *more])})"

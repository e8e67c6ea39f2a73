"""A script that reads a document on standard input and writes its text to standard output.

It runs in a process of its own, because a document can keep a parser busy for hours, fill memory or
crash it. For files with parts (pages, slides, sheets, sections), the first line has the number of
documents embedded in it, the number of its parts, and the labels of pages. Each part is a line of
JSON, the fields of `Part`; or null if it cannot be read. For other files, the only line has the
fields of `Decoded`, or of what they are `Rejected` for. The exit status reports errors of the whole
file, and SIGPROF or SIGXCPU that its time is over.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO

PASSWORD, TOO_LARGE, UNKNOWN, REFUSED = 3, 4, 5, 6
FLAT = ("flat", "workbook")
"""Kinds of documents that are a single XML file."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What to read, and how."""

    kind: str = ""
    """A `Kind`; empty: a PDF or an archive, as the content tells."""
    suffix: str = ""
    """The end of the file's name."""
    wanted: str = ""
    """The pages of a PDF to read, such as `iv,5-10`; if it names something else, all are read."""
    recogniser: str = ""
    """The package that recognises the text of pictures, if that is wanted."""
    parts: int = 20_000
    """Maximum number of parts to read."""
    seconds: float = 30.0
    """Processor time for a part."""
    seconds_to_start: float = 3.0
    """Processor time to open the file, in addition to that of a part."""
    total_seconds: float = 600.0
    max_bytes: int = 64 * _MIB
    """Bytes that may be written."""
    parent: int = 0
    """The process to end with."""
    folders: tuple[str, ...] = ()
    """Where packages are."""


def main(memory: int, progress: int, first: int, request: Request) -> int:
    """Read a document without the `first` of the parts that are wanted. `memory` is the limit of
    this process in bytes. `progress` is a file descriptor to which the numbers of parts done and of
    parts to read are written."""
    sys.path[:0] = [str(Path(__file__).parents[2])]
    sys.path += request.folders
    from app.ingest import confine

    confine.limit_memory(memory)
    if request.parent:
        confine.end_with(request.parent)
    confine.limit_time(request.seconds + request.seconds_to_start)
    data = sys.stdin.buffer.read()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may print
    recogniser = None
    if request.recogniser:
        from app.ingest.recognition import load_recogniser

        recogniser = load_recogniser(request.recogniser)
    total = int(request.total_seconds) + 1
    confine.confine(request.max_bytes + _MIB, total, may_thread=recogniser is not None)
    if request.kind and request.kind not in FLAT:
        return _convert(request, data, output)
    from app.ingest.parts import ALL, Parts, Refused, TooLarge, Unknown, WithPassword, numbers_in

    parts: Parts
    labels: list[str] = []
    ranges = ALL
    try:
        if data.startswith((b"PK", b"\xd0\xcf")):
            from app.ingest.office import open_document

            parts = open_document(data)
        elif request.kind in FLAT:
            from app.ingest.flat import open_flat

            parts = open_flat(request.kind, data)
        else:
            from app.ingest.pdf import PdfPages

            parts = pages = PdfPages(data, recogniser)
            if len(parts) <= request.parts:
                labels = pages.labels()
            if request.wanted:
                from app.ingest.excerpt import page_ranges

                ranges = page_ranges(request.wanted, len(parts), labels) or ALL
    except WithPassword:
        return PASSWORD
    except TooLarge:
        return TOO_LARGE
    except Refused as refused:
        _write(output, refused.args[0])
        return REFUSED
    except Unknown:
        return UNKNOWN
    _write(output, [parts.embedded, len(parts), labels])
    numbers = numbers_in(ranges, len(parts), request.parts)
    total = len(numbers)
    os.pwrite(progress, b"%d %d " % (first, total), 0)
    for done, number in enumerate(numbers[first:], first + 1):
        confine.limit_time(request.seconds)
        try:
            part = parts.read(number - 1)
            _write(output, [*astuple(part)])
        except Exception:  # a parser may raise anything for a damaged part
            _write(output, None)
        os.pwrite(progress, b"%d %d " % (done, total), 0)
    return 0


def _convert(request: Request, data: bytes, output: IO[bytes]) -> int:
    from app.ingest.convert import converted
    from app.ingest.kinds import Kind
    from app.ingest.records import Rejected
    from app.ingest.text import whole_characters

    try:
        decoded = converted(Kind(request.kind), request.suffix, data, lambda: None)
    except Rejected as rejected:
        _write(output, {"rejected": _fields(rejected)})
    else:
        text = whole_characters(decoded.text)
        shown = [text, decoded.encoding, decoded.lossy, decoded.guessed]
        _write(output, {"decoded": shown, "missing": [*map(_fields, decoded.missing)]})
    return 0


def _fields(rejected: object) -> list[object]:
    return [getattr(rejected, name) for name in ("reason", "detail", "advice", "limit", "pages")]


def _write(output: IO[bytes], value: object) -> None:
    line = json.dumps(value, ensure_ascii=False) + "\n"
    output.write(line.encode("utf-8", "replace"))
    output.flush()


if __name__ == "__main__":
    memory, progress, first = map(int, sys.argv[1:4])
    sys.exit(main(memory, progress, first, Request(**json.loads((*sys.argv, "{}")[4]))))

"""A script that reads a document on standard input and writes its text to standard output.

It runs in a process of its own, because a document can keep a parser busy for hours, fill memory or
crash it. The first line has the number of documents embedded in it, and the number of its parts
(pages, slides, sheets, sections). Each part is a line of JSON, the fields of `Part`; or null
if it cannot be read. The exit status reports errors of the whole file.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import zipfile
from dataclasses import astuple
from pathlib import Path
from typing import IO

PASSWORD, TOO_LARGE, UNKNOWN = 3, 4, 5


def main(memory: int, progress: int, first: int, ranges: str = "", recogniser: str = "") -> int:
    """Read a document without its `first` parts; with `ranges` such as `3,5-10`, only these parts,
    without the `first` of them. `memory` is the limit of this process in bytes. `progress` is a
    file descriptor to which the numbers of parts done and of parts to read are written.
    `recogniser` is the package that recognises the text of pictures, if that is wanted."""
    bound(memory)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from app.ingest.parts import Parts, TooLarge, Unknown, WithPassword, numbers_in, parse_ranges

    data = sys.stdin.buffer.read()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may print
    try:
        parts: Parts
        if data.startswith((b"PK", b"\xd0\xcf")):
            from app.ingest.office import open_document

            parts = open_document(data)
        else:
            from app.ingest.ocr import open_recogniser
            from app.ingest.pdf import PdfPages

            parts = PdfPages(data, open_recogniser(recogniser) if recogniser else None)
    except WithPassword:
        return PASSWORD
    except TooLarge:
        return TOO_LARGE
    except (Unknown, zipfile.BadZipFile) as error:
        return UNKNOWN if isinstance(error, Unknown) else 1
    _write(output, [parts.embedded, len(parts)])
    numbers = numbers_in(parse_ranges(ranges or "1-") or (), len(parts))
    total = len(numbers)
    os.pwrite(progress, b"%d %d " % (first, total), 0)
    for done, number in enumerate(numbers[first:], first + 1):
        try:
            part = parts.read(number - 1)
            _write(output, [*astuple(part)])
        except Exception:  # a parser may raise anything for a damaged part
            _write(output, None)
        os.pwrite(progress, b"%d %d " % (done, total), 0)
    return 0


def _write(output: IO[bytes], value: object) -> None:
    line = json.dumps(value, ensure_ascii=False) + "\n"
    output.write(line.encode("utf-8", "replace"))
    output.flush()


def bound(memory: int) -> None:
    """Limit this process's memory, if the system supports it. The caller limits the time."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


if __name__ == "__main__":
    memory, progress, first = map(int, sys.argv[1:4])
    sys.exit(main(memory, progress, first, *sys.argv[4:]))

"""A script that reads a document on standard input and writes its text to standard output.

It runs in a process of its own, because a document can keep a parser busy for hours, fill memory or
crash it. The first line is the number of documents embedded in it. Each part (page, slide, sheet,
section) is a line of JSON: mark, text, note; or null if it cannot be read. The exit status reports
errors of the whole file.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import zipfile
from pathlib import Path

PASSWORD, TOO_LARGE, UNKNOWN = 3, 4, 5


def main(memory: int, progress: int, first: int) -> int:
    """Read a document from part `first` on. `memory` is the limit of this process in bytes.
    `progress` is a file descriptor to which the numbers of parts done and of all parts are
    written."""
    bound(memory)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from app.ingest.parts import Parts, TooLarge, Unknown, WithPassword

    data = sys.stdin.buffer.read()
    try:
        parts: Parts
        if data.startswith((b"PK", b"\xd0\xcf")):
            from app.ingest.office import open_document

            parts = open_document(data)
        else:
            from app.ingest.pdf import PdfPages

            parts = PdfPages(data)
    except WithPassword:
        return PASSWORD
    except TooLarge:
        return TOO_LARGE
    except (Unknown, zipfile.BadZipFile) as error:
        return UNKNOWN if isinstance(error, Unknown) else 1
    total = len(parts)
    _write(parts.embedded)
    os.pwrite(progress, b"%d %d " % (first, total), 0)
    for number in range(first, total):
        try:
            part = parts.read(number)
            _write([part.mark, part.text, part.note])
        except Exception:  # a parser may raise anything for a damaged part
            _write(None)
        os.pwrite(progress, b"%d %d " % (number + 1, total), 0)
    return 0


def _write(value: object) -> None:
    line = json.dumps(value, ensure_ascii=False) + "\n"
    sys.stdout.buffer.write(line.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def bound(memory: int) -> None:
    """Limit this process's memory, if the system supports it. The caller limits the time."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4])))

"""A script that reads a PDF file on standard input and writes its text to standard output.

It imports nothing from the app, so that it starts quickly. Its exit status says what is wrong.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import sys

ENCRYPTED, NO_TEXT = 3, 4


def main(memory: int, progress: int) -> int:
    """`memory` is the limit for this process, in bytes. To the file `progress`, a descriptor, it
    writes how many pages it has read, and of how many."""
    bound(memory)
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    reader = PdfReader(io.BytesIO(sys.stdin.buffer.read()))
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            return ENCRYPTED
    except DependencyError:  # a cipher for which pypdf needs another library
        return ENCRYPTED
    found = False
    total = len(reader.pages)
    for number, page in enumerate(reader.pages, 1):
        text = page.extract_text()
        os.pwrite(progress, b"%d %d" % (number, total), 0)
        found = found or bool(text.strip())
        sys.stdout.buffer.write(f"[Page {number}]\n{text}\n\n".encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    return 0 if found else NO_TEXT


def bound(memory: int) -> None:
    """Limit this process's memory, where the system supports it. The caller limits the time."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))

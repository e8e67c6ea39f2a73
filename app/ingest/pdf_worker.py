"""Run as a script: a PDF file on standard input, its text on standard output.

Knows nothing of ours, so that it starts at once. Its exit status says what is wrong.
"""

from __future__ import annotations

import contextlib
import io
import resource
import sys

ENCRYPTED, NO_TEXT = 3, 4


def main(memory: int) -> int:
    """`memory`: the most bytes this process may take."""
    bound(memory)
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    reader = PdfReader(io.BytesIO(sys.stdin.buffer.read()))
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            return ENCRYPTED
    except DependencyError:  # a cipher that pypdf leaves to another library
        return ENCRYPTED
    found = False
    for number, page in enumerate(reader.pages, 1):
        text = page.extract_text()
        found = found or bool(text.strip())
        sys.stdout.buffer.write(f"[Page {number}]\n{text}\n\n".encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    return 0 if found else NO_TEXT


def bound(memory: int) -> None:
    """Not every system lets itself be asked; time is bounded from outside in any case."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

"""A script that reads a PDF file on standard input and writes its text to standard output.

It imports almost nothing from the app, so that it starts quickly. The exit status reports errors of
the whole file. Each page is a line of JSON: its text, or null if it cannot be read.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pypdf import PageObject

PASSWORD, TOO_SLOW = 3, 4
MAX_SLOW_PAGES = 3
"""After this many pages that take too long, the rest of the file is not read."""
_UNSEEN = 1 << 1 | 1 << 5
"""Flags of annotations that are not shown."""
_PUSH_BUTTON, _SECRET = 1 << 16, 1 << 13
"""Flags of form fields: a push button, and a password."""
_NO_COMMENT = ("/Widget", "/Link", "/Popup")


class _PageTooSlow(BaseException):
    """Extracting a page took too long. A BaseException, so that no error handler catches it."""


def main(memory: int, progress: int, seconds: float) -> int:
    """Read a PDF file from standard input. `memory` is the limit of this process in bytes,
    `seconds` the limit for a page. `progress` is a file descriptor to which the numbers of pages
    done and of all pages are written."""
    bound(memory)
    from pypdf import PdfReader

    data = sys.stdin.buffer.read()
    if b"/Encrypt" in data:
        sys.path.insert(0, str(Path(__file__).parents[2]))
        from app.ingest import pdf_aes

        pdf_aes.install()
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            return PASSWORD
    except NotImplementedError:  # encrypted for the owners of certain keys
        return PASSWORD
    total = len(reader.pages)
    fields: set[int] = set()  # ids stay valid, because the reader caches its objects
    slow, found = 0, False
    for number in range(total):
        text = None
        try:
            if slow < MAX_SLOW_PAGES:
                with _time_limit(seconds):
                    extracted = _page_text(reader.pages[number], fields)
                text, found = extracted, True
        except _PageTooSlow:
            slow += 1
        except Exception:  # a parser may raise anything for a damaged page
            pass
        os.pwrite(progress, b"%d %d" % (number + 1, total), 0)
        line = json.dumps(text, ensure_ascii=False) + "\n"
        sys.stdout.buffer.write(line.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    return TOO_SLOW if slow and not found else 0


def _page_text(page: PageObject, fields: set[int]) -> str:
    """The text of a page, followed by the values of its form fields and its comments, which are not
    part of that text. `fields` are the ids of fields that were already written."""
    text = page.extract_text()
    lines: list[str] = []
    with contextlib.suppress(Exception):
        for reference in page.get("/Annots", ()):
            with contextlib.suppress(Exception):  # skip damaged annotations
                added = _annotation(reference.get_object(), fields)
                lines += [each.replace("\r\n", "\n").replace("\r", "\n") for each in added]
    if lines and text.strip():
        lines = [text.rstrip("\n"), "", *lines]
    return "\n".join(lines) if lines else text


def _annotation(annotation: Any, fields: set[int]) -> Iterator[str]:
    if int(annotation.get("/F", 0)) & _UNSEEN:
        return
    kind = annotation.get("/Subtype")
    if kind == "/Widget":
        yield from _form_field(annotation, fields)
    elif kind not in _NO_COMMENT and (comment := str(annotation.get("/Contents", "")).strip()):
        author = str(annotation.get("/T", "")).strip()
        yield f"Comment by {author}: {comment}" if author else f"Comment: {comment}"


def _form_field(widget: Any, fields: set[int]) -> Iterator[str]:
    """Yield a line for the form field of a widget. A field may have several widgets, which inherit
    from it, but is written once."""
    chain = [widget]
    while "/Parent" in chain[-1] and len(chain) < 32:
        chain.append(chain[-1]["/Parent"].get_object())
    holder = next((each for each in chain if "/V" in each), widget)
    if id(holder) in fields:
        return
    fields.add(id(holder))

    def inherited(key: str, default: Any) -> Any:
        return next((each[key] for each in chain if key in each), default)

    kind, flags = inherited("/FT", ""), int(inherited("/Ff", 0))
    if kind == "/Btn":
        value = "" if flags & _PUSH_BUTTON else inherited("/V", widget.get("/AS", ""))
    elif kind in ("/Tx", "/Ch"):
        value = "" if kind == "/Tx" and flags & _SECRET else inherited("/V", "")
    else:  # a signature
        value = ""
    if shown := _shown(value, inherited("/Opt", ())).strip():
        parts = [str(each["/T"]) for each in reversed(chain) if "/T" in each]
        yield f"Form field {inherited('/TU', '.'.join(parts))}: {shown}"


def _shown(value: Any, options: Any) -> str:
    """A field's value as a reader sees it. `options` has pairs of stored and shown values."""
    value = value.get_object() if hasattr(value, "get_object") else value
    if isinstance(value, list):
        return ", ".join(_shown(each, options) for each in value)
    if hasattr(value, "get_data"):
        return str(value.get_data().decode("utf-8", "replace"))
    pairs = {str(each[0]): str(each[1]) for each in options if isinstance(each, list)}
    return pairs.get(str(value), str(value)).removeprefix("/")


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _PageTooSlow if the block runs longer than `seconds`: inside it, or after it if the
    block suppressed the exception."""
    over = False

    def stop(*_: object) -> None:
        nonlocal over
        over = True
        raise _PageTooSlow

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if over:
        raise _PageTooSlow


def bound(memory: int) -> None:
    """Limit this process's memory, if the system supports it. The caller limits the time."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))

"""Redirects what native libraries write to standard error from the screen to a log.

Textual draws on `sys.__stderr__`, which stays with the terminal; descriptor 2, which native code
uses, leads to a file. There Metal's reason for an abort is found, and Python's traceback.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STDERR = 2


@contextmanager
def capture_stderr(log: int) -> Iterator[None]:
    """In this context, native code writes its errors to the descriptor `log`."""
    terminal = os.dup(STDERR)
    before = sys.stderr, sys.__stderr__
    with os.fdopen(terminal, "w", encoding="utf-8", errors="replace", buffering=1) as drawn:
        sys.stderr = sys.__stderr__ = drawn  # type: ignore[misc]
        os.dup2(log, STDERR)
        faulthandler.enable(STDERR)
        try:
            yield
        finally:
            faulthandler.disable()
            drawn.flush()
            os.dup2(terminal, STDERR)
            sys.stderr, sys.__stderr__ = before  # type: ignore[misc]

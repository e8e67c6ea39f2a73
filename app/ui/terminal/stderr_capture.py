"""What native libraries write on standard error must not run over the screen, nor be lost.

Textual draws on `sys.__stderr__`. So that stays with the terminal, while descriptor 2, which is all
that native code knows, leads into a file. Metal's reason for an abort is found there, and Python's
word on where it was.
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
    """As long as this lasts, native code writes its errors to the descriptor `log`."""
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

"""Textual's driver for Linux and macOS with our parser. It restores the window's title, and detects
a closed terminal itself: SIGHUP only goes to the session leader, and `make` does not pass it on.

`LinuxDriver.run_input_thread` creates its own parser, so the method is replaced here. It also
decodes strictly: one byte of a paste that is not UTF-8 would end the program. Here it becomes
U+FFFD.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO

from textual._parser import ParseError
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from app.ui.terminal.paste import PasteSafeParser
from app.ui.terminal.window import POP_TITLE, PUSH_TITLE

READ_BYTES = 64 * 1024
TICK_SECONDS = 0.1
CLOSED_TICKS = 5
"""After this many empty reads the terminal is closed. A single one may be a ^D, typed while a shell
had the terminal."""


class Output:
    """Ignores errors of a terminal that is gone. They would end Textual's writer thread, for which
    drawing would wait forever."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()


class PasteSafeDriver(LinuxDriver):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file = Output(sys.__stderr__)  # type: ignore[arg-type, assignment]

    def _sigcont_application(self, *_: object) -> None:
        """Restart on a terminal that another program may have used. After SIGTSTP application mode
        was stopped, after SIGSTOP it was not and must be stopped first, which takes too long for a
        signal handler."""
        with suppress(RuntimeError):  # the app has just ended
            self._loop.call_soon_threadsafe(self._restart)

    def _restart(self) -> None:
        if not self._auto_restart or self._key_thread is None or not os.isatty(self.fileno):
            return
        if not self._must_signal_resume:
            self.suspend_application_mode()
            self._must_signal_resume = True
        self._app.refresh(layout=True)
        self.resume_application_mode()

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self.write(PUSH_TITLE)

    def stop_application_mode(self) -> None:
        self.write(POP_TITLE)
        super().stop_application_mode()

    def run_input_thread(self) -> None:
        parser = PasteSafeParser(self._debug)
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        empty = 0
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(TICK_SECONDS):
                    received = self._read()
                    empty = 0 if received else empty + 1
                    if empty == CLOSED_TICKS and self.input_tty:
                        os.kill(os.getpid(), signal.SIGHUP)
                        break
                    if not received:  # closed, or a finished pipe: always readable
                        self.exit_event.wait(TICK_SECONDS)
                    if text := decoder.decode(received):
                        self._process(parser.feed(text))
                self._process(parser.tick())
        with suppress(EOFError, ParseError):
            list(parser.feed(""))

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, READ_BYTES)
        except OSError:  # the first sign of a closed terminal
            return b""

    def _process(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.process_message(message)

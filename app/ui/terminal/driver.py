"""Textual's driver for Linux and macOS, with our parser; it puts the window's title back, and
notices by itself that the terminal was closed: SIGHUP goes to the session's leader alone, which
passes it on to nobody if it is `make`.

`LinuxDriver.run_input_thread` makes its parser itself, so the method is written anew here. It also
decodes strictly there: one byte of a paste that is not UTF-8 would end the program. Here it shows
as U+FFFD.
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
"""A terminal that says so often that its input has ended is closed. A single time it may be a ^D,
typed while a shell had it."""


class Output:
    """The terminal, written to for as long as it is there. Textual's thread that writes would end
    with an error, and whoever has something to draw wait for it for ever."""

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
        """Start again on a terminal that may have been another program's meanwhile. After SIGTSTP
        all was switched off first, after SIGSTOP nothing: what runs must end before it is started
        once more. A signal handler may not wait for it."""
        with suppress(RuntimeError):  # the app has just ended
            self._loop.call_soon_threadsafe(self._start_again)

    def _start_again(self) -> None:
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
                    if not received:  # closed or a finished pipe: readable for ever
                        self.exit_event.wait(TICK_SECONDS)
                    if text := decoder.decode(received):
                        self._process(parser.feed(text))
                self._process(parser.tick())
        with suppress(EOFError, ParseError):
            list(parser.feed(""))

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, READ_BYTES)
        except OSError:  # what a closed terminal says at first
            return b""

    def _process(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.process_message(message)

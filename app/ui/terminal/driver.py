"""Textual's driver for Linux and macOS, with our parser; it puts the window's title back.

`LinuxDriver.run_input_thread` makes its parser itself, so the method is written anew here. It also
decodes strictly there: one byte of a paste that is not UTF-8 would end the program. Here it shows
as U+FFFD.
"""

from __future__ import annotations

import os
import selectors
from codecs import getincrementaldecoder
from collections.abc import Iterable
from contextlib import suppress

from textual._parser import ParseError
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from app.ui.terminal.paste import PasteSafeParser
from app.ui.terminal.window import POP_TITLE, PUSH_TITLE

READ_BYTES = 64 * 1024
TICK_SECONDS = 0.1


class PasteSafeDriver(LinuxDriver):
    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self.write(PUSH_TITLE)

    def stop_application_mode(self) -> None:
        self.write(POP_TITLE)
        super().stop_application_mode()

    def run_input_thread(self) -> None:
        parser = PasteSafeParser(self._debug)
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(TICK_SECONDS):
                    received = os.read(self.fileno, READ_BYTES)
                    if not received:  # closed or a finished pipe: readable for ever
                        self.exit_event.wait(TICK_SECONDS)
                    if text := decoder.decode(received):
                        self._process(parser.feed(text))
                self._process(parser.tick())
        with suppress(EOFError, ParseError):
            list(parser.feed(""))

    def _process(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.process_message(message)

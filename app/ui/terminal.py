"""The terminal: its driver, the window's title, standard error, and the clipboard.

The driver overrides private methods of Textual 8.2.8 (see `app/ui/transcript`).
`LinuxDriver.run_input_thread` creates its own parser, so the method is replaced. It also decodes
strictly: one byte of a paste that is not UTF-8 would end the program. Here it becomes U+FFFD.
"""

from __future__ import annotations

import faulthandler
import os
import selectors
import shutil
import signal
import subprocess
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO, runtime_checkable

from textual._parser import ParseError
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from app.ui.terminal_input import ESC, PasteSafeParser
from app.util.sanitize import sanitize_line

PUSH_TITLE, POP_TITLE = "\x1b[22;2t", "\x1b[23;2t"
KEYPAD_ON, KEYPAD_OFF = "\x1b=", "\x1b>"
WITH_KEYPAD = ("st", "tmux", "screen")
"""TERM of terminals whose Delete or keypad Enter is right only in the keypad's application mode,
begins like this. In PuTTY that mode breaks the keypad."""
ASK_KITTY, ASK_BACKGROUND = "\x1b[?u", "\x1b]11;?\x07"
NAME = "specchat"
DONE_MARK = "✓"
TITLE_LENGTH = 80
READ_BYTES = 64 * 1024
TICK_SECONDS, SHORT_TICK_SECONDS = 0.1, 0.02
CLOSED_TICKS = 5
"""After this many empty reads the terminal is closed. A single one may be a ^D, typed while a shell
had the terminal."""
STDERR = 2
NOT_COPIED = "The clipboard's program failed. ^V pastes the copied text here."
TERMINAL_MAY_COPY = "Other programs get it if the terminal supports OSC 52. ^V pastes it here."
TIMEOUT_SECONDS = 2.0
"""Timeout of the clipboard programs: the program that owns the text may not respond."""


class Window:
    """`write` passes escape sequences to the terminal. Text in them is sanitised here."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._conversation = self._shown = ""
        self._done = False

    def show_title(self, conversation: str) -> None:
        """The conversation's title, empty for a new one."""
        self._conversation = conversation
        self._draw()

    def notify(self, text: str) -> None:
        """Ask for attention, in all ways that terminals have: OSC 9 (iTerm2, kitty, Ghostty,
        WezTerm), the bell (Terminal.app), and a mark in the title."""
        self._write(f"\x1b]9;{sanitize_line(text)[:TITLE_LENGTH]}\x07\x07")
        self._done = True
        self._draw()

    def clear_mark(self) -> None:
        """The window has the focus again."""
        self._done = False
        self._draw()

    def _draw(self) -> None:
        conversation = sanitize_line(self._conversation)[:TITLE_LENGTH]
        parts = (DONE_MARK if self._done else "", conversation and f"{conversation} ·", NAME)
        title = " ".join(filter(None, parts))
        if title != self._shown:
            self._shown = title
            self._write(f"\x1b]2;{title}\x07")


@runtime_checkable
class RemembersDrawn(Protocol):
    """An app that writes only changes of the screen."""

    def forget_drawn(self) -> None:
        """The screen is empty, or has another size."""


def background_is_dark(environment: Mapping[str, str] = os.environ) -> bool:
    """What rxvt-unicode, konsole and others say in COLORFGBG: colours 7 and 9 to 15 are light."""
    background = environment.get("COLORFGBG", "").rpartition(";")[2]
    return background not in {"7", *map(str, range(9, 16))}


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
    """Restores the window's title, and detects a closed terminal itself: SIGHUP only goes to the
    session leader, and `make` does not pass it on."""

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
        if isinstance(self._app, RemembersDrawn):
            self._app.forget_drawn()
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self.write(PUSH_TITLE)
        if self.input_tty:
            self.write(ASK_KITTY)
        if os.environ.get("TERM", "").startswith(WITH_KEYPAD):
            self.write(KEYPAD_ON)

    def stop_application_mode(self) -> None:
        self.write(KEYPAD_OFF + POP_TITLE)
        super().stop_application_mode()

    def run_input_thread(self) -> None:
        parser = PasteSafeParser(self._debug)
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        empty = 0
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                is_due = parser.is_due  # asked first: only then has no input arrived in time
                if selector.select(SHORT_TICK_SECONDS if parser.is_waiting else TICK_SECONDS):
                    received = self._read()
                    empty = 0 if received else empty + 1
                    if empty == CLOSED_TICKS and self.input_tty:
                        os.kill(os.getpid(), signal.SIGHUP)
                        break
                    if not received:  # closed, or a finished pipe: always readable
                        self.exit_event.wait(TICK_SECONDS)
                    if text := decoder.decode(received):
                        self._process(parser.feed(text))
                    is_due = is_due and not received
                if is_due:
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


def paste_safe_driver() -> type[Driver] | None:
    """Our driver where Textual would use `LinuxDriver`; None leaves the choice to Textual."""
    if sys.platform == "win32" or os.environ.get("TEXTUAL_DRIVER"):
        return None
    return PasteSafeDriver


@contextmanager
def capture_stderr(log: int) -> Iterator[None]:
    """Let native code write its errors to the descriptor `log`: Metal's reason for an abort, and
    Python's traceback. Textual draws on `sys.__stderr__`, which stays with the terminal."""
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


@runtime_checkable
class KnowsClipboard(Protocol):
    @property
    def reaches_clipboard(self) -> bool:
        """Whether other programs get what the app copies; otherwise the terminal decides."""


def copied_sentence(app: object, sentence: str) -> str:
    """What to show after copying: the sentence, and what is not known."""
    is_certain = not isinstance(app, KnowsClipboard) or app.reaches_clipboard
    return sentence if is_certain else f"{sentence} {TERMINAL_MAY_COPY}"


def for_tmux(sequence: str) -> str:
    """A sequence that tmux passes on to the terminal outside, where its settings allow that."""
    return f"\x1bPtmux;{sequence.replace(ESC, ESC + ESC)}{ESC}\\"


class Clipboard(Protocol):
    """Both methods return at once. A read after a write returns what was written."""

    def read(self) -> Future[str | None]:
        """Its text; None if it has no text, or cannot be read."""

    def write(self, text: str) -> Future[bool] | None:
        """Whether the text was written; None if that cannot fail."""


class SystemClipboard:
    """Uses the programs that come with the system: a terminal's clipboard cannot be read, and in
    Terminal.app not even written."""

    def __init__(self, reads: Sequence[str], writes: Sequence[str]) -> None:
        """The command lines of two programs."""
        self._reads, self._writes = reads, writes
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="clipboard")

    def read(self) -> Future[str | None]:
        return self._executor.submit(self._read)

    def write(self, text: str) -> Future[bool]:
        return self._executor.submit(self._write, text)

    def _read(self) -> str | None:
        try:
            done = subprocess.run(
                self._reads,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_SECONDS,
                env=_environment(),
            )
        except (OSError, subprocess.SubprocessError):
            return None
        text = done.stdout.decode(errors="replace")
        return text if done.returncode == 0 and text else None

    def _write(self, text: str) -> bool:
        # Some programs keep running to serve the text, so they must not inherit our streams.
        try:
            done = subprocess.run(
                self._writes,
                input=text.encode(errors="replace"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_SECONDS,
                env=_environment(),
            )
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0


def system_clipboard() -> SystemClipboard | None:
    """None if there is no clipboard, or no program for it."""
    programs: list[tuple[str, str]] = []
    if sys.platform == "darwin":
        programs.append(("pbpaste", "pbcopy"))
    elif os.environ.get("WAYLAND_DISPLAY"):
        programs.append(("wl-paste --no-newline --type text", "wl-copy"))
    if sys.platform != "darwin" and os.environ.get("DISPLAY"):
        programs.append(("xclip -selection clipboard -out", "xclip -selection clipboard -in"))
    if os.environ.get("TMUX"):
        programs.append(("tmux save-buffer -", "tmux load-buffer -w -"))
    for reads, writes in programs:
        reader, writer = _resolve(reads), _resolve(writes)
        if reader and writer:
            return SystemClipboard(reader, writer)
    return None


def _resolve(command: str) -> list[str]:
    """The command with the program's full path; empty if it is not installed."""
    name, *arguments = command.split()
    program = shutil.which(name)
    return [program, *arguments] if program else []


def _environment() -> dict[str, str]:
    """pbpaste and pbcopy use the locale's encoding, which is ASCII if no locale is set."""
    return {**os.environ, "LC_CTYPE": "UTF-8"} if sys.platform == "darwin" else {**os.environ}
